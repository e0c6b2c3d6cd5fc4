from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.broker.requests.recall_message import delete_key
from mqlake.message import TIMER_TOPIC
from mqlake.message.recall import RecallHandle, decode_recall_handle
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.produce import RecallMessageRequestHeader
from tests.broker.live import Peer, now_ms, on_a_broker
from tests.waiting import until_async


async def recall(peer: Peer, handle: str, topic: str = "T") -> object:
    header = RecallMessageRequestHeader(producer_group="PG", topic=topic, recall_handle=handle)
    return await peer.ask(RequestCode.RECALL_MESSAGE, header)


async def arrived(peer: Peer, topic: str, count: int) -> list[str]:
    store = peer.controller.broker.store

    def found() -> list[str]:
        return [
            message.properties["UNIQ_KEY"] for message in store.get_message("G", topic, 0, 0, 32).messages()
        ]

    await until_async(lambda: len(found()) >= count)
    return found()


def test_one_of_two_messages_is_recalled(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        due = now_ms() + 2500
        handles = {}
        for name in ("keep", "cancel", "keep-2"):
            sent = await peer.send("T", properties=f"UNIQ_KEY\x01{name}\x02TIMER_DELIVER_MS\x01{due}\x02")
            assert sent.code == ResponseCode.SUCCESS
            handles[name] = sent.ext_fields["recallHandle"]
        handle = decode_recall_handle(handles["cancel"])
        assert handle == RecallHandle("T", "broker-a", (due - 1) // 1000 * 1000 + 1, "cancel")
        answer = await recall(peer, handles["cancel"])
        assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "cancel")
        assert await arrived(peer, "T", 2) == ["keep", "keep-2"]
        assert now_ms() >= due
        timers = peer.controller.timers
        assert timers is not None
        assert (timers.delivered, timers.cancelled) == (2, 1)

    on_a_broker(tmp_path, scene, recallMessageEnable="true")


def test_a_send_that_is_due_at_once_has_no_handle(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        sent = await peer.send("T", properties="UNIQ_KEY\x01now\x02TIMER_DELAY_MS\x010\x02")
        assert "recallHandle" not in sent.ext_fields
        assert await arrived(peer, "T", 1) == ["now"]

    on_a_broker(tmp_path, scene)


def test_what_is_refused(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert (await peer.send("Other")).code == ResponseCode.SUCCESS
        good = now_ms() + 60_000
        for handle, topic, code, words in (
            (
                RecallHandle("T", "broker-a", good, "K").encode(),
                "No",
                ResponseCode.TOPIC_NOT_EXIST,
                "not exist",
            ),
            ("forged", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
            (
                RecallHandle("T", "broker-a", good, "K").encode(),
                "Other",
                ResponseCode.ILLEGAL_OPERATION,
                "of T",
            ),
            (
                RecallHandle("T", "broker-b", good, "K").encode(),
                "T",
                ResponseCode.ILLEGAL_OPERATION,
                "broker-b",
            ),
            (
                RecallHandle("T", "broker-a", 5, "K").encode(),
                "T",
                ResponseCode.ILLEGAL_OPERATION,
                "timestamp",
            ),
            (
                RecallHandle("T", "broker-a", good + 300_000_000, "K").encode(),
                "T",
                ResponseCode.ILLEGAL_OPERATION,
                "timestamp",
            ),
        ):
            answer = await recall(peer, handle, topic)
            assert (answer.code, words in answer.remark) == (code, True), answer
        assert peer.controller.broker.store.max_offset_in_queue(TIMER_TOPIC, 0) == 0

    on_a_broker(tmp_path, scene, recallMessageEnable="true")


def test_from_one_millisecond_before_it_is_due_to_the_longest_delay(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        broker, now = peer.controller.broker, now_ms()
        longest = broker.store_config.timer_max_delay_sec * 1000
        for left, ahead, code in (  # of the timer's own clock, which goes on
            (0, 60_000, ResponseCode.ILLEGAL_OPERATION),
            (1, 60_000, ResponseCode.SUCCESS),
            (longest - 1, -60_000, ResponseCode.SUCCESS),
            (longest, -60_000, ResponseCode.ILLEGAL_OPERATION),
        ):
            broker.clock_ms = lambda shown=now + ahead: shown
            due = now + ahead + left
            answer = await recall(peer, RecallHandle("T", "broker-a", due, "K").encode())
            assert answer.code == code, (left, answer.remark)

    on_a_broker(tmp_path, scene, recallMessageEnable="true")


@pytest.mark.parametrize("allowed", [True, False])
def test_a_broker_that_may_not_be_written_recalls_if_it_may(tmp_path: Path, allowed: bool) -> None:
    async def scene(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        broker = peer.controller.broker
        broker.config = broker.config.replaced({"brokerPermission": "4"})
        answer = await recall(peer, RecallHandle("T", "broker-a", now_ms() + 3_600_000, "K").encode())
        expected = ResponseCode.SUCCESS if allowed else ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.code == expected, answer.remark

    settings = {"allowRecallWhenBrokerNotWriteable": str(allowed).lower()}
    on_a_broker(tmp_path, scene, recallMessageEnable="true", **settings)


def test_the_key_that_cancels() -> None:
    handle = RecallHandle("T", "broker-a", 5, "K")
    assert delete_key(handle, append_topic=True) == "T+K"
    assert delete_key(handle, append_topic=False) == "K"


def test_unless_enabled_nothing_is_recalled(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        answer = await recall(peer, RecallHandle("T", "broker-a", now_ms() + 60_000, "K").encode())
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "recallMessageEnable" in answer.remark

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("setting", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_the_figures_of_the_timers(tmp_path: Path, setting: str) -> None:
    async def scene(peer: Peer) -> None:
        for number in range(5):
            due = now_ms() + 3_600_000 * (number + 1)
            sent = await peer.send("T", properties=f"UNIQ_KEY\x01{number}\x02TIMER_DELIVER_MS\x01{due}\x02")
            assert sent.code == ResponseCode.SUCCESS
        timers = peer.controller.timers
        assert timers is not None
        await until_async(lambda: timers.all_congest_num == 5)
        info = peer.controller.admin_processor
        metrics = await peer.ask(RequestCode.GET_TIMER_METRICS)
        assert b'"timingCount":{"T":{"count":5,' in bytes(metrics.body)
        check_point = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        assert len(check_point.body) == 56
        assert timers.pending_within([7_000, 10_000, 100_000]) == [1, 2, 5]
        assert timers.runtime_info()["timerCongestNum"] == "5"
        assert info is not None

    on_a_broker(tmp_path, scene, flushDiskType=setting)
