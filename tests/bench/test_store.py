"""The benches of the store beside RocketMQ's, in one JVM; and that no bench is left out of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.__main__ import BENCHES

from tests.bench import tiny


@pytest.mark.java
@pytest.mark.nightly
def test_the_store(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.STORE)


def test_every_bench_is_run_by_some_test() -> None:
    run = (*tiny.STORE, *tiny.BROKERS, *tiny.METAQ, *tiny.SPARK, *tiny.LAKE, *tiny.CLUSTERS)
    assert sorted(run) == sorted(BENCHES)
