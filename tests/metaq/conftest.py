from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from tests.ports import free_port


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZookeeper]:
    """A real ZooKeeper; each test takes a root of its own."""
    server = EmbeddedZookeeper(str(tmp_path_factory.mktemp("zookeeper")), free_port())
    server.start()
    yield server
    server.stop()
