"""The benches of tables that need no Spark, no JVM and no broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny


@pytest.mark.nightly
def test_tables(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.LAKE)
