"""Parts outside Python: what is missing is named with the command that installs it, and installed where that may be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import parts

from mqlake.errors import MissingPartError
from tests.parts import REQUIRED, PartMissingError, missing_in, needed, summary

ROOT = Path(__file__).resolve().parent.parent

SUITE = """
import subprocess
import pytest
from tests.parts import needed

@pytest.mark.spark
def test_of_a_marker(): ...

def test_of_a_helper(): needed("maven")

def test_of_a_command(): subprocess.run(["strace", "true"])

def test_that_fails(): assert False

def test_that_needs_nothing(): ...
"""


def executable(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run_parts(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "parts.py"), *arguments]
    environment = {**os.environ, "PATH": str(path), "LOG": str(path / "log")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_names_what_is_missing(tmp_path: Path) -> None:
    done = run_parts(tmp_path, "java", "strace")
    assert done.returncode == 1
    java, strace = done.stderr.splitlines()
    assert java.startswith("missing: Java 17 or newer, for Spark and the Java peers; install it with: ")
    assert java.endswith("apt-get install openjdk-17-jdk-headless")
    assert strace == "missing: strace, for the fault-injection tests; install it with: apt-get install strace"
    assert run_parts(tmp_path, "--optional", "java", "strace").returncode == 0
    executable(tmp_path / "strace", "exit 0")
    assert (run_parts(tmp_path, "strace").returncode, run_parts(tmp_path, "strace").stderr) == (0, "")


def test_an_old_java_and_a_chromium_that_does_not_start_will_not_do(tmp_path: Path) -> None:
    executable(tmp_path / "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    executable(tmp_path / "chromium", "exit 10")
    done = run_parts(tmp_path, "java", "chromium")
    assert f"too old: {tmp_path / 'java'} is not Java 17 or newer" in done.stderr
    assert f"broken: {tmp_path / 'chromium'} does not start" in done.stderr
    executable(tmp_path / "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    executable(tmp_path / "chromium", "exit 0")
    assert run_parts(tmp_path, "java", "chromium").returncode == 0


def test_an_unknown_part_is_a_usage_error(tmp_path: Path) -> None:
    done = run_parts(tmp_path, "jawa")
    assert done.returncode == 2
    assert "no such part: jawa; there are java, javac, maven" in done.stderr


APT = """
echo "$@" >> "$LOG"
place=$(dirname "$0")
case "$*" in *"install -y"*strace*) echo '#!/bin/sh' > "$place/strace"; /bin/chmod +x "$place/strace";; esac
"""


def test_installs_where_it_may(tmp_path: Path) -> None:
    """As root with apt-get; as another user with sudo if that asks for no password."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    executable(tmp_path / "apt-get", APT)
    executable(
        tmp_path / "apt-cache",
        'case "$2" in *21*) echo "  Candidate: 21";; *) echo "  Candidate: (none)";; esac',
    )
    executable(tmp_path / "sudo", 'shift; exec "$@"')
    executable(tmp_path / "true", "exit 0")
    done = run_parts(tmp_path, "--install", "java", "strace")
    log = (tmp_path / "log").read_text().splitlines()
    assert len([line for line in log if line.endswith(" update")]) == 1
    assert log[1].endswith("install -y --no-install-recommends openjdk-21-jdk-headless strace")
    assert "installing openjdk-21-jdk-headless, strace (apt-get install)" in done.stderr
    assert done.returncode == 1  # this apt-get installed no Java
    assert "install it with: apt-get install openjdk-21-jdk-headless" in done.stderr
    assert "strace, for" not in done.stderr
    (tmp_path / "log").unlink()
    assert run_parts(tmp_path, "--install", "strace").returncode == 0
    assert not (tmp_path / "log").exists()


def test_installs_nothing_without_the_right_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "apt-get", "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert parts.apt() is None
    executable(tmp_path / "sudo", "exit 1")
    assert parts.apt() is None
    executable(tmp_path / "sudo", "exit 0")
    assert (parts.apt() or [])[:3] == ["sudo", "-n", "apt-get"]


def test_a_failed_installation_shows_what_apt_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    executable(tmp_path / "apt-get", 'echo "E: no space left"; exit 100')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    parts.install(["strace"])
    assert "failed:\nE: no space left" in capfd.readouterr().err


def test_the_cause_of_a_failure_is_found() -> None:
    def failure(first: BaseException) -> BaseException:
        try:
            try:
                raise first
            except BaseException as error:
                raise RuntimeError("the peer does not start") from error
        except RuntimeError as error:
            return error

    assert missing_in(failure(PartMissingError("missing: Go"))) == "missing: Go"
    assert missing_in(failure(ValueError("something else"))) is None
    assert missing_in(failure(MissingPartError("pyarrow", "pip install pyarrow"))) is None
    with pytest.raises(KeyError):
        needed("no such part")


def test_tests_without_their_part_are_skipped_and_named_or_fail(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    spark: x\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:mqlake", str(tmp_path)]
    environment = {**os.environ, "PATH": str(tmp_path / "empty"), "PYTHONPATH": str(ROOT)}
    for required in ("", "1"):
        environment[REQUIRED] = required
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        if required:
            assert "3 failed, 2 passed" in done.stdout
        else:
            assert "1 failed, 1 passed, 3 skipped" in done.stdout
            for line in (
                "1 test skipped: missing: Java 17 or newer, for Spark and the Java peers; install it with: ",
                "1 test skipped: missing: Maven, for the Java peers of the tests; install it with: ",
                "1 test skipped: missing: strace, for the fault-injection tests; install it with: ",
            ):
                assert line in done.stdout, done.stdout


def test_a_line_for_each_missing_part() -> None:
    reasons = [
        "Skipped: part missing: Go",
        "Skipped: part missing: Go",
        "Skipped: on demand",
        "part missing: Java",
    ]
    assert summary(reasons) == ["2 tests skipped: missing: Go", "1 test skipped: missing: Java"]
