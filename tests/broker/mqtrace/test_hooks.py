"""Hooks see every send and delivery, may refuse sends, and cannot break anything else."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.mqtrace.hooks import (
    CONSUME_HOOKS,
    SEND_HOOKS,
    ConsumeMessageContext,
    Hooks,
    SendMessageContext,
    StatsType,
)
from mqlake.errors import ConfigError, ResponseError
from mqlake.formats.batch import encode_messages
from mqlake.formats.trace import MessageType
from mqlake.message import Message
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader
from tests.broker.fast.test_fast_send import CountedSends
from tests.broker.live import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    SUSPEND,
    Peer,
    make_controller,
    on_a_broker,
    send_header,
)
from tests.broker.live_broker import Client
from tests.broker.pop.popping import Popper
from tests.plugin_package import install
from tests.waiting import until_async

PROPERTIES = "KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01AC11\x02"


class Recorder:
    """Both kinds of hook."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, SendMessageContext]] = []
        self.consumes: list[tuple[str, ConsumeMessageContext]] = []
        self.refuse = ""

    def hook_name(self) -> str:
        return "Recorder"

    def send_message_before(self, context: SendMessageContext) -> None:
        context.mq_trace_context = len(self.sends)
        self.sends.append(("before", context))
        if context.topic == self.refuse:
            raise ResponseError(ResponseCode.NO_PERMISSION, "not today")

    def send_message_after(self, context: SendMessageContext) -> None:
        self.sends.append(("after", context))

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        assert context.messages is context.messages
        self.consumes.append(("before", context))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.consumes.append(("after", context))


def recorder_in(peer: Peer | Client) -> Recorder:
    recorder = Recorder()
    peer.controller.broker.hooks.register_send_message_hook(recorder)
    peer.controller.broker.hooks.register_consume_message_hook(recorder)
    return recorder


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_before_and_after(tmp_path: Path, flush: str) -> None:
    async def scene(peer: Peer) -> None:
        await peer.send("T")  # makes the topic
        recorder = recorder_in(peer)
        answer = await peer.send("T", b"12345", queue_id=2, properties=PROPERTIES)
        (when, context), (then, same) = recorder.sends
        assert (when, then, context is same) == ("before", "after", True)
        assert (context.producer_group, context.topic, context.body_length) == ("PG", "T", 5)
        assert context.msg_props == {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "AC11"}
        assert (context.msg_unique_key, context.msg_type) == ("AC11", MessageType.NORMAL_MSG)
        assert context.broker_addr == peer.address
        assert (context.broker_region_id, context.mq_trace_context) == ("DefaultRegion", 0)
        assert (context.msg_id, context.queue_id) == (answer.ext_fields["msgId"], 2)
        assert (context.queue_offset, context.code, context.error_msg) == (0, 0, "")
        assert (context.success, context.send_stat) == (True, StatsType.SEND_SUCCESS)
        stored = peer.controller.broker.store.look_message_by_id(context.msg_id)
        assert (context.send_msg_num, context.send_msg_size) == (1, stored.store_size)

    on_a_broker(tmp_path, scene, flushDiskType=flush)


def test_a_batch_has_the_keys_of_its_messages(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        messages = [Message("T", b"x", properties={"UNIQ_KEY": f"K{n}"}) for n in range(3)]
        header = send_header("T", batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, encode_messages(messages))
        _, context = recorder.sends[-1]
        assert context.msg_unique_key == "K0,K1,K2"
        assert (context.send_msg_num, context.msg_id) == (3, answer.ext_fields["msgId"])
        damaged = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, b"damaged")
        _, context = recorder.sends[-1]
        assert (context.msg_unique_key, context.code, context.success) == ("", damaged.code, False)

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ("__SHARDINGKEY\x01a\x02DELAY\x011\x02", MessageType.ORDER_MSG),
        ("DELAY\x011\x02", MessageType.DELAY_MSG),
        ("TRAN_MSG\x01true\x02", MessageType.TRANS_MSG_HALF),
        ("TRAN_MSG\x01false\x02", MessageType.NORMAL_MSG),
    ],
)
def test_the_kind_of_message(tmp_path: Path, properties: str, kind: MessageType) -> None:
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        await peer.send("T", properties=properties)
        assert recorder.sends[0][1].msg_type is kind

    on_a_broker(tmp_path, scene)


def test_a_hook_refuses_a_send_and_every_before_has_its_after(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        later = Recorder()
        peer.controller.broker.hooks.register_send_message_hook(later)
        recorder.refuse = "Secret"
        answer = await peer.send("Secret")
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not today")
        assert "Secret" not in peer.controller.broker.topic_config_manager.topic_config_table
        assert [when for when, _ in recorder.sends] == ["before", "after"]
        assert [when for when, _ in later.sends] == ["after"]
        context = recorder.sends[-1][1]
        assert (context.code, context.error_msg, context.success) == (
            ResponseCode.NO_PERMISSION,
            "not today",
            False,
        )
        refused = await peer.send("T", queue_id=99)  # by the broker itself
        context = recorder.sends[-1][1]
        assert (context.code, context.success, context.msg_id) == (refused.code, False, "")
        assert refused.code == ResponseCode.INVALID_PARAMETER

    on_a_broker(tmp_path, scene)


def test_a_hook_that_fails_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorder):
        def send_message_before(self, context: SendMessageContext) -> None:
            raise KeyError("before")

        send_message_after = consume_message_before = send_message_before  # type: ignore[assignment]

    async def scene(peer: Peer) -> None:
        hooks = peer.controller.broker.hooks
        hooks.register_send_message_hook(Broken())
        hooks.register_consume_message_hook(Broken())
        recorder = recorder_in(peer)
        for _ in range(3):
            assert (await peer.send("T")).code == 0
        await peer.dispatched()
        assert (await peer.pull("T")).code == 0
        assert len(recorder.sends) == 6
        assert len(recorder.consumes) == 1

    on_a_broker(tmp_path, scene)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.split(";")[0] for text in errors] == [
        f"hook Recorder: {method} failed"
        for method in ("send_message_before", "send_message_after", "consume_message_before")
    ]


def test_a_pull_and_a_message_sent_back(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for n in range(3):
            await peer.send("T", b"%d" % n, properties=f"UNIQ_KEY\x01K{n}\x02")
        await peer.dispatched()
        recorder = recorder_in(peer)
        answer = await peer.pull("T", 1)
        ((when, context),) = recorder.consumes
        assert (when, context.consumer_group, context.topic, context.queue_id) == ("before", "CG", "T", 0)
        assert (context.success, context.status, context.rcv_stat) == (True, "FOUND", StatsType.RCV_SUCCESS)
        assert (context.rcv_msg_num, context.rcv_msg_size) == (2, len(answer.body_bytes()))
        assert [message.body for message in context.messages] == [b"1", b"2"]
        assert context.message_ids == {"K1": 1, "K2": 2}

        moved = await peer.pull("T", 99)
        context = recorder.consumes[-1][1]
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert (context.success, context.rcv_stat, list(context.messages)) == (
            False,
            StatsType.RCV_EPOLLS,
            [],
        )

        offset = recorder.consumes[0][1].messages[0].physical_offset
        back = ConsumerSendMsgBackRequestHeader(offset=offset, group="CG", delay_level=2)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        when, context = recorder.consumes[-1]
        assert (when, context.topic, context.rcv_stat, context.success) == (
            "after",
            "T",
            StatsType.SEND_BACK,
            True,
        )
        assert (context.delay_level, list(context.message_ids)) == (2, ["K1"])
        dead = ConsumerSendMsgBackRequestHeader(offset=back.offset, group="CG", delay_level=-1)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead)).code == 0
        assert recorder.consumes[-1][1].rcv_stat is StatsType.SEND_BACK_TO_DLQ

    on_a_broker(tmp_path, scene)


def test_a_pop(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for queue_id in (0, 1, 1):
            await peer.send("T", b"body", queue_id=queue_id, properties=PROPERTIES)
        await peer.dispatched()
        recorder = recorder_in(peer)
        popper = Popper(peer)
        assert len((await popper.pop()).messages) == 3
        assert (await popper.pop()).messages == []
        seen = {context.queue_id: context for _, context in recorder.consumes}
        assert sorted(seen) == [0, 1]
        for queue_id, count in ((0, 1), (1, 2)):
            context = seen[queue_id]
            assert (context.consumer_group, context.topic, context.rcv_msg_num) == ("G", "T", count)
            assert (context.rcv_stat, context.success) == (StatsType.RCV_SUCCESS, True)
            assert [message.body for message in context.messages] == [b"body"] * count
            assert context.client_host.startswith("127.0.0.1:")

    on_a_broker(tmp_path, scene)


def test_a_pull_that_is_held_is_seen_when_it_is_answered(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await peer.send("T")
        await peer.dispatched()  # offset 1 is out of range until then, and such a pull is not held
        recorder = recorder_in(peer)
        flags = COMMIT_OFFSET | SUSPEND | SUBSCRIPTION
        pull = asyncio.ensure_future(peer.pull("T", 1, sys_flag=flags))
        hold = peer.controller.pull_request_hold_service
        await until_async(lambda: hold.held_count == 1)
        assert recorder.consumes == []
        await peer.send("T", b"2")
        assert (await pull).code == 0
        assert [context.rcv_msg_num for _, context in recorder.consumes] == [1]

    on_a_broker(tmp_path, scene)


def test_the_fast_paths_step_aside_only_while_there_is_a_hook(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        sends, pulls, *_ = peer.controller.server.fast_paths
        sends.load()
        sent: list[int] = []
        answered: list[str] = []
        sends.native = CountedSends(sends.native, sent)
        commit = pulls.commit

        def counted(*args: object) -> None:
            answered.append("pull")
            commit(*args)

        pulls.commit = counted
        await peer.send("T", properties=PROPERTIES)
        await peer.dispatched()

        async def both() -> list[str]:
            sent.clear()
            answered.clear()
            assert (await peer.send("T", properties=PROPERTIES)).code == 0
            assert (await peer.pull("T")).code == 0
            return ["send" for _ in sent] + answered

        assert await both() == ["send", "pull"]
        hooks = peer.controller.broker.hooks
        hooks.register_send_message_hook(Recorder())
        assert await both() == ["pull"]
        hooks.register_consume_message_hook(Recorder())
        assert await both() == []
        hooks.send.clear()
        hooks.consume.clear()
        assert await both() == ["send", "pull"]

    on_a_broker(tmp_path, scene)


def test_what_is_no_hook_is_refused() -> None:
    class Half:
        def hook_name(self) -> str:
            return "Half"

        def send_message_before(self, context: SendMessageContext) -> None: ...

    hooks = Hooks()
    with pytest.raises(TypeError, match="Half is not a SendMessageHook: it lacks send_message_after"):
        hooks.register_send_message_hook(Half())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it lacks consume_message_before, consume_message_after"):
        hooks.register_consume_message_hook(Half())  # type: ignore[arg-type]
    assert (hooks.send, hooks.consume) == ([], [])


PLUGIN = """
from tests.broker.mqtrace.test_hooks import Recorder
made = []
def make(broker):
    made.append((broker, Recorder()))
    return made[-1][1]
def broken(broker):
    raise RuntimeError("no licence")
"""


def test_hooks_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {SEND_HOOKS: "audit = acme_hooks:make", CONSUME_HOOKS: "audit = acme_hooks:make"}
    install(tmp_path, monkeypatch, "acme_hooks", PLUGIN, groups)

    async def scene(peer: Peer) -> None:
        import acme_hooks  # type: ignore[import-not-found]

        (broker, sends), (_, consumes) = acme_hooks.made
        assert broker is peer.controller.broker
        await peer.send("T")
        await peer.dispatched()
        await peer.pull("T")
        assert [when for when, _ in sends.sends] == ["before", "after"]
        assert [when for when, _ in consumes.consumes] == ["before"]

    on_a_broker(tmp_path, scene)


def test_a_broker_does_not_start_with_a_plugin_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "acme_hooks", PLUGIN, {SEND_HOOKS: "audit = acme_hooks:broken"})
    with pytest.raises(
        ConfigError, match=r"audit \(acme_hooks:broken of acme_hooks 1.2\).*RuntimeError: no licence"
    ):
        make_controller(tmp_path)
    assert not (tmp_path / "store").exists()


def test_the_guides_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = Path(__file__).parents[3] / "docs" / "broker.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(code, str(guide), "exec"), names)

    async def scene(peer: Peer) -> None:
        broker = peer.controller.broker
        broker.hooks.register_send_message_hook(names["make_hook"](broker))
        assert (await peer.send("Payroll")).remark == "only hr sends to Payroll"
        assert (await peer.send("Payroll", producer_group="hr", properties=PROPERTIES)).code == 0

    on_a_broker(tmp_path, scene)
    refused, sent = capsys.readouterr().out.splitlines()
    assert refused.endswith("False")
    assert sent.startswith("Payroll AC11 ")
    assert sent.endswith(" True")
