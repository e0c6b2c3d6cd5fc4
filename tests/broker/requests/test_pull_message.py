from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from mqlake.broker.mqtrace.hooks import ConsumeMessageContext
from mqlake.broker.services.pull_request_hold import PullRequest, PullRequestHoldService
from mqlake.formats.record import decode_record
from mqlake.message import tags_code
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.client import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import PullMessageResponseHeader
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.store_view import StoreView
from tests.broker.live import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, Peer, on_a_broker, pull_header
from tests.store.small_store import flip, log_file
from tests.waiting import PATIENCE_S, until_async


def bodies(answer: RemotingCommand) -> list[bytes]:
    data = memoryview(answer.body_bytes())
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_record(data[:size]).body)
        data = data[size:]
    return found


def place(answer: RemotingCommand) -> tuple[int, int, int]:
    header = answer.decode_header(PullMessageResponseHeader)
    return header.next_begin_offset, header.min_offset, header.max_offset


async def sent(peer: Peer, topic: str = "T", count: int = 5, **fields: object) -> None:
    for n in range(count):
        answer = await peer.send(topic, b"%d" % n, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    await peer.dispatched()


async def heartbeat(
    peer: Peer,
    topic: str = "T",
    expression: str = "*",
    *,
    kind: str = "TAG",
    version: int = 1,
    model: MessageModel = MessageModel.CLUSTERING,
) -> None:
    tags = {tag.strip() for tag in expression.split("||")} if kind == "TAG" and expression != "*" else set()
    data = HeartbeatData(
        client_id="client",
        consumer_data_set=[
            ConsumerData(
                group_name="CG",
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=model,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                subscription_data_set=[
                    SubscriptionData(
                        topic=topic,
                        sub_string=expression,
                        tags_set=tags,
                        code_set={tags_code(tag) for tag in tags},
                        sub_version=version,
                        expression_type=kind,
                    )
                ],
            )
        ],
    )
    answer = await peer.ask(RequestCode.HEART_BEAT, None, data.to_json())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_records_come_as_they_lie_in_the_log(tmp_path, code):
    async def scene(peer: Peer) -> None:
        await sent(peer)
        answer = await peer.ask(code, pull_header("T", 1, max_msg_nums=3))
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert place(answer) == (4, 0, 5)
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        result = peer.controller.broker.store.get_message("CG", "T", 0, 1, 3)
        assert answer.body_bytes() == b"".join(result.buffers)
        assert bodies(answer) == [b"1", b"2", b"3"]
        stats = peer.controller.broker.broker_stats_manager
        await until_async(lambda: stats.item("GROUP_GET_NUMS", "T@CG") is not None)
        assert stats.item("GROUP_GET_NUMS", "T@CG").value == 3
        assert stats.item("GROUP_GET_FALL_SIZE", "0@T@CG").value > 0

    on_a_broker(tmp_path, scene)


def test_what_is_not_there(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=3)
        for queue_id, offset, code, status, following in [
            (0, 0, ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE", 0),
            (0, 7, ResponseCode.PULL_OFFSET_MOVED, "NO_MATCHED_LOGIC_QUEUE", 0),
            (3, 1, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 1),
            (3, 9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 1),
            (3, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        ]:
            await peer.dispatched()
            answer = await peer.pull("T", offset, queue_id=queue_id)
            assert (answer.code, answer.remark) == (code, status)
            assert place(answer)[0] == following

    on_a_broker(tmp_path, scene)


def test_a_filter_that_nothing_passes_goes_on_behind_it(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, properties="TAGS\x01A\x02")
        answer = await peer.pull("T", subscription="B || C")
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert place(answer)[0] == 5
        assert len(bodies(await peer.pull("T", subscription="B||A"))) == 5

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_offsets_that_come_with_a_pull_are_committed(tmp_path, code):
    async def scene(peer: Peer) -> None:
        await sent(peer)
        offsets = peer.controller.broker.consumer_offset_manager
        await peer.ask(code, pull_header("T", 3, commit_offset=2))
        assert offsets.query_offset("CG", "T", 0) == -1
        assert offsets.query_pull_offset("CG", "T", 0) == 5
        await peer.ask(code, pull_header("T", 1, max_msg_nums=1))
        assert offsets.query_pull_offset("CG", "T", 0) == 2
        await peer.ask(code, pull_header("T", 3, commit_offset=2, sys_flag=SUBSCRIPTION | COMMIT_OFFSET))
        assert offsets.query_offset("CG", "T", 0) == 2

    on_a_broker(tmp_path, scene)


class _SeesPulls:
    """A hook: with one, every pull takes the slow path."""

    def hook_name(self) -> str:
        return "sees-pulls"

    def consume_message_before(self, context: ConsumeMessageContext) -> None: ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None: ...


def test_the_slow_path_commits_counts_and_logs_a_pull_once(tmp_path, caplog):
    async def scene(peer: Peer) -> None:
        await sent(peer)
        broker = peer.controller.broker
        broker.hooks.register_consume_message_hook(_SeesPulls())
        offsets, code = broker.consumer_offset_manager, RequestCode.PULL_MESSAGE
        flags = {"sys_flag": SUBSCRIPTION | COMMIT_OFFSET}
        assert len(bodies(await peer.ask(code, pull_header("T", 2, commit_offset=2)))) == 3
        assert offsets.query_offset("CG", "T", 0) == -1
        assert len(bodies(await peer.ask(code, pull_header("T", 2, commit_offset=2, **flags)))) == 3
        assert offsets.query_offset("CG", "T", 0) == 2
        counted = broker.broker_stats_manager.item("GROUP_GET_NUMS", "T@CG")
        assert (counted.times, counted.value) == (2, 6)
        late = broker.broker_stats_manager.item("GROUP_GET_FALL_TIME", "0@T@CG")
        assert late is not None and late.value >= 0
        assert broker.broker_stats_manager.item("GROUP_GET_FALL_SIZE", "0@T@CG").value == 0
        assert "becomes" not in caplog.text
        moved = await peer.pull("T", 99)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert "CG: offset 99 of T-0 becomes 5" in caplog.text

    caplog.set_level(logging.INFO, logger="mqlake.broker.requests.pull_message")
    on_a_broker(tmp_path, scene)


def test_a_held_pull_commits_its_offset_when_it_comes_and_not_again_when_it_is_answered(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        offsets = peer.controller.broker.consumer_offset_manager
        flags = SUBSCRIPTION | SUSPEND | COMMIT_OFFSET
        header = pull_header("T", 1, commit_offset=1, sys_flag=flags, suspend_timeout_millis=600_000)
        held = asyncio.ensure_future(peer.ask(RequestCode.PULL_MESSAGE, header))
        await until_async(lambda: offsets.query_offset("CG", "T", 0) == 1)
        offsets.commit_offset("another client", "CG", "T", 0, 7)
        await peer.send("T", b"awaited")
        assert bodies(await held) == [b"awaited"]
        assert offsets.query_offset("CG", "T", 0) == 7

    on_a_broker(tmp_path, scene)


def test_tags_are_found_where_the_extension_of_the_queue_has_them(tmp_path):
    async def scene(peer: Peer) -> None:
        for body, tag in ((b"0", "A"), (b"1", "B"), (b"2", "A")):
            await peer.send("T", body, properties=f"TAGS\1{tag}\2")
        await peer.dispatched()
        assert bodies(await peer.pull("T", subscription="A")) == [b"0", b"2"]
        assert bodies(await peer.pull("T", subscription="B || C")) == [b"1"]
        sql = await peer.pull("T", subscription="TAGS = 'A'", expression_type="SQL92")
        assert bodies(sql) == [b"0", b"2"]
        waits = {"subscription": "B", "sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 600_000}
        held = asyncio.ensure_future(peer.pull("T", 3, **waits))
        await until_async(lambda: peer.controller.pull_request_hold_service.holds_any)
        await peer.send("T", b"3", properties="TAGS\1A\2")
        await peer.send("T", b"4", properties="TAGS\1B\2")
        assert bodies(await held) == [b"4"]

    on_a_broker(tmp_path, scene, enableConsumeQueueExt="true", enablePropertyFilter="true")


def test_only_a_pull_that_may_be_held_and_finds_nothing_is(tmp_path):
    """A day would be the limit."""
    day = {"suspend_timeout_millis": 1000 * 3600 * 24}

    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        nothing = await peer.ask(RequestCode.LITE_PULL_MESSAGE, pull_header("T", 1, **day))
        assert nothing.code == ResponseCode.PULL_NOT_FOUND
        may_be_held = pull_header("T", 0, sys_flag=SUBSCRIPTION | SUSPEND, **day)
        assert bodies(await peer.ask(RequestCode.LITE_PULL_MESSAGE, may_be_held)) == [b"0"]

    on_a_broker(tmp_path, scene)


def test_a_pull_is_held_as_long_as_it_says(tmp_path, monkeypatch):
    held: list[float] = []
    suspend = PullRequestHoldService.suspend_pull_request

    def seen(service: PullRequestHoldService, topic: str, queue_id: int, pull: PullRequest) -> None:
        held.append(pull.deadline - asyncio.get_running_loop().time())
        suspend(service, topic, queue_id, pull)

    monkeypatch.setattr(PullRequestHoldService, "suspend_pull_request", seen)

    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        pull = asyncio.create_task(
            peer.pull("T", 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=3_600_000)
        )
        await until_async(lambda: held)
        await sent(peer, count=1)
        assert bodies(await pull) == [b"0"]

    on_a_broker(tmp_path, scene)
    assert 3000 < round(held[0], 6) <= 3600


def test_without_long_polling_a_pull_is_held_for_a_short_while(tmp_path):
    """However long its client would wait."""

    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        answer = await peer.pull(
            "T", 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=1000 * 3600 * 24
        )
        assert answer.code == ResponseCode.PULL_NOT_FOUND and place(answer)[0] == 1

    on_a_broker(tmp_path, scene, longPollingEnable="false", shortPollingTimeMills="1")


def test_an_operators_reset_is_told_once(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer)
        peer.controller.broker.consumer_offset_manager.assign_reset_offset("T", "CG", 0, 1)
        answer = await peer.pull("T", 5)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert place(answer) == (1, 0, 5)
        assert (await peer.pull("T", 1)).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_who_may_not_is_told_whose_permission_is_missing(tmp_path):
    async def scene(peer: Peer) -> None:
        controller = peer.controller
        await sent(peer)
        groups, topics = controller.broker.subscription_group_manager, controller.broker.topic_config_manager

        async def refused(forbidden_type: int, **fields: object) -> None:
            answer = await peer.pull("T", **fields)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.ext_fields["forbiddenType"] == str(forbidden_type), answer.remark

        controller.broker.config = controller.broker.config.replaced({"brokerPermission": "2"})
        await refused(1)
        controller.broker.config = controller.broker.config.replaced(
            {"brokerPermission": "6", "litePullMessageEnable": "false"}
        )
        answer = await peer.ask(RequestCode.LITE_PULL_MESSAGE, pull_header("T"))
        assert answer.ext_fields["forbiddenType"] == "1"
        groups.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="CG", consume_enable=False)
        )
        await refused(2)
        groups.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="CG", consume_broadcast_enable=False)
        )
        topics.update_topic_config(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=2))
        await refused(3)
        topics.update_topic_config(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        await heartbeat(peer, model=MessageModel.BROADCASTING)
        await refused(4, sys_flag=0)
        groups.update_subscription_group_config(SubscriptionGroupConfig(group_name="CG"))
        groups.update_forbidden("CG", "T", 0, True)
        await refused(5, sys_flag=0)

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"consumer_group": "no spaces"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no spaces"),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "readQueueNums:[4]"),
        ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1]"),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "CG"),
        (
            {"expression_type": "SQL92", "subscription": "a > 1"},
            ResponseCode.SYSTEM_ERROR,
            "enablePropertyFilter",
        ),
    ],
)
def test_what_is_refused_says_why(tmp_path, fields, code, words):
    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        answer = await peer.pull(**{"topic": "T", **fields})
        assert answer.code == code
        assert words in answer.remark

    on_a_broker(tmp_path, scene)


def test_heartbeats_say_what_a_group_subscribes_to(tmp_path):
    async def scene(peer: Peer) -> None:
        for tag in "AB":
            await sent(peer, count=2, properties=f"TAGS\x01{tag}\x02")
        await heartbeat(peer, expression="B", version=5)
        assert bodies(await peer.pull("T", sys_flag=0, sub_version=5)) == [b"0", b"1"]
        assert (await peer.pull("T", sys_flag=0, sub_version=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await sent(peer, "Other", 1)
        assert (await peer.pull("Other", sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    on_a_broker(tmp_path, scene)


def test_filters_by_expression(tmp_path):
    async def scene(peer: Peer) -> None:
        for n in range(4):
            await sent(peer, count=1, properties=f"price\x01{n}\x02")
        sql = {"expression_type": "SQL92", "subscription": "price BETWEEN 1 AND 2"}
        assert place(await peer.pull("T", **sql))[0] == 4
        assert len(bodies(await peer.pull("T", **sql))) == 2
        missing = await peer.pull("T", sys_flag=0)
        assert missing.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await heartbeat(peer, expression="price > 2", kind="SQL92", version=3)
        assert len(bodies(await peer.pull("T", sys_flag=0, sub_version=3))) == 1

    on_a_broker(tmp_path, scene, enablePropertyFilter="true")


def test_a_group_that_only_pulls_is_known_by_its_pulls(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        await peer.pull("T", subscription="A")
        known = peer.controller.broker.consumer_manager.find_subscription_data("CG", "T")
        assert known.sub_string == "A" and known.code_set == {tags_code("A")}
        group = peer.controller.broker.consumer_manager.get_consumer_group_info("CG", True)
        assert group.message_model is MessageModel.CLUSTERING
        assert group.consume_type is ConsumeType.CONSUME_PASSIVELY

    on_a_broker(tmp_path, scene)


def test_pull_consumers_can_be_refused(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        answer = await peer.pull("T")
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert "rejectPullConsumerEnable" in answer.remark
        assert (await peer.pull("T", consumer_group="TOOLS_CONSUMER")).code == ResponseCode.SUCCESS
        await heartbeat(peer)
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene, rejectPullConsumerEnable="true")


def test_the_records_of_an_answer_outlive_their_file(tmp_path):
    async def scene(peer: Peer) -> None:
        for _ in range(5):
            await peer.send("T", bytes(1 << 20))
        await peer.dispatched()
        store = peer.controller.broker.store
        result = store.get_message("CG", "T", 0, 0, 1)
        await asyncio.to_thread(store.flush)
        store.commit_log_files.mapped_files[0].destroy()
        assert decode_record(result.buffers[0]).body == bytes(1 << 20)

    on_a_broker(tmp_path, scene)


def test_many_pulls_at_once(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, count=20)
        answers = await asyncio.gather(*(peer.pull("T", n % 20, max_msg_nums=1) for n in range(200)))
        assert [bodies(answer) for answer in answers] == [[b"%d" % (n % 20)] for n in range(200)]

    on_a_broker(tmp_path, scene)


def test_messages_that_are_only_on_the_disk_hold_up_nobody(tmp_path, monkeypatch):
    waited: list[str] = []
    read_ahead = StoreView.read_ahead

    def seen(self: StoreView, *place: object) -> None:
        waited.append(threading.current_thread().name)
        read_ahead(self, *place)

    monkeypatch.setattr(StoreView, "read_ahead", seen)

    async def fill(peer: Peer) -> None:
        await sent(peer, count=6)
        for _ in range(40):
            await peer.send("T", bytes(100_000), queue_id=1)

    async def drain(peer: Peer) -> None:
        answer = await peer.pull(
            "T", 2, max_msg_nums=3, sys_flag=SUBSCRIPTION | COMMIT_OFFSET, commit_offset=2
        )
        assert bodies(answer) == [b"2", b"3", b"4"]
        assert peer.controller.broker.consumer_offset_manager.query_offset("CG", "T", 0) == 2
        assert bodies(await peer.pull("T", 5)) == [b"5"]

    small = {"mappedFileSizeCommitLog": "1m"}  # the start reads the last file only
    on_a_broker(tmp_path, fill, **small)
    for file in (tmp_path / "store" / "commitlog").iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    on_a_broker(tmp_path, drain, **small)
    assert len(waited) <= 1 and "MainThread" not in waited
    monkeypatch.setattr(MappedFile, "is_resident", lambda self, position: False)
    on_a_broker(tmp_path, drain, **small)
    assert len(waited) >= 2 and "MainThread" not in waited


def test_a_damaged_message_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Size, magic, queue, queue offset, place, a length or the topic of message 16: it is passed over, and said."""

    async def scene(peer: Peer) -> None:
        await sent(peer, "Topic", 33)
        store = peer.controller.broker.store
        unit = store.consume_queues.get("Topic", 0).get(16)
        log = log_file(tmp_path / "store")
        for position in (0, 7, 15, 27, 35, 87, 93):
            flip(log, unit.physical_offset + position, 3)
            answer = await peer.pull("Topic", 0, max_msg_nums=40)
            assert bodies(answer) == [b"%d" % n for n in range(33) if n != 16]
            assert place(answer)[0] == 33
            # alone: the client goes on behind it at once, as behind what a filter leaves out
            answer = await peer.pull("Topic", 16, max_msg_nums=1)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and place(answer)[0] == 17
            flip(log, unit.physical_offset + position, 3)
        [line] = [record.getMessage() for record in caplog.records if "corrupt" in record.getMessage()]
        assert line.startswith(f"{log}: corrupt at byte {unit.physical_offset}: message 16 of Topic-0")

    on_a_broker(tmp_path, scene)


def test_a_held_pull_goes_on_behind_damage(tmp_path: Path) -> None:
    """The only message that came is damaged before the pull is answered."""

    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        hold = peer.controller.pull_request_hold_service
        store = peer.controller.broker.store
        pull = asyncio.create_task(peer.pull("T", 1, sys_flag=SUBSCRIPTION | SUSPEND))
        await until_async(lambda: hold.held_count == 1)
        notify, hold.notify_message_arriving = hold.notify_message_arriving, lambda topic, queue_id: None
        await sent(peer, count=1)
        unit = store.consume_queues.get("T", 0).get(1)
        flip(log_file(tmp_path / "store"), unit.physical_offset + 15)
        hold.notify_message_arriving = notify
        notify("T", 0)
        answer = await pull
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and place(answer)[0] == 2

    on_a_broker(tmp_path, scene)


def test_bodies_are_checked_when_the_setting_says_so(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer)
        store = peer.controller.broker.store
        flip(log_file(tmp_path / "store"), store.consume_queues.get("T", 0).get(2).physical_offset + 88)
        assert len((await peer.pull("T")).body_bytes()) == 5 * store.consume_queues.get("T", 0).get(2).size
        changed = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"pullCheckCrc=true")
        assert changed.code == ResponseCode.SUCCESS, changed.remark
        assert bodies(await peer.pull("T")) == [b"0", b"1", b"3", b"4"]
        assert store.damage.count == 1

    on_a_broker(tmp_path, scene)


def test_a_pull_that_does_not_wait_finds_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one moved back that is held but begins behind what is dispatched."""

    async def scene(peer: Peer) -> None:
        await sent(peer, count=1)
        monkeypatch.setattr("mqlake.store.dispatch.RELAXED_S", PATIENCE_S)
        for last in (2, 4, 6):
            for number in (last - 1, last):
                assert (await peer.send("T", b"%d" % number)).code == ResponseCode.SUCCESS
            assert bodies(await peer.pull("T", last, sys_flag=SUBSCRIPTION)) == [b"%d" % last]
        assert [(await peer.send("T", b"%d" % number)).code for number in (7, 8)] == [0, 0]
        held = asyncio.create_task(peer.pull("T", 9, sys_flag=SUBSCRIPTION | SUSPEND))
        await until_async(lambda: peer.controller.pull_request_hold_service.holds_any, "it is held")
        assert (await peer.send("T", b"9")).code == ResponseCode.SUCCESS
        assert bodies(await held) == [b"9"]

    on_a_broker(tmp_path, scene)
