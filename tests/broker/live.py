"""A broker in the test's own loop, and a client of it.

async def scene(peer):
    answer = await peer.send("T", b"body")

on_a_broker(tmp_path, scene, flushDiskType="SYNC_FLUSH")
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from mqlake.broker.config import read_settings
from mqlake.broker.controller import BrokerController
from mqlake.broker.services import registration
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.headers.produce import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqlake.remoting.loop import run
from tests.waiting import PATIENCE_S

SMALL_STORE = {
    "mappedFileSizeCommitLog": "4m",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    # a machine with much to do is no reason to refuse
    "waitTimeMillsInSendQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}
# a name server that has much to do answers later than after the second that a send waits
registration.REGISTER_START_WAIT_S = registration.REGISTER_WAIT_S = PATIENCE_S

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
SCENE_S = 2 * PATIENCE_S
"""For a scene: more than one of its waits may take."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_controller(directory: Path, **settings: str) -> BrokerController:
    config, store_config, _ = read_settings(
        {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "brokerName": "broker-a",
            "namesrvAddr": "",
            "storePathRootDir": str(directory / "store"),
            **SMALL_STORE,
            **settings,
        }
    )
    return BrokerController(config, store_config)


@contextlib.asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[BrokerController]:
    controller = make_controller(directory, **settings)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


class Peer:
    """A client of one broker."""

    def __init__(self, controller: BrokerController, client: RemotingClient) -> None:
        self.controller = controller
        self.client = client
        self.address = controller.broker_addr

    async def ask(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: bytes | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> RemotingCommand:
        """The answer, whatever its code."""
        return await self.client.invoke(
            self.address, RemotingCommand.create_request(code, header, body), timeout_s
        )

    async def send(self, topic: str, body: bytes = b"body", **fields: object) -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body)

    async def pull(
        self, topic: str, offset: int = 0, timeout_s: float = PATIENCE_S, **fields: object
    ) -> RemotingCommand:
        return await self.ask(RequestCode.PULL_MESSAGE, pull_header(topic, offset, **fields), None, timeout_s)

    async def dispatched(self) -> None:
        """Until consumers can see all that was sent."""
        assert await asyncio.to_thread(self.controller.broker.store.wait_until_dispatched, PATIENCE_S)


def send_header(
    topic: str, *, v1: bool = False, **fields: object
) -> SendMessageRequestHeader | SendMessageRequestHeaderV2:
    values = {
        "producer_group": "PG",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": now_ms(),
        "flag": 0,
        **fields,
    }
    return (SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2)(**values)


def pull_header(topic: str, offset: int = 0, **fields: object) -> PullMessageRequestHeader:
    values = {
        "consumer_group": "CG",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "subscription": "*",
        "sub_version": 0,
        **fields,
    }
    return PullMessageRequestHeader(**values)


def on_a_broker(directory: Path, scene: Callable[[Peer], Awaitable[None]], **settings: str) -> None:
    """Runs `scene` with a client of a broker that lives as long as it."""

    async def play() -> None:
        async with running(directory, **settings) as controller, RemotingClient() as client:
            async with asyncio.timeout(SCENE_S):
                await scene(Peer(controller, client))

    run(play())
