"""`make sanitize`: the canaries, and a share of the damaged bytes; a compiler with sanitizers is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("target", ["log_pieces", "put_messages", "send_frames"])
def test_damaged_bytes(target: str) -> None:
    """Each target finds what it is made of: records, puts, a log."""
    said = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{target}", "60000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-4000:]
    done, found = map(int, said.stdout.split())
    assert done >= 60_000 and found > 10


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<seconds> asks for it")
@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="there is no gcc and no clang")
def test_with_sanitizers() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.sanitize", "--bytes", "2000000", "--without-tests"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, (said.stdout + said.stderr)[-6000:]
