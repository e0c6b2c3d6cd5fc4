"""Stores to read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from mqlake.lake.log.storage import Storage
from tests.golden import CASES, Golden, unpack
from tests.spark.stores import write_store


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all kinds of records, over several files. Not to be changed: copy it."""
    root = tmp_path_factory.mktemp("every-kind") / "store"
    write_store(root)
    return root


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack(request.param, tmp_path)


@pytest.fixture
def golden_store(golden: Golden) -> Path:
    return golden.root


@pytest.fixture
def remote(every_kind: Path) -> Iterator[Storage]:
    """A copy of a store in the memory file system."""
    fs = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    fs.put(str(every_kind) + "/", root + "/", recursive=True)
    yield Storage(f"memory:/{root}")
    fs.rm(root, recursive=True)
