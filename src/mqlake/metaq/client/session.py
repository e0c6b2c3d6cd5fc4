"""MetaSession: the connections to brokers and to ZooKeeper that producers, consumers and browsers share.

With `server_url` (meta://host:port) there is no ZooKeeper: everything goes to that one broker, which chooses the
partitions, and there are no consumer groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from mqlake.base.arguments import checked
from mqlake.errors import ConfigError, ResponseError
from mqlake.metaq.client.remoting import RemotingClient
from mqlake.metaq.config.meta_config import ZKConfig
from mqlake.metaq.formats.command import HttpStatus, StatsCommand
from mqlake.metaq.message import Partition, check_topic
from mqlake.metaq.zookeeper.paths import MetaZookeeper, TopicBroker
from mqlake.metaq.zookeeper.session import ZkSession
from mqlake.remoting.service import Service
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS

MASTER, SLAVE = "m", "s"

T = TypeVar("T")


class Child(Protocol):
    """A producer, consumer or the like that ends with its session."""

    async def shutdown(self) -> None: ...


@checked
class MetaSession(Service):
    """`async with`, or `start` and `close`; on one event loop."""

    def __init__(
        self,
        *,
        zk_connect: str = "",
        zk_config: ZKConfig | None = None,
        server_url: str = "",
    ) -> None:
        """Exactly one of the three is needed. ConfigError."""
        if bool(zk_connect) + (zk_config is not None) + bool(server_url) != 1:
            raise ConfigError("one of zk_connect, zk_config and server_url is needed")
        self.server_url = server_url
        self.zk_config = zk_config or ZKConfig(zk_connect=zk_connect)
        self.paths = MetaZookeeper(self.zk_config.zk_root)
        self.remoting = RemotingClient()
        self._zookeeper: ZkSession | None = None
        self._children: list[Child] = []
        self._new_session_callbacks: list[Callable[[], None]] = []

    async def start(self) -> None:
        """RemotingConnectError if ZooKeeper does not answer."""
        if not self.server_url:
            self._zookeeper = await asyncio.to_thread(ZkSession, self.zk_config)
            loop = asyncio.get_running_loop()

            def new_session() -> None:
                for callback in self._new_session_callbacks:
                    loop.call_soon_threadsafe(callback)

            self._zookeeper.on_new_session(new_session)
        self.remoting.start()

    async def close(self) -> None:
        """Consumers commit their offsets, producers end; then the connections close."""
        for child in list(self._children):
            await child.shutdown()
        await self.remoting.close()
        if self._zookeeper is not None:
            zookeeper, self._zookeeper = self._zookeeper, None
            await asyncio.to_thread(zookeeper.close)

    def forget(self, child: Child) -> None:
        if child in self._children:
            self._children.remove(child)

    async def stats(self, item: str = "") -> dict[str, dict[str, str]]:
        """The answers to the `stats` command: broker → name → rest of the line. RemotingError.

        The names of `offsets` are `<topic> part <number>`; `config` has the single name `config`.
        """
        if item:
            check_topic(item)
        addresses = (
            [self.server_url] if self.server_url else sorted(set((await self.broker_addresses()).values()))
        )
        found = {}
        for address in addresses:
            request = StatsCommand(item, self.remoting.next_opaque())
            answer = await self.remoting.ask(address, request, DEFAULT_TIMEOUTS.request_s)
            if answer.code != HttpStatus.SUCCESS:
                raise ResponseError(answer.code, answer.message)
            found[address] = {"config": answer.message} if item == "config" else _fields(answer.message)
        return found

    # --- ZooKeeper

    @property
    def zookeeper(self) -> ZkSession:
        """ConfigError if the session has none."""
        if self._zookeeper is None:
            raise ConfigError(
                f"a session with {self.server_url} has no ZooKeeper: this needs zk_connect"
                if self.server_url
                else "the session is not started"
            )
        return self._zookeeper

    async def ask(self, job: Callable[[ZkSession], T]) -> T:
        """Runs `job` in ZooKeeper's thread. RemotingError."""
        zookeeper = self.zookeeper
        return await asyncio.wrap_future(zookeeper.submit(lambda: job(zookeeper)))

    def on_new_session(self, callback: Callable[[], None]) -> None:
        """`callback` runs on the loop after a ZooKeeper session was lost and another began."""
        self._new_session_callbacks.append(callback)

    def remove_new_session(self, callback: Callable[[], None]) -> None:
        if callback in self._new_session_callbacks:
            self._new_session_callbacks.remove(callback)

    async def broker_addresses(self) -> dict[int, str]:
        """Broker id → address to read from: of the master, else of a slave."""

        def read(zookeeper: ZkSession) -> dict[int, str]:
            found = {}
            for name in zookeeper.children(self.paths.broker_ids):
                if name.isdigit() and (address := self._address(zookeeper, int(name), or_slave=True)):
                    found[int(name)] = address
            return found

        return await self.ask(read)

    def _address(self, zookeeper: ZkSession, broker_id: int, *, or_slave: bool) -> str:
        path = self.paths.broker_id(broker_id)
        raw = zookeeper.read(self.paths.master(broker_id))
        if not raw and or_slave:
            slaves = [name for name in zookeeper.children(path) if name.startswith("slave")]
            raw = zookeeper.read(f"{path}/{slaves[0]}") if slaves else None
        return (raw or b"").decode("utf-8", "replace")

    async def publish_partitions(
        self, topic: str, watch: Callable[[object], None]
    ) -> tuple[list[Partition], dict[int, str]]:
        """A topic's writable partitions, sorted, and broker id → address of the master."""

        def read(zookeeper: ZkSession) -> tuple[list[Partition], dict[int, str]]:
            path = self.paths.topic_pub(topic)
            zookeeper.ensure_path(path)
            partitions, addresses = [], {}
            for node in zookeeper.children(path, watch):
                number, _, role = node.rpartition("-")
                if role != MASTER or not number.isdigit():
                    continue
                raw = zookeeper.read(f"{path}/{node}")
                address = self._address(zookeeper, int(number), or_slave=False)
                if raw is None or not address:
                    continue  # it is being removed
                addresses[int(number)] = address
                partitions += [Partition(int(number), i) for i in range(TopicBroker.decode(raw).num_parts)]
            return sorted(partitions), addresses

        return await self.ask(read)

    async def subscribe_partitions(
        self, topic: str, watch: Callable[[object], None] | None = None
    ) -> list[str]:
        """`<broker>-<number>` of all readable partitions of a topic, sorted as text."""

        def read(zookeeper: ZkSession) -> list[str]:
            path = self.paths.topic_sub(topic)
            if watch is not None:
                zookeeper.ensure_path(path)
            found: set[str] = set()
            for node in zookeeper.children(path, watch):
                number, dash, role = node.partition("-")
                raw = zookeeper.read(f"{path}/{node}") if dash and role[:1] in (MASTER, SLAVE) else None
                if raw is not None:
                    found.update(f"{number}-{i}" for i in range(TopicBroker.decode(raw).num_parts))
            return sorted(found)

        return await self.ask(read)


def _fields(text: str) -> dict[str, str]:
    found = {}
    for line in text.split("\r\n"):
        words = line.split(" ")
        size = 3 if words[1:2] == ["part"] else 1
        if words[0] not in ("", "STATS", "END"):
            found[" ".join(words[:size])] = " ".join(words[size:])
    return found
