"""A store with heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.heads.logs import write_all
from tests.spark.stores import copy_store


@pytest.fixture
def store(every_kind: Path, tmp_path: Path) -> Path:
    """All kinds of records over three files, of which two are full and have heads."""
    root = copy_store(every_kind, tmp_path / "store")
    assert len(write_all(root)) == 2
    return root
