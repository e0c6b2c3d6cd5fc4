"""The parts outside Python that demo, tests and benches use: which are missing, and their installation.

`python tools/parts.py` reports all. `python tools/parts.py --install java maven` installs what is missing of these two,
by apt-get and where this user may (root, or sudo without a password), with a line that says so. The exit status is 1
when a named part is missing in the end; with `--optional` it is 0, for the tests, which skip what they cannot run.

Runs before there is any environment, so it needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

JAVA_VERSION_MIN = 17
APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600")
OUTPUT_MAX = 4000
"""Characters of a failed installation's output that are shown: its end."""


@dataclass(frozen=True)
class Part:
    command: str
    """Found on the PATH when the part is there."""
    what: str
    packages: tuple[str, ...]
    """Of Debian and Ubuntu, the best first: which of them a release has differs."""
    command_elsewhere: str = ""

    @property
    def install(self) -> str:
        return f"apt-get install {available(self.packages)}"


JDKS = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless")
PARTS = {
    "java": Part("java", "Java 17 or newer, for Spark and the Java peers", JDKS),
    "javac": Part("javac", "a JDK of Java 17 or newer, for the Java peers", JDKS),
    "maven": Part("mvn", "Maven, for the Java peers of the tests", ("maven",)),
    "go": Part("go", "Go, for RocketMQ's Go client in the tests", ("golang-go",)),
    "node": Part("node", "Node.js, for RocketMQ's Node.js client in the tests", ("nodejs",)),
    "npm": Part("npm", "npm, for RocketMQ's Node.js client in the tests", ("npm",)),
    "cargo": Part("cargo", "cargo, for RocketMQ's Rust clients in the tests on demand", ("cargo",)),
    "chromium": Part("chromium", "Chromium, for the console in the tests", ("chromium",), "chromium-browser"),
    "strace": Part("strace", "strace, for the fault-injection tests", ("strace",)),
    "systemd": Part("systemd-analyze", "systemd-analyze, for the units in deploy/", ("systemd",)),
    "etcd": Part("etcd", "etcd 3, for failover in the tests", ("etcd-server",)),
    "compiler": Part("gcc", "a C compiler, for native code", ("gcc",), "clang"),
    "headers": Part(
        "", "Python's headers, for native code (plain Python is many times slower)", ("python3-dev",)
    ),
}
"""By the name that the Makefile and the tests use."""


@functools.cache
def available(packages: tuple[str, ...]) -> str:
    """The first of `packages` that apt knows, else the first of all."""
    if len(packages) > 1 and shutil.which("apt-cache"):
        for name in packages:
            shown = subprocess.run(["apt-cache", "policy", name], capture_output=True, text=True, check=False)
            if re.search(r"Candidate: (?!\(none\))", shown.stdout):
                return name
    return packages[0]


def java_version(command: str) -> int:
    """The major version that a `java` says, 0 when it does not run."""
    shown = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    return int(found.group(1)) if found else 0


def find(name: str) -> str | None:
    """The path of a part's command, None when it is not there."""
    part = PARTS[name]
    return shutil.which(part.command) or (
        shutil.which(part.command_elsewhere) if part.command_elsewhere else None
    )


def problem(name: str) -> str | None:
    """What is wrong with a part, and the command that mends it; None when it is there."""
    part = PARTS[name]
    if name == "headers":
        found = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
        return None if found else f"missing: {part.what}; install it with: {part.install}"
    path = find(name)
    if path is None:
        return f"missing: {part.what}; install it with: {part.install}"
    if name == "java" and java_version(path) < JAVA_VERSION_MIN:
        return f"too old: {path} is not Java 17 or newer; install it with: {part.install}"
    if (
        name == "chromium"
        and subprocess.run([path, "--version"], capture_output=True, check=False).returncode
    ):
        # Ubuntu's package only leads to a snap, which containers cannot run
        return f"broken: {path} does not start, which is needed for {part.what.partition(', for ')[2]}"
    return None


def apt() -> list[str] | None:
    """apt-get as this user may run it, None when they may not or it is another system."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return list(APT)
    may = shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n", *APT] if may and may.returncode == 0 else None


def install(names: list[str]) -> None:
    """Installs parts; says what it does, and what apt-get said if that failed."""
    command = apt()
    if command is None:
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    _run([*command, "update"], environment)
    available.cache_clear()
    packages = list(dict.fromkeys(available(PARTS[name].packages) for name in names))
    print(f"installing {', '.join(packages)} (apt-get install)", file=sys.stderr, flush=True)
    if not _run([*command, "install", "-y", "--no-install-recommends", *packages], environment):
        for package in packages:  # one that cannot be had keeps none of the others away
            _run([*command, "install", "-y", "--no-install-recommends", package], environment)


def _run(command: list[str], environment: dict[str, str]) -> bool:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        print(f"{' '.join(command)} failed:\n{done.stdout[-OUTPUT_MAX:]}", file=sys.stderr)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="The parts outside Python: which are missing, and their installation."
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all when none is named"
    )
    parser.add_argument("--install", action="store_true", help="install what is missing, where this user may")
    parser.add_argument("--optional", action="store_true", help="a missing part is no error")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    wanted = given.parts or list(PARTS)
    missing = [name for name in wanted if problem(name)]
    if missing and given.install:
        install(missing)
    problems = [text for name in missing if (text := problem(name))]
    for text in problems:
        print(text, file=sys.stderr)
    return int(bool(given.parts and problems) and not given.optional)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
