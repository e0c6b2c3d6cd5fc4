"""The size of the core: what `pip install mqlake` brings, without extras.

`python tools/check_size.py` adds up the files of the distributions that the core needs, as they are installed here, and
fails when they exceed the bound or when there is one more than is known. `--wheel DIR` builds the wheel into DIR,
installs it from the lock into an environment of its own, runs it there, and measures that environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackagePath, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MB = 1_000_000
CORE_MB_MAX = 105
WHEEL_MB_MAX = 4
KNOWN = {
    "backports-zstd",
    "click",
    "isal",
    "lark",
    "lz4",
    "markdown-it-py",
    "mdurl",
    "mqlake",
    "mqlake-client",
    "numpy",
    "orjson",
    "prometheus-client",
    "pygments",
    "rich",
    "uvloop",
}

INSTALL = ["pip", "install", "--quiet", "--link-mode=copy", "--refresh-package", "mqlake-client"]
"""uv keeps what it has installed by name and version: an older build of this version would be taken."""
TRIAL = "echo hello | mqlake store append --topic T --set mappedFileSizeCommitLog=1m s && mqlake store dump s"
"""What a new installation has to be able to do."""


def core_of(name: str) -> set[str]:
    """The distributions that `name` needs on this machine, without extras, itself among them."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = canonicalize_name(waiting.pop())
        if current in found:
            continue
        found.add(current)
        for text in distribution(current).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def size_of(name: str) -> int:
    """Bytes of a distribution's files, compiled Python aside: when it is written is up to the installer."""
    installed = distribution(name)
    files: list[PackagePath] = installed.files or []
    paths = [Path(str(installed.locate_file(file))) for file in files if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def faults(sizes: dict[str, int]) -> list[str]:
    """What is wrong with a core of these distributions and sizes."""
    total = sum(sizes.values())
    found = [
        f"{name} ({sizes[name] / MB:.1f} MB) is new in the core: is it worth its size? Then add it to KNOWN in "
        "tools/check_size.py and to docs/dependencies.md"
        for name in sorted(sizes.keys() - KNOWN)
    ]
    if total > CORE_MB_MAX * MB:
        found.append(f"the core takes {total / MB:.0f} MB, more than {CORE_MB_MAX}")
    return found


def show(sizes: dict[str, int]) -> None:
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    parts = ", ".join(f"{name} {sizes[name] / MB:.0f}" for name in largest)
    print(f"size: the core takes {sum(sizes.values()) / MB:.0f} MB in {len(sizes)} distributions ({parts})")


def uv() -> str:
    return shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")


def build_wheels(directory: Path) -> None:
    """mqlake's and mqlake-client's."""
    for project in (ROOT, ROOT / "packaging" / "client"):
        subprocess.run(
            [uv(), "build", "--quiet", "--wheel", "--out-dir", str(directory), str(project)], check=True
        )


def check_wheel(directory: Path) -> list[str]:
    """Builds, installs, runs, measures."""
    build_wheels(directory)
    wheel = max(directory.glob("mqlake-*.whl"), key=lambda path: path.stat().st_mtime_ns)
    print(f"wheel: {wheel} ({wheel.stat().st_size / MB:.2f} MB)")
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "VIRTUAL_ENV": f"{place}/venv"}
        environment.pop("PYTHONPATH", None)
        lock = ROOT / "requirements.lock"
        for arguments in (
            ["venv", "--quiet", "--python", sys.executable, f"{place}/venv"],
            [*INSTALL, "--find-links", str(directory), "--constraint", str(lock), str(wheel)],
        ):
            subprocess.run([uv(), *arguments], env=environment, check=True)
        environment["PATH"] = f"{place}/venv/bin{os.pathsep}{environment['PATH']}"
        subprocess.run(["bash", "-c", f"set -eo pipefail; {TRIAL}"], cwd=place, env=environment, check=True)
        subprocess.run([uv(), "pip", "install", "--quiet", "packaging"], env=environment, check=True)
        measured = ["python", str(Path(__file__).resolve()), "--json"]
        answer = subprocess.run(
            measured, cwd=place, env=environment, check=True, capture_output=True, text=True
        )
    sizes = json.loads(answer.stdout)
    show(sizes)
    found = faults(sizes)
    if wheel.stat().st_size > WHEEL_MB_MAX * MB:
        found.append(f"the wheel has {wheel.stat().st_size / MB:.1f} MB, more than {WHEEL_MB_MAX}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", metavar="DIR", type=Path, help="build the wheel into DIR and measure that")
    parser.add_argument(
        "--json", action="store_true", help="only print the size of each distribution, in bytes"
    )
    options = parser.parse_args()
    if options.wheel:
        found = check_wheel(options.wheel)
    else:
        sizes = {name: size_of(name) for name in core_of("mqlake")}
        if options.json:
            print(json.dumps(sizes))
            return 0
        show(sizes)
        found = faults(sizes)
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
