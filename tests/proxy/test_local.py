"""The broker in this process as a backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqlake.errors import RemotingConnectError, RemotingTimeoutError, ResponseError
from mqlake.message import properties_to_string
from mqlake.proxy.local import LocalBackend
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.loop import run
from tests.broker.live import make_controller, send_header

Scene = Callable[[LocalBackend], Awaitable[None]]


def on_a_backend(directory: Path, scene: Scene, **settings: str) -> None:
    async def main() -> None:
        controller = make_controller(directory, **settings)
        await controller.start()
        backend = LocalBackend(controller)
        backend.controller = controller  # type: ignore[attr-defined]
        try:
            await scene(backend)
        finally:
            await backend.close()
            await controller.stop()

    run(main())


async def silent(_: RemotingCommand) -> None:
    return None


def test_answers_of_processors_come_back(tmp_path: Path):
    async def scene(backend: LocalBackend) -> None:
        channel = backend.open("127.0.0.1:1", silent)
        answer = await channel.invoke("", RemotingCommand.create_request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert answer.code == ResponseCode.SUCCESS and answer.body_bytes().startswith(b"{")
        answer = await channel.invoke("broker-a", RemotingCommand.create_request(424242))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await channel.invoke("", RemotingCommand.create_request(RequestCode.HEART_BEAT, body=b"{"))
        assert answer.code == ResponseCode.SYSTEM_ERROR

    on_a_backend(tmp_path, scene)


def held_pull() -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group="G",
        topic="TBW102",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=60_000,
        subscription="*",
        sub_version=0,
    )
    return RemotingCommand.create_request(RequestCode.PULL_MESSAGE, header)


def test_a_wait_ends_with_its_time_or_with_its_client(tmp_path: Path):
    async def scene(backend: LocalBackend) -> None:
        channel = backend.open("127.0.0.1:1", silent)
        with pytest.raises(RemotingTimeoutError):
            await channel.invoke("", held_pull(), 0.05)
        waiting = asyncio.ensure_future(channel.invoke("", held_pull()))
        await asyncio.sleep(0)
        await channel.close()
        with pytest.raises(RemotingConnectError):
            await waiting

    on_a_backend(tmp_path, scene)


def test_routes_need_no_name_server(tmp_path: Path):
    async def scene(backend: LocalBackend) -> None:
        (data,) = (await backend.route("SELF_TEST_TOPIC")).queue_datas
        assert (data.broker_name, data.read_queue_nums, data.write_queue_nums) == ("broker-a", 1, 1)
        assert len(await backend.queues_to_send("New")) == 4  # as a send would create it
        with pytest.raises(ResponseError):
            await backend.route("rmq_sys_new")
        assert await backend.topic_config("New") is None
        assert await backend.brokers_of(["New"]) == {"broker-a"}

    on_a_backend(tmp_path, scene)


def test_name_servers_that_do_not_answer_do_not_matter(tmp_path: Path):
    async def scene(backend: LocalBackend) -> None:
        assert [data.broker_name for data in (await backend.route("SELF_TEST_TOPIC")).queue_datas] == [
            "broker-a"
        ]
        assert len(await backend.queues_to_send("New")) == 4

    on_a_backend(tmp_path, scene, namesrvAddr="127.0.0.1:1")


KINDS: dict[str, tuple[dict[str, str], int]] = {
    "normal": ({"KEYS": "k", "TAGS": "A", "own": "x"}, 0),
    "ordered": ({"__SHARDINGKEY": "g"}, 0),
    "compressed": ({}, 1),
    "delayed": ({"TIMER_DELIVER_MS": "1"}, 0),
    "half": ({"TRAN_MSG": "true"}, 4),
    "priority": ({"_SYS_MSG_PRIORITY_": "1"}, 0),
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", KINDS)
def test_sends_take_the_fast_path_and_mean_the_same(tmp_path: Path, kind: str, flush: str) -> None:
    """An endpoint's sends took two and a half times as long as those from a socket."""
    properties, sys_flag = KINDS[kind]
    usual = kind in ("normal", "ordered", "compressed", "priority")

    async def scene(backend: LocalBackend) -> None:
        store = backend._broker.store
        path = backend._endpoint.fast_paths[0]
        taken: list[bool] = []

        def counted(connection: Connection, data: memoryview, start: int) -> int:
            following = path(connection, data, start)
            taken.append(following > start)
            return following

        plain = LocalBackend(backend.controller)  # type: ignore[attr-defined]
        plain._endpoint.fast_paths = ()
        found = []
        for one in (plain, backend):
            channel = one.open("127.0.0.1:1", silent)
            for _ in range(3):
                backend._endpoint.fast_paths = (counted,)
                begin = store.max_phy_offset
                text = properties_to_string({"UNIQ_KEY": "U" * 32, "PGROUP": "T", **properties})
                header = send_header(
                    "T", properties=text, sys_flag=sys_flag, born_timestamp=1_700_000_000_000
                )
                answer = await channel.invoke(
                    "", RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, header, b"body")
                )
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                message = store.look_message_by_offset(begin)
                assert message is not None
                found.append(
                    (
                        {name: text for name, text in answer.ext_fields.items() if name not in OWN},
                        {name: text for name, text in message.properties.items() if name != "TIMER_OUT_MS"},
                        message.body,
                        message.sys_flag,
                        message.topic,
                        message.queue_id,
                        message.born_timestamp,
                        message.born_host,
                    )
                )
        assert all(each == found[0] for each in found), found
        assert len(taken) == 3 and taken[-1] is usual

    on_a_backend(tmp_path, scene, flushDiskType=flush, timerWheelEnable="true")


OWN = ("msgId", "queueOffset", "recallHandle", "transactionId")
"""Of each message its own."""
