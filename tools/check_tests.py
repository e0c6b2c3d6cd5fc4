"""Holds tests/ to the shape of src/mqlake: a module has a test file of its name in the folder of its name.

    src/mqlake/store/log/flush.py    ─▶  tests/store/log/test_flush.py
    src/mqlake/cli/admin/topic.py    ─▶  tests/cli/test_admin.py          as tests/mirror.toml says
    tests/crash/test_kill.py         ─▶  a scenario                        as tests/mirror.toml says

`tests/mirror.toml` names the exceptions: modules that another test file covers, and test files about no single module;
and the modules that more files test than their own. An exception that is no longer one is an offence too. Exit status 1
with a line per offence.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src" / "mqlake", ROOT / "tests"
EXCEPTIONS = TESTS / "mirror.toml"


def offences(source: Path, tests: Path, exceptions: Path) -> list[str]:
    """A line for each module without a test, and each test file without a module, that has no valid exception."""
    rules = tomllib.loads(exceptions.read_text(encoding="utf-8"))
    covered: dict[str, str] = rules["covered_by"]
    scenarios: dict[str, str] = rules["scenarios"]
    modules = {
        str(path.relative_to(source).with_suffix(".py"))
        for path in (*source.rglob("*.py"), *source.rglob("*.pyx"))
        if path.name not in ("__init__.py", "__main__.py")
    }
    files = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py")}
    more: dict[str, list[str]] = rules.get("more_tests", {})
    found = []
    for module in sorted(modules):
        own = str(Path(module).with_name(f"test_{Path(module).name}"))
        other = covered.get(module)
        if own in files and other is not None:
            found.append(f"{module}: has {own} by now; take it out of {exceptions.name}")
        elif own not in files and other is None:
            found.append(f"{module}: tests/{own} is missing (or name who tests it in {exceptions.name})")
        elif other is not None and other not in files:
            found.append(f"{module}: {exceptions.name} names tests/{other}, which is not there")
    found += [
        f"{exceptions.name}: there is no module {module}" for module in sorted(covered.keys() - modules)
    ]
    for module, names in sorted(more.items()):
        own = covered.get(module, str(Path(module).with_name(f"test_{Path(module).name}")))
        if module not in modules:
            found.append(f"{exceptions.name}: there is no module {module}")
        found += [
            f"{module}: {exceptions.name} names tests/{name}, which is not there"
            for name in names
            if name not in files
        ]
        if own in names:
            found.append(f"{module}: {own} tests it in any case; take it out of {exceptions.name}")
    for file in sorted(files):
        own = str(Path(file).with_name(Path(file).name.removeprefix("test_")))
        is_scenario = file in scenarios or any(f"{folder}/" in scenarios for folder in _folders(file))
        if own in modules and file in scenarios:
            found.append(f"tests/{file}: is the test of {own}; take it out of {exceptions.name}")
        elif (
            own not in modules
            and not is_scenario
            and file not in {*covered.values(), *itertools.chain(*more.values())}
        ):
            found.append(
                f"tests/{file}: there is no module {own} (or say in {exceptions.name} what it is about)"
            )
    found += [
        f"{exceptions.name}: there is no tests/{name}"
        for name in sorted(scenarios)
        if not (tests / name).exists()
    ]
    return found


def _folders(file: str) -> list[str]:
    return [str(parent) for parent in Path(file).parents if str(parent) != "."]


def main() -> int:
    found = offences(SOURCE, TESTS, EXCEPTIONS)
    print("\n".join(found) or "tests: mirror the modules")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
