"""The benches of brokers: one of RocketMQ's for all, and on demand those that start several."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import tiny


@pytest.mark.java
@pytest.mark.nightly
def test_one_broker(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.BROKERS)


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.nightly
def test_clusters(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.CLUSTERS)
