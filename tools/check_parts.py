"""Says which parts outside Python are missing and the line that installs each; exit status 1 when a named one is.

`python tools/check_parts.py` reports all, `python tools/check_parts.py java maven` insists on those two.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

PARTS = {
    "java": (
        "java",
        "a Java 17 runtime, for Spark and the Java peers",
        "apt-get install openjdk-17-jdk-headless",
    ),
    "maven": ("mvn", "Maven, for the Java peers of the tests", "apt-get install maven"),
    "go": ("go", "Go, for RocketMQ's Go client in the tests", "apt-get install golang-go"),
    "chromium": ("chromium", "Chromium, for the console in the tests", "apt-get install chromium"),
    "strace": ("strace", "strace, for the fault-injection tests", "apt-get install strace"),
    "systemd": ("systemd-analyze", "systemd-analyze, for the units in deploy/", "apt-get install systemd"),
}


def java_version(command: str) -> int:
    shown = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    return int(found.group(1)) if found else 0


def problem(part: str) -> str | None:
    command, what, install = PARTS[part]
    path = shutil.which(command)
    if path is None:
        return f"missing: {what}; install it with: {install}"
    if part == "java" and java_version(path) < 17:
        return f"too old: {path} is not Java 17 or newer; install it with: {install}"
    return None


def main(wanted: list[str]) -> int:
    problems = {part: problem(part) for part in (wanted or PARTS)}
    for text in filter(None, problems.values()):
        print(text, file=sys.stderr)
    return int(bool(wanted) and any(problems.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
