"""A name server and brokers in the test's own loop, and an operator who makes static topics on them.

async def scene(cluster):
    await cluster.map("T", 2, "broker-a")
    await cluster.move("T", "broker-b")

on_static_brokers(tmp_path, scene)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from mqlake.broker.controller import BrokerController
from mqlake.client.admin import Admin
from mqlake.client.records import decode_messages
from mqlake.client.static_topics import created, remapped
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.topic import MessageQueue, TopicQueueMappingDetail
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.loop import run
from tests.broker.live import SCENE_S, Peer, running
from tests.waiting import trying, until_async

NAMES = ("broker-a", "broker-b", "broker-c")


class StaticCluster:
    def __init__(
        self, namesrv: NamesrvController, brokers: dict[str, BrokerController], admin: Admin
    ) -> None:
        self.namesrv, self.brokers, self.admin = namesrv, brokers, admin

    @property
    def namesrv_addr(self) -> str:
        return f"127.0.0.1:{self.namesrv.port}"

    def peer(self, name: str) -> Peer:
        return Peer(self.brokers[name], self.admin.brokers._client)

    def detail(self, name: str, topic: str = "T") -> TopicQueueMappingDetail:
        return self.brokers[name].broker.topic_queue_mapping_manager.table[topic]

    async def ask(self, name: str, code: int, header: CommandHeader) -> RemotingCommand:
        return await self.peer(name).ask(code, header)

    async def map(self, topic: str, queues: int, *names: str) -> None:
        configs = await self.admin.examine_topic_config_all(topic)
        await self.admin.apply_mapping(created(topic, queues, {*names, *configs}, configs))

    async def move(self, topic: str, *names: str) -> None:
        configs = await self.admin.examine_topic_config_all(topic)
        await self.admin.apply_mapping(remapped(topic, names, configs))

    async def send(self, name: str, count: int = 1, *, queue_id: int = 0, topic: str = "T") -> list[int]:
        """The queue offsets of messages sent to a logical queue at that broker; their bodies are the offsets."""
        offsets = []
        for _ in range(count):
            answer = await self.peer(name).send(topic, b"body", queue_id=queue_id)
            assert answer.code == 0, answer.remark
            assert answer.ext_fields["queueId"] == str(queue_id)
            offsets.append(int(answer.ext_fields["queueOffset"]))
        return offsets

    async def pull(self, name: str, offset: int, *, queue_id: int = 0, topic: str = "T", **fields: object):
        """The answer, and the queue offsets of the messages in it."""
        fields = {"queue_id": queue_id, "sys_flag": 4, "consumer_group": "G", **fields}
        answer = await self.peer(name).pull(topic, offset, **fields)
        found = []
        if answer.code == 0:
            delta = int(answer.ext_fields["offsetDelta"])
            found = [each.queue_offset + delta for each in decode_messages(answer.body_bytes(), name)]
        return answer, found

    async def read_all(self, name: str, *, queue_id: int = 0, topic: str = "T") -> list[int]:
        """The offsets of all messages of a logical queue, as its leader leads through its parts."""
        offsets: list[int] = []
        at = 0
        for _ in trying("the end of the logical queue"):
            answer, found = await self.pull(name, at, queue_id=queue_id, topic=topic)
            offsets += found
            following = int(answer.ext_fields["nextBeginOffset"])
            if answer.code == 19:  # PULL_NOT_FOUND
                return offsets
            assert following > at or answer.code != 0
            at = following
        raise AssertionError("it has no end")

    async def end(self, name: str, code: int, header: CommandHeader, field: str = "offset") -> int:
        answer = await self.ask(name, code, header)
        assert answer.code == 0, answer.remark
        return int(answer.ext_fields[field])


def queue_of(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="__syslo__global__", queue_id=queue_id)


@contextlib.asynccontextmanager
async def static_cluster(directory: Path, count: int = 2, **settings: str) -> AsyncIterator[StaticCluster]:
    namesrv = NamesrvController(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(directory / "kv.json"),
            config_store_path=str(directory / "namesrv.properties"),
        )
    )
    await namesrv.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            at = f"127.0.0.1:{namesrv.port}"
            brokers = {
                name: await stack.enter_async_context(
                    running(directory / name, brokerName=name, namesrvAddr=at, **settings)
                )
                for name in NAMES[:count]
            }
            admin = await stack.enter_async_context(Admin(at))
            for controller in brokers.values():
                groups = controller.broker.subscription_group_manager
                groups.find_subscription_group_config("G")

            async def registered() -> bool:
                return len(await admin.list_brokers()) == count

            await until_async(registered, "all brokers are registered")
            yield StaticCluster(namesrv, brokers, admin)
    finally:
        await namesrv.stop()


def on_static_brokers(
    directory: Path, scene: Callable[[StaticCluster], Awaitable[None]], count: int = 2, **settings: str
) -> None:
    async def main() -> None:
        async with asyncio.timeout(SCENE_S), static_cluster(directory, count, **settings) as cluster:
            await scene(cluster)

    run(main())
