"""The fuzz targets for some hundred inputs each; `MQLAKE_CAMPAIGN=<seconds> pytest tests/fuzz` for so long each."""

from __future__ import annotations

import os
import subprocess
import sys
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


def fuzz(target: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    families = {"fuzz_sends": ("sends", "loop"), "fuzz_metaq": METAQ, "fuzz_access": ACCESS}
    module = next((name for name, targets in families.items() if target in targets), "fuzz_frames")
    corpus = directory / "corpus"
    corpus.mkdir()
    return subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", target, *options, str(corpus)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_some_inputs(target: str, tmp_path: Path):
    done = fuzz(target, tmp_path, f"-runs={RUNS.get(target, 5000)}", "-seed=1", "-max_len=512")
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<seconds> asks for it")
@pytest.mark.parametrize("target", TARGETS)
def test_campaign(target: str, tmp_path: Path):
    seconds = int(os.environ["MQLAKE_CAMPAIGN"])
    done = fuzz(target, tmp_path, f"-max_total_time={seconds}", "-max_len=4096")
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_a_broken_invariant_is_found(tmp_path: Path):
    """The canary."""
    done = fuzz("canary", tmp_path, "-runs=100000", "-seed=1")
    assert done.returncode != 0 and "AssertionError: the canary" in done.stderr + done.stdout
