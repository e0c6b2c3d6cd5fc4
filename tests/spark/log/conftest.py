"""A store where fsspec finds it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from mqlake.spark.log.storage import Storage


@pytest.fixture
def remote(every_kind: Path) -> Iterator[Storage]:
    """A copy of a store in the memory file system."""
    fs = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    fs.put(str(every_kind) + "/", root + "/", recursive=True)
    yield Storage(f"memory:/{root}")
    fs.rm(root, recursive=True)
