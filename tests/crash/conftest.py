"""A server of writers for the whole session, and the Java peer for what RocketMQ does in the same place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.writer_server import WriterServer
from tests.interop.conftest import java_store as java_store
from tests.interop.conftest import later_java_store as later_java_store


@pytest.fixture(scope="session")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WriterServer]:
    server = WriterServer("tests.crash.server", str(tmp_path_factory.mktemp("writers") / "stderr"))
    yield server
    server.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "crash":
            item.add_marker(pytest.mark.crash)
            if {"java_store", "later_java_store"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.java)
