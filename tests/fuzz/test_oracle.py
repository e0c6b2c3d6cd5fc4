"""A life of two brokers under the same mixed load; `MQLAKE_CAMPAIGN=<seconds> pytest tests/fuzz` for so long."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from tests.fuzz.oracle import run


def test_a_life(tmp_path: Path):
    usual = {"mappedFileSizeCommitLog": 120_000, "writeWithoutMmap": "false"}
    assert " 0 of them" not in run(12, tmp_path, 1, **usual)


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<seconds> asks for it")
def test_campaign(tmp_path: Path):
    ends = time.monotonic() + int(os.environ["MQLAKE_CAMPAIGN"])
    for seed in count(1000):
        run(seed, tmp_path / str(seed))
        if time.monotonic() > ends:
            break
