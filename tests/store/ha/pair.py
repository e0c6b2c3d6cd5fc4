"""A master and a slave store in this process, connected over loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqlake.store.config import MessageStoreConfig
from mqlake.store.ha.ha_client import ClientSettings, HAClient
from mqlake.store.ha.ha_client_service import HAClientService
from mqlake.store.ha.ha_service import HAService
from mqlake.store.message_store import DefaultMessageStore
from tests.store.small_store import SETTINGS
from tests.waiting import until


class Node:
    """A store with its HAService, which listens on loopback."""

    def __init__(self, root: Path, **settings: object) -> None:
        values = {**SETTINGS, "storePathRootDir": str(root), **settings}
        config = MessageStoreConfig.from_mapping(values)
        self.store = DefaultMessageStore(config)
        self.store.load()
        self.ha = HAService(config, self.store.commit_log_files)
        self.ha.bind("127.0.0.1", 0)
        self.store.replicas = self.ha
        self.store.start()
        self.ha.start()
        self.clients: list[HAClientService] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ha.port}"

    def follow(self, address: str, **options: int) -> HAClientService:
        client = HAClientService(
            HAClient(self.store.replica_log(), ClientSettings()), retry_s=0.05, **options
        )
        client.set_master_address(address)
        client.start()
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.shutdown()
        self.ha.shutdown()
        self.store.shutdown()


@contextmanager
def node(root: Path, **settings: object) -> Iterator[Node]:
    opened = Node(root, **settings)
    try:
        yield opened
    finally:
        opened.close()


def wait_equal(master: Node, slave: Node) -> None:
    until(lambda: slave.store.max_phy_offset == master.store.max_phy_offset)
