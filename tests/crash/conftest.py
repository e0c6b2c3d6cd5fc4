"""A server of writers for the whole session, and the Java peer for what RocketMQ does in the same place."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.writer_server import WriterServer
from tests.interop.conftest import java_store as java_store
from tests.interop.conftest import later_java_store as later_java_store


@pytest.fixture(scope="session")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WriterServer]:
    server = WriterServer("tests.crash.server", str(tmp_path_factory.mktemp("writers") / "stderr"))
    yield server
    server.close()


@pytest.fixture
def in_memory(memory: Path) -> Path:
    """A directory for a disk whose loss of power is simulated: no real one needs to be waited for."""
    return Path(tempfile.mkdtemp(dir=memory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "crash":
            item.add_marker(pytest.mark.crash)
            if {"java_store", "later_java_store"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.java)
