from __future__ import annotations

import asyncio
import os

import pytest

from mqlake.broker.requests.send_message import ANSWER_REST_MAX, disk_text
from mqlake.formats.batch import encode_messages
from mqlake.formats.record import decode_record
from mqlake.message import Message, MessageSysFlag, decode_message_id
from mqlake.message.recall import decode_recall_handle
from mqlake.remoting.bodies.topic import TOPIC_SYS_FLAG_UNIT, TOPIC_SYS_FLAG_UNIT_SUB, TopicFilterType
from mqlake.remoting.codec import FRAME_SIZE_MAX
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.produce import SendMessageResponseHeader
from mqlake.store.results import PutMessageStatus
from tests.broker.live import Peer, on_a_broker, send_header
from tests.broker.mqtrace.test_hooks import recorder_in
from tests.broker.puts import Puts
from tests.disks import statvfs_of
from tests.waiting import until_async


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


@pytest.mark.parametrize("v1", [True, False])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_message_is_stored_as_it_was_sent(tmp_path, v1, flush):
    async def scene(peer: Peer) -> None:
        header = send_header(
            "T",
            v1=v1,
            queue_id=3,
            flag=7,
            reconsume_times=2,
            properties=properties(TAGS="A", KEYS="k", POP_CK="x"),
        )
        code = RequestCode.SEND_MESSAGE if v1 else RequestCode.SEND_MESSAGE_V2
        answer = await peer.ask(code, header, b"body")
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        assert answer.ext_fields["TRACE_ON"] == "true"
        said = answer.decode_header(SendMessageResponseHeader)
        assert (said.queue_id, said.queue_offset) == (3, 0)
        stored = peer.controller.broker.store.look_message_by_id(said.msg_id)
        assert decode_message_id(said.msg_id)[0] == ("127.0.0.1", peer.controller.port)
        assert (stored.topic, stored.queue_id, stored.body, stored.flag) == ("T", 3, b"body", 7)
        assert (stored.reconsume_times, stored.born_timestamp) == (2, header.born_timestamp)
        assert stored.born_host[0] == "127.0.0.1"
        assert stored.properties == {
            "TAGS": "A",
            "KEYS": "k",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
            "UNIQ_KEY": said.transaction_id,
        }
        assert peer.controller.broker.topic_config_manager.select_topic_config("T").write_queue_nums == 4

    on_a_broker(tmp_path, scene, flushDiskType=flush)


def test_the_clients_own_key_is_kept(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T", properties=properties(UNIQ_KEY="MINE"))
        assert answer.ext_fields["transactionId"] == "MINE"

    on_a_broker(tmp_path, scene)


def test_the_broker_chooses_a_queue_when_the_client_does_not(tmp_path):
    async def scene(peer: Peer) -> None:
        answers = [await peer.send("T", queue_id=-1) for _ in range(40)]
        assert {int(answer.ext_fields["queueId"]) for answer in answers} == {0, 1, 2, 3}
        peer.controller.broker.topic_config_manager.update_topic_config(_topic("R", write_queue_nums=0))
        answer = await peer.send("R", queue_id=-1)
        assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")

    on_a_broker(tmp_path, scene)


def test_many_sends_of_one_read_are_answered_in_order(tmp_path):
    async def scene(peer: Peer) -> None:
        answers = await asyncio.gather(*(peer.send("T", b"%d" % n) for n in range(300)))
        assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(300))

    on_a_broker(tmp_path, scene)
    on_a_broker(tmp_path / "sync", scene, flushDiskType="SYNC_FLUSH")


def test_a_batch_becomes_records_of_its_own(tmp_path):
    async def scene(peer: Peer) -> None:
        body = encode_messages([Message("T", b"%d" % n, tags="A") for n in range(5)])
        await peer.send("T")
        header = send_header("T", batch=True, properties=properties(WAIT="true"))
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        said = answer.decode_header(SendMessageResponseHeader)
        assert said.queue_offset == 1
        ids = said.msg_id.split(",")
        stored = [peer.controller.broker.store.look_message_by_id(each) for each in ids]
        assert [each.body for each in stored] == [b"0", b"1", b"2", b"3", b"4"]
        assert [each.queue_offset for each in stored] == [1, 2, 3, 4, 5]
        assert stored[0].tags == "A" and stored[0].properties["CLUSTER"] == "DefaultCluster"

    on_a_broker(tmp_path, scene)


LIGHT = [{"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}, {"__LITE_TOPIC": "child"}]


@pytest.mark.parametrize("light", LIGHT, ids=["light queues", "a lite topic"])
def test_messages_for_light_queues_are_refused_before_they_are_stored(tmp_path, light):
    """Nothing dispatches them: stored, they would be acknowledged and reach nobody."""
    kinds = {
        "plain": light,
        "a half message": {**light, "TRAN_MSG": "true", "PGROUP": "G"},
        "scheduled": {**light, "DELAY": "3"},
        "a timer": {**light, "TIMER_DELAY_SEC": "5"},
    }

    async def scene(peer: Peer) -> None:
        size = peer.controller.broker.store.commit_log_files.max_offset
        for name, given in kinds.items():
            answer = await peer.send("T", properties=properties(**given))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, name
            assert next(iter(light)) in answer.remark and "light queues" in answer.remark
        own, usual = Message("T", b"1"), Message("T", b"0")
        own.properties.update(light)
        for items, shared in (([usual, own], ""), ([usual], properties(**light))):
            answer = await peer.ask(
                RequestCode.SEND_BATCH_MESSAGE,
                send_header("T", batch=True, properties=shared),
                encode_messages(items),
            )
            assert (answer.code, "light queues" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE, send_header("T", v1=True, properties=shared))
        assert (answer.code, "light queues" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        answer = await peer.send("%LMQ%a")
        assert (answer.code, "light queue" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert peer.controller.broker.store.commit_log_files.max_offset == size

    on_a_broker(tmp_path, scene)


def test_a_retry_of_a_message_that_was_in_light_queues_reaches_its_group(tmp_path):
    """RocketMQ's broker may have stored it; a retry is for the group alone."""

    async def scene(peer: Peer) -> None:
        answer = await peer.send("%RETRY%G", properties=properties(**LIGHT[0]))
        assert answer.code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_text_that_only_mentions_light_queues_is_no_reason(tmp_path):
    async def scene(peer: Peer) -> None:
        body = encode_messages([Message("T", b"INNER_MULTI_DISPATCH\x01a\x02", keys="__LITE_TOPIC")])
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
        assert answer.code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_a_batch_is_answered_with_all_its_ids_however_many(tmp_path):
    count = 40_000  # 1.3 MB of ids

    async def scene(peer: Peer) -> None:
        body = encode_messages([Message("T", b"")]) * count
        header = send_header("T", batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        assert answer.code == ResponseCode.SUCCESS
        ids = answer.decode_header(SendMessageResponseHeader).msg_id.split(",")
        assert len(set(ids)) == count
        last = peer.controller.broker.store.look_message_by_id(ids[-1])
        assert last.queue_offset == count - 1

    on_a_broker(tmp_path, scene, mappedFileSizeCommitLog="16m", mappedFileSizeConsumeQueue="1m")


def test_a_batch_whose_answer_no_frame_holds_is_refused_before_it_is_stored(tmp_path):
    count = (FRAME_SIZE_MAX - ANSWER_REST_MAX) // 33 + 1

    async def scene(peer: Peer) -> None:
        body = encode_messages([Message("T", b"")]) * count
        header = send_header("T", batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"has room for the ids of {count - 1}" in (answer.remark or "")
        assert peer.controller.broker.store.max_phy_offset == 0

    on_a_broker(tmp_path, scene, mappedFileSizeCommitLog="16m", maxMessageSize="15m")


@pytest.mark.parametrize(
    ("body", "given", "sys_flag", "code"),
    [
        (encode_messages([Message("T", b"x")]), {"DELAY": "3"}, 0, ResponseCode.MESSAGE_ILLEGAL),
        (encode_messages([Message("T", b"x")]), {}, 4, ResponseCode.MESSAGE_ILLEGAL),
        (encode_messages([Message("T", b"x")])[:-1], {}, 0, ResponseCode.SYSTEM_ERROR),
        (encode_messages([Message("T", b"x")]) + b"x", {}, 0, ResponseCode.SYSTEM_ERROR),
        (b"", {}, 0, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_batches_that_may_not_be_and_batches_that_are_none(tmp_path, body, given, sys_flag, code):
    """RocketMQ refuses the one and fails at the other; clients tell them apart."""

    async def scene(peer: Peer) -> None:
        header = send_header("T", batch=True, properties=properties(**given), sys_flag=sys_flag)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        assert answer.code == code, answer.remark
        assert peer.controller.broker.store.max_phy_offset == 0

    on_a_broker(tmp_path, scene)


def test_a_key_of_its_own_makes_no_inner_batch(tmp_path):
    """The topic does, where it keeps them."""

    async def scene(peer: Peer) -> None:
        body = encode_messages([Message("T", b"%d" % n) for n in range(3)])
        header = send_header("T", batch=True, properties=properties(UNIQ_KEY="U"))
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)
        assert answer.code == ResponseCode.SUCCESS
        store = peer.controller.broker.store
        stored = [store.look_message_by_id(each) for each in answer.ext_fields["msgId"].split(",")]
        assert [(each.queue_offset, each.body) for each in stored] == [(0, b"0"), (1, b"1"), (2, b"2")]

    on_a_broker(tmp_path, scene)


def test_an_inner_batch_is_one_record(tmp_path):
    async def scene(peer: Peer) -> None:
        peer.controller.broker.topic_config_manager.update_topic_config(
            _topic("B", attributes={"+queue.type": "BatchCQ"})
        )
        body = encode_messages([Message("B", b"%d" % n) for n in range(3)])
        header = send_header("B", batch=True, properties=properties(UNIQ_KEY="U"))
        said = [
            (await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body)).decode_header(
                SendMessageResponseHeader
            )
            for _ in range(2)
        ]
        assert [each.queue_offset for each in said] == [0, 3]
        assert [each.batch_uniq_id for each in said] == ["U", "U"]
        stored = peer.controller.broker.store.look_message_by_id(said[1].msg_id)
        assert stored.properties["INNER_NUM"] == "3" and stored.sys_flag & 0xC0 == 0xC0
        refused = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body[:-1])
        assert refused.code == ResponseCode.SYSTEM_ERROR

    on_a_broker(tmp_path, scene)


def _topic(name: str, **fields):
    from mqlake.remoting.bodies.topic import TopicConfig

    return TopicConfig(topic_name=name, **{"read_queue_nums": 4, "write_queue_nums": 4, **fields})


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "no spaces"}, ResponseCode.INVALID_PARAMETER, "' '"),
        ({"topic": "T" * 128}, ResponseCode.INVALID_PARAMETER, "127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"topic": "T", "default_topic": "nobody"}, ResponseCode.TOPIC_NOT_EXIST, "apply first"),
        ({"topic": "T", "queue_id": 4}, ResponseCode.INVALID_PARAMETER, "has 4 queues"),
        (
            {"topic": "T", "properties": "TRAN_MSG\x01true\x02DELAY\x013\x02"},
            ResponseCode.MESSAGE_ILLEGAL,
            "cannot be delayed",
        ),
        ({"topic": "T", "sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG=true is missing"),
        (
            {"topic": "T", "properties": "TRAN_MSG\x01true\x02TIMER_DELAY_MS\x013\x02"},
            ResponseCode.MESSAGE_ILLEGAL,
            "cannot be delayed",
        ),
        (
            {"topic": "T", "properties": "TIMER_DELAY_SEC\x01259201\x02"},
            ResponseCode.MESSAGE_ILLEGAL,
            "bigger than the max delay 259200000ms",
        ),
        ({"topic": "T", "properties": "TIMER_DELAY_MS\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "'x'"),
        ({"topic": "T", "properties": "DELAY\x01x\x02"}, ResponseCode.SYSTEM_ERROR, "'x'"),
        ({"topic": "T", "properties": "K\x01" + "v" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
    ],
)
def test_what_is_refused_says_why(tmp_path, fields, code, words):
    async def scene(peer: Peer) -> None:
        answer = await peer.send(**fields)
        assert answer.code == code
        assert words in answer.remark
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_refused_by_configuration(tmp_path):
    async def closed(peer: Peer) -> None:
        answer = await peer.send("T")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "autoCreateTopicEnable" in answer.remark
        peer.controller.broker.topic_config_manager.update_topic_config(_topic("Ordered", order=True, perm=6))
        assert (await peer.send("Ordered")).code == ResponseCode.SUCCESS
        peer.controller.broker.topic_config_manager.update_topic_config(_topic("Any", perm=6))
        peer.controller.broker.config = peer.controller.broker.config.replaced({"brokerPermission": "4"})
        assert (await peer.send("Ordered")).code == ResponseCode.NO_PERMISSION
        # routes say it of others: a client that has an older one is not refused
        assert (await peer.send("Any")).code == ResponseCode.SUCCESS
        peer.controller.broker.config = peer.controller.broker.config.replaced(
            {"startAcceptSendRequestTimeStamp": "99999999999999", "rejectTransactionMessage": "true"}
        )
        assert "until 5138" in (await peer.send("Ordered")).remark
        peer.controller.broker.config = peer.controller.broker.config.replaced(
            {"startAcceptSendRequestTimeStamp": "0", "brokerPermission": "6"}
        )
        answer = await peer.send("Ordered", properties=properties(TRAN_MSG="true"))
        assert answer.code == ResponseCode.NO_PERMISSION

    on_a_broker(tmp_path, closed, autoCreateTopicEnable="false")


def test_too_large_a_body(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T", bytes(1001))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "1001" in answer.remark and "1000" in answer.remark

    on_a_broker(tmp_path, scene, maxMessageSize="1000")


def test_a_delayed_message_waits_in_the_schedule_topic(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T", queue_id=2, properties=properties(DELAY="5"))
        assert answer.ext_fields["queueId"] == "2"
        stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
        assert (stored.topic, stored.queue_id) == ("SCHEDULE_TOPIC_XXXX", 4)
        assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("T", "2")

    on_a_broker(tmp_path, scene)


def test_a_delay_that_is_no_number_for_java(tmp_path):
    """To dispatch neither: its consumers would get it at once."""

    async def scene(peer: Peer) -> None:
        await peer.send("T")
        end = peer.controller.broker.store.max_phy_offset
        answer = await peer.send("T", properties=properties(DELAY=" 5"))
        assert (answer.code, peer.controller.broker.store.max_phy_offset) == (
            ResponseCode.SYSTEM_ERROR,
            end,
        )
        assert "DELAY is not a number: ' 5'" in answer.remark

    on_a_broker(tmp_path, scene)


def test_only_a_timer_message_is_answered_with_what_recalls_it(tmp_path):
    async def scene(peer: Peer) -> None:
        timed = await peer.send("T", properties=properties(UNIQ_KEY="k", TIMER_DELAY_MS="600000"))
        handle = decode_recall_handle(timed.ext_fields["recallHandle"])
        waiting = peer.controller.broker.store.look_message_by_id(timed.ext_fields["msgId"])
        assert (handle.topic, handle.timestamp) == ("T", int(waiting.properties["TIMER_OUT_MS"]) + 1)
        retried = await peer.send("%RETRY%G", properties=properties(UNIQ_KEY="k", TIMER_DELAY_MS="600000"))
        assert (retried.code, "recallHandle" in retried.ext_fields) == (ResponseCode.SUCCESS, False)
        copied = properties(
            UNIQ_KEY="k", REAL_TOPIC="T", TIMER_OUT_MS="5000"
        )  # of a timer that was delivered
        assert "recallHandle" not in (await peer.send("T", properties=copied)).ext_fields

    on_a_broker(tmp_path, scene)


def test_a_retry_that_was_tried_too_often_is_a_dead_letter(tmp_path):
    async def scene(peer: Peer) -> None:
        store = peer.controller.broker.store
        for times, topic in ((3, "%RETRY%G"), (4, "%DLQ%G")):
            answer = await peer.send("%RETRY%G", reconsume_times=times, max_reconsume_times=3)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert store.look_message_by_id(answer.ext_fields["msgId"]).topic == topic
            assert not peer.controller.broker.topic_config_manager.unsettled
        dlq = peer.controller.broker.topic_config_manager.select_topic_config("%DLQ%G")
        assert (dlq.perm, dlq.write_queue_nums) == (6, 1)
        batch = await peer.ask(
            RequestCode.SEND_BATCH_MESSAGE,
            send_header("%RETRY%G", batch=True),
            encode_messages([Message("T", b"x")]),
        )
        assert batch.code == ResponseCode.MESSAGE_ILLEGAL

    on_a_broker(tmp_path, scene)


def test_a_topic_that_made_itself_is_on_disk_when_the_send_is_answered(tmp_path):
    async def scene(peer: Peer) -> None:
        await asyncio.gather(*(peer.send(f"Made{n}") for n in range(10)))
        text = (tmp_path / "store" / "config" / "topics.json").read_text()
        assert all(f'"Made{n}"' in text for n in range(10))
        assert not peer.controller.broker.topic_config_manager.unsettled

    on_a_broker(tmp_path, scene)


def test_sends_that_cannot_be_stored(tmp_path):
    async def scene(peer: Peer) -> None:
        flags = peer.controller.broker.store.running_flags
        flags.make_disk_full("/data is 91 % full, diskSpaceWarningLevelRatio is 90 %")
        answer = await peer.send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "91 %" in answer.remark and "90 %" in answer.remark and "MiB free" in answer.remark
        flags.make_disk_ok()
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_a_oneway_send_is_stored_and_not_answered(tmp_path):
    async def scene(peer: Peer) -> None:
        from mqlake.remoting.command import RemotingCommand

        request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"oneway")
        await peer.client.invoke_oneway(peer.address, request)
        await until_async(lambda: peer.controller.broker.store.max_offset_in_queue("T", 0) == 1)
        result = peer.controller.broker.store.get_message("G", "T", 0, 0, 1)
        assert decode_record(result.buffers[0]).body == b"oneway"

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_hook_sees_the_end_of_a_send_once(tmp_path, flush):
    async def scene(peer: Peer) -> None:
        sends = recorder_in(peer).sends
        for topic, code in (("T", ResponseCode.SUCCESS), ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION)):
            answer = await peer.send(topic)
            assert answer.code == code
            ((_, before), (then, context)) = sends
            assert (then, context is before, context.code) == ("after", True, code)
            assert (context.error_msg or None) == answer.remark
            sends.clear()

    on_a_broker(tmp_path, scene, flushDiskType=flush)


def test_a_hook_that_refuses_a_send_sees_its_end(tmp_path):
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        recorder.refuse = "T"
        answer = await peer.send("T")
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not today")
        ((_, context), (then, same)) = recorder.sends
        assert (then, context is same) == ("after", True)
        assert (context.code, context.error_msg) == (ResponseCode.NO_PERMISSION, "not today")
        assert peer.controller.broker.store.max_offset_in_queue("T", 0) == 0

    on_a_broker(tmp_path, scene)


def test_a_priority_is_the_queue_of_single_messages_only(tmp_path):
    priority = properties(_SYS_MSG_PRIORITY_="2")

    async def scene(peer: Peer) -> None:
        manager = peer.controller.broker.topic_config_manager
        manager.update_topic_config(_topic("P", attributes={"+message.type": "PRIORITY"}))
        single = await peer.send("P", properties=priority, queue_id=0, reconsume_times=None)
        assert single.ext_fields["queueId"] == "2"
        stored = peer.controller.broker.store.look_message_by_id(single.ext_fields["msgId"])
        assert (stored.queue_id, stored.reconsume_times) == (2, 0)
        one_queue = {"read_queue_nums": 1, "write_queue_nums": 1}
        manager.update_topic_config(_topic("Q", attributes={"+message.type": "PRIORITY"}, **one_queue))
        lower = await peer.send("Q", properties=priority, queue_id=0)
        assert (lower.code, lower.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
        batch = await peer.ask(
            RequestCode.SEND_BATCH_MESSAGE,
            send_header("P", properties=priority, queue_id=0, batch=True),
            encode_messages([Message("P", b"x")]),
        )
        assert batch.ext_fields["queueId"] == "0", batch.remark

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("name", "properties_", "queue_id", "kept"),
    [
        ("P", {"_SYS_MSG_PRIORITY_": "9"}, 3, "9"),
        ("P", {"_SYS_MSG_PRIORITY_": "1234567890123"}, 3, "1234567890123"),
        ("P", {"_SYS_MSG_PRIORITY_": "-1"}, 1, None),
        ("P", {"_SYS_MSG_PRIORITY_": "high"}, 1, None),
        ("P", {"_SYS_MSG_PRIORITY_": "2", "__SHARDINGKEY": "k"}, 1, None),
        ("T", {"_SYS_MSG_PRIORITY_": "2"}, 1, "2"),
    ],
)
def test_what_has_a_priority_and_what_has_none(tmp_path, name, properties_, queue_id, kept):
    async def scene(peer: Peer) -> None:
        manager = peer.controller.broker.topic_config_manager
        for topic, kind in (("P", "PRIORITY"), ("T", "NORMAL")):
            manager.update_topic_config(_topic(topic, attributes={"+message.type": kind}))
        answer = await peer.send(name, properties=properties(**properties_), queue_id=1)
        stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
        assert (stored.queue_id, stored.properties.get("_SYS_MSG_PRIORITY_")) == (queue_id, kept)

    on_a_broker(tmp_path, scene)


def test_a_compacted_topic_needs_keys(tmp_path):
    async def scene(peer: Peer) -> None:
        topics = peer.controller.broker.topic_config_manager.topic_config_table
        topics["C"] = _topic("C", attributes={"cleanup.policy": "COMPACTION"})
        for given, code in (({}, 13), ({"KEYS": " "}, 13), ({"KEYS": "k"}, 0)):
            answer = await peer.send("C", properties=properties(**given))
            assert answer.code == code
            assert not code or answer.remark == "Required message key is missing"

    on_a_broker(tmp_path, scene)


def test_a_topic_of_many_tags_marks_its_messages(tmp_path):
    async def scene(peer: Peer) -> None:
        many = TopicFilterType.MULTI_TAG
        peer.controller.broker.topic_config_manager.update_topic_config(_topic("M", topic_filter_type=many))
        for topic, flag in (("M", MessageSysFlag.MULTI_TAGS_FLAG), ("T", 0)):
            answer = await peer.send(topic, properties=properties(TAGS="a||b"))
            stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
            assert stored.sys_flag == flag

    on_a_broker(tmp_path, scene)


def test_topics_that_sends_make(tmp_path):
    async def scene(peer: Peer) -> None:
        manager = peer.controller.broker.topic_config_manager
        for topic, unit, queues, flag in (
            ("T", False, 4, 0),
            ("U", True, 4, TOPIC_SYS_FLAG_UNIT),
            ("%RETRY%G", False, 1, 0),
            ("%RETRY%H", True, 1, TOPIC_SYS_FLAG_UNIT_SUB),
        ):
            default = "nobody" if topic.startswith("%") else "TBW102"
            answer = await peer.send(topic, unit_mode=unit, default_topic=default)
            assert answer.code == ResponseCode.SUCCESS
            made = manager.select_topic_config(topic)
            assert (made.write_queue_nums, made.topic_sys_flag, made.perm) == (queues, flag, 6)
        for missing in ({"default_topic": None}, {"default_topic_queue_nums": None}):
            answer = await peer.send("New", **missing)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "defaultTopic" in answer.remark
            assert (await peer.send("T", **missing)).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


# --- what the store says


def send_puts(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Puts:
    store = peer.controller.broker.store
    puts = Puts(store.async_put_message, lambda message: message.topic == "T")
    monkeypatch.setattr(store, "async_put_message", puts)
    return puts


@pytest.mark.parametrize(
    ("status", "code", "remark"),
    [
        (PutMessageStatus.OS_PAGECACHE_BUSY, ResponseCode.SYSTEM_BUSY, "page cache: "),
        (
            PutMessageStatus.SERVICE_NOT_AVAILABLE,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now: ",
        ),
        (PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, ""),
        (PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL, ResponseCode.SYSTEM_ERROR, ""),
        (PutMessageStatus.WHEEL_TIMER_NOT_ENABLE, ResponseCode.SYSTEM_ERROR, ""),
        (PutMessageStatus.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: "),
        (PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: "),
        (PutMessageStatus.CREATE_MAPPED_FILE_FAILED, ResponseCode.SYSTEM_ERROR, "create mapped file failed"),
        (PutMessageStatus.UNKNOWN_ERROR, ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR: "),
        (
            PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
            ResponseCode.SYSTEM_ERROR,
            "IN_SYNC_REPLICAS_NOT_ENOUGH: ",
        ),
    ],
)
def test_what_was_not_stored_is_not_acknowledged(tmp_path, monkeypatch, status, code, remark):
    async def scene(peer: Peer) -> None:
        puts = send_puts(peer, monkeypatch)
        puts.refuse = status
        answer = await peer.send("T")
        assert answer.code == code and "msgId" not in answer.ext_fields
        assert remark in answer.remark and "refused by the test" in answer.remark
        assert peer.controller.broker.store.max_phy_offset == 0

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutMessageStatus.PUT_OK, ResponseCode.SUCCESS),
        (PutMessageStatus.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT),
        (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (PutMessageStatus.SLAVE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
def test_a_send_is_answered_when_its_message_is_as_safe_as_it_will_be(tmp_path, monkeypatch, status, code):
    """Not before: the producer takes a SUCCESS for a promise. What is in the log has its id in any case."""

    async def scene(peer: Peer) -> None:
        puts = send_puts(peer, monkeypatch)
        puts.holds = True
        first = asyncio.ensure_future(peer.send("T", queue_id=3, properties=properties(UNIQ_KEY="U")))
        await until_async(lambda: len(puts.held) == 1)
        assert (await peer.send("Other")).code == ResponseCode.SUCCESS  # others do not wait for it
        assert not first.done()
        puts.let_go(status)
        answer = await first
        assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == (
            code,
            "3",
            "U",
        )
        stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
        assert (stored.topic, stored.queue_id) == ("T", 3)

    on_a_broker(tmp_path, scene)


def test_how_full_a_disk_is(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", statvfs_of(blocks=1000, free=100, available=100))
    assert disk_text(str(tmp_path)) == "disk: 90.0 % used, 100 MiB free"
    monkeypatch.undo()
    assert disk_text(str(tmp_path / "gone")) == "disk: No such file or directory"
