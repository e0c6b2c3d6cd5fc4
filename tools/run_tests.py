"""Runs the tests in parallel, and what fails there once more, alone: `make test`, `make test-all`, `make quick`.

    pytest -n 6 …          ──▶ a line for each failure, by this module as a plug-in of pytest
    pytest FAILED …        ──▶ in one process, with nothing beside it
        fails again            the run fails
        passes                 flaky: named at the end with its first error; more than three fail the run

    python tools/run_tests.py [--no-retry] [ARGUMENT OF PYTEST]...

A flaky test is a bug. What is not retried: a file that cannot be collected, and a run that was interrupted. A run ends
by itself after an hour. Exit statuses are pytest's; 1 also for too many flaky tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

FAILURES = "MQLAKE_FAILURES"
"""The variable that names the file of failures."""
FLAKY_MAX = 3
LIMIT_S = 60 * 60
FAILED, INTERRUPTED = int(pytest.ExitCode.TESTS_FAILED), int(pytest.ExitCode.INTERRUPTED)


class Recorder:
    """Notes each failure: `{"test": id, "error": first line}`; no id for a file that cannot be collected."""

    def __init__(self, path: str) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note("", report)

    def _note(self, test: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        error = next(filter(str.strip, text.splitlines()), "")
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "error": error[:200]}) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """As a plug-in: failures are noted where reports come together, not in a worker."""
    path = os.environ.get(FAILURES)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


def run(arguments: Sequence[str], failures: Path, limit_s: float) -> tuple[int, dict[str, str]]:
    """Runs pytest; its exit status, and the first error of each test that failed. After `limit_s` it is
    interrupted."""
    failures.write_text("")
    command = [sys.executable, "-m", "pytest", "-p", "tools.run_tests", *arguments]
    with subprocess.Popen(command, env={**os.environ, FAILURES: str(failures)}) as process:
        try:
            status = process.wait(limit_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            if isinstance(error, subprocess.TimeoutExpired):
                print(f"\nnot over after {limit_s:.0f} s: interrupted", flush=True)
                process.send_signal(signal.SIGINT)  # a terminal's Ctrl-C reaches pytest itself
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            status = INTERRUPTED
    found: dict[str, str] = {}
    for line in failures.read_text(encoding="utf-8").splitlines():
        failure = json.loads(line)
        found.setdefault(failure["test"], failure["error"])
    return status, found


def main(arguments: Sequence[str]) -> int:
    """Both runs; the exit status."""
    retry = "--no-retry" not in arguments
    arguments = [argument for argument in arguments if argument != "--no-retry"]
    deadline = time.monotonic() + LIMIT_S
    with tempfile.TemporaryDirectory(prefix="mqlake-") as directory:
        failures = Path(directory) / "failures"
        status, first = run(arguments, failures, LIMIT_S)
        if status != FAILED or not retry or not first or "" in first:
            return status
        print(f"\n{len(first)} failed: once more, alone", flush=True)
        status, again = run(["-p", "no:xdist", *first], failures, max(deadline - time.monotonic(), 1))
    if status not in (0, FAILED) or "" in again:
        return status or FAILED
    flaky = {test: error for test, error in first.items() if test not in again}
    if flaky:
        print(f"\n{len(flaky)} flaky: failed beside others, passed alone. Each is a bug:")
        for test, error in flaky.items():
            print(f"  {test}\n      {error}")
    if len(flaky) > FLAKY_MAX:
        print(f"more than {FLAKY_MAX} are flaky: the run fails")
        return FAILED
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
