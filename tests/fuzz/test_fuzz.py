"""The fuzz targets for some hundred inputs each; `MQLAKE_CAMPAIGN=<seconds> pytest tests/fuzz` for so long each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="atheris is there for Python up to 3.13 only"
)
RUNS = {
    "sql": 300,
    "connection": 2000,
    "ini": 200,
    "journal": 800,
    "command": 2000,
    "broker": 600,
    "sends": 400,
    "loop": 400,
    "signed": 1500,
    "plain_acl": 800,
}
ACCESS = ("signed", "policies", "stored", "plain_acl", "authorization")
METAQ = ("command", "journal", "ini", "broker")
TARGETS = (
    "frame",
    "header",
    "json",
    "body",
    "compressed",
    "batch",
    "sql",
    "connection",
    "sends",
    "loop",
    *METAQ,
    *ACCESS,
)


FAMILIES = {"fuzz_sends": ("sends", "loop"), "fuzz_metaq": METAQ, "fuzz_access": ACCESS}


class Fuzzers:
    """A process for each family of targets, which has imported them and forks itself for each run."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def run(self, target: str, directory: Path, *options: str) -> tuple[int, str]:
        """The exit status and what was said."""
        family = next((name for name, targets in FAMILIES.items() if target in targets), "fuzz_frames")
        corpus, said = directory / "corpus", directory / "said"
        corpus.mkdir()
        job = {"target": target, "options": options, "directory": directory, "corpus": corpus, "said": said}
        process = self._process(family)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job, default=str) + "\n")
        process.stdin.flush()
        status = process.stdout.readline()
        assert status, f"{family} has ended with {process.wait()}"
        return int(status), said.read_text(errors="replace")

    def _process(self, family: str) -> subprocess.Popen[str]:
        if family not in self._processes:
            self._processes[family] = subprocess.Popen(
                [sys.executable, "-m", f"tests.fuzz.{family}"],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # atheris names each module that it instruments
                text=True,
            )
        return self._processes[family]

    def close(self) -> None:
        for process in self._processes.values():
            process.communicate()


@pytest.fixture(scope="module")
def fuzzers() -> Iterator[Fuzzers]:
    started = Fuzzers()
    yield started
    started.close()


@pytest.mark.parametrize("target", TARGETS)
def test_some_inputs(fuzzers: Fuzzers, target: str, tmp_path: Path):
    runs = f"-runs={RUNS.get(target, 5000)}"
    status, said = fuzzers.run(target, tmp_path, runs, "-seed=1", "-max_len=512")
    assert status == 0, said[-6000:]


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<seconds> asks for it")
@pytest.mark.parametrize("target", TARGETS)
def test_campaign(fuzzers: Fuzzers, target: str, tmp_path: Path):
    seconds = int(os.environ["MQLAKE_CAMPAIGN"])
    status, said = fuzzers.run(target, tmp_path, f"-max_total_time={seconds}", "-max_len=4096")
    assert status == 0, said[-6000:]


def test_a_broken_invariant_is_found(fuzzers: Fuzzers, tmp_path: Path):
    """The canary."""
    status, said = fuzzers.run("canary", tmp_path, "-runs=100000", "-seed=1")
    assert status != 0 and "AssertionError: the canary" in said
