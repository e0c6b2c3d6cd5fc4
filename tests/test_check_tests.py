"""The check that tests mirror the modules finds what is missing, and what is no exception any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_tests import main, offences

RULES = """
[covered_by]
"log/kernel.py" = "log/test_scan.py"

[more_tests]
"log/scan.py" = ["log/test_scan_again.py"]

[scenarios]
"crash/" = "a process dies"
"test_readme.py" = "README.md"
"""
SOURCE = ("__init__.py", "__main__.py", "errors.py", "log/__init__.py", "log/scan.py", "log/kernel.py")
TESTS = (
    "test_errors.py",
    "log/test_scan.py",
    "log/test_scan_again.py",
    "log/helper.py",
    "crash/deep/test_kill.py",
    "test_readme.py",
)


def found(
    root: Path, *, source: tuple[str, ...] = SOURCE, tests: tuple[str, ...] = TESTS, rules: str = RULES
) -> list[str]:
    for folder, names in (("source", source), ("tests", tests)):
        for name in names:
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (root / "mirror.toml").write_text(rules)
    return offences(root / "source", root / "tests", root / "mirror.toml")


def test_a_tree_that_mirrors_the_modules(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "offence"),
    [
        ({"source": (*SOURCE, "log/flush.py")}, "log/flush.py: tests/log/test_flush.py is missing"),
        ({"tests": (*TESTS, "log/test_old.py")}, "tests/log/test_old.py: there is no module log/old.py"),
        ({"tests": (*TESTS, "log/test_kernel.py")}, "log/kernel.py: has log/test_kernel.py by now"),
        (
            {"rules": RULES.replace('"log/test_scan.py"\n', '"log/test_gone.py"\n')},
            "log/kernel.py: mirror.toml names tests/log/test_gone.py, which is not there",
        ),
        (
            {"rules": RULES.replace('"log/kernel.py"', '"log/moved.py" = "test_errors.py"\n"log/kernel.py"')},
            "mirror.toml: there is no module log/moved.py",
        ),
        (
            {"rules": RULES.replace("test_scan_again", "test_gone"), "tests": (*TESTS[:2], *TESTS[3:])},
            "log/scan.py: mirror.toml names tests/log/test_gone.py, which is not there",
        ),
        (
            {"rules": RULES.replace('["log/', '["log/test_scan.py", "log/')},
            "log/scan.py: log/test_scan.py tests it in any case; take it out of mirror.toml",
        ),
        ({"rules": RULES + '"fuzz/" = "noise"'}, "mirror.toml: there is no tests/fuzz/"),
        (
            {"rules": RULES + '"test_errors.py" = "errors"'},
            "tests/test_errors.py: is the test of errors.py; take it out",
        ),
    ],
)
def test_offences(tmp_path: Path, more: dict[str, object], offence: str) -> None:
    [line] = found(tmp_path, **more)  # type: ignore[arg-type]
    assert line.startswith(offence)


def test_there_are_none_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out == "tests: mirror the modules\n"
