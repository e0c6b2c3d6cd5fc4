"""RocketMQ's broker and mqlake's get the same frames, sound and broken ones: the answers have the same code and fields.

What the remark of a refusal says is mqlake's own. `DIFFERS` has the answers that are another on purpose, and
docs/broker.md says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from tests.broker.fast.test_fast_send import batch, half, item, properties, send
from tests.broker.live import SUBSCRIPTION, pull_header
from tests.fuzz.test_hostile_clients import Client
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.waiting import until

pytestmark = pytest.mark.java

TOPIC, BATCHES = "Orders", "Batches"
COUNT = 3
KEY = "1" * 32
CONFIG = {"brokerName": "broker-a", "brokerIP1": "127.0.0.1", "timerWheelEnable": "true"}
Answer = tuple[int, str | None, dict[str, str]]
"""Code, remark of a success, fields."""


def request(code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    return encode_frame(RemotingCommand(code, opaque=7, ext_fields=fields or {}, body=body))


def topic(name: str, attributes: str = "") -> bytes:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC, fields | ({"attributes": attributes} if attributes else {})
    )


def delayed(level: str, *items: bytes) -> bytes:
    given = properties(UNIQ_KEY=KEY, DELAY=level)
    return batch(*items, properties=given) if items else send(properties=given)


def damaged(body: bytes, name: str = TOPIC) -> bytes:
    return send(body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, topic=name)


SENDS = {
    "a queue that is not there": send(queue_id=9),
    "a name that is no topic's": send(topic="a b"),
    "a topic of 128 characters": send(topic="t" * 128),
    "a topic that is not there": send(topic="Nope", more={"c": "Nope"}),
    "a topic that is RocketMQ's own": send(topic="SCHEDULE_TOPIC_XXXX"),
    "properties of 32 KiB": send(properties=properties(UNIQ_KEY=KEY, X="x" * 32_760)),
    "a body larger than allowed": send(bytes((4 << 20) + 1)),
    "a reply to a queue that is not there": send(code=RequestCode.SEND_REPLY_MESSAGE_V2, queue_id=9),
    "a batch to a retry topic": batch(item(), topic="%RETRY%G"),
    "a batch in a transaction": batch(item(), sys_flag=4),
    "an inner batch that is delayed": batch(
        item(), topic=BATCHES, properties=properties(UNIQ_KEY=KEY, DELAY="18")
    ),
    **{f"DELAY={level!r}": delayed(level) for level in ("x", " 5", "+18", "-1", "99", "99999999999")},
    **{f"a batch with DELAY={level!r}": delayed(level, item()) for level in ("x", "18", "0", "-1")},
    **{f"{name}=x": send(properties=properties(UNIQ_KEY=KEY, **{name: "x"})) for name in
       ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")},
    "a batch of nothing": damaged(b""),
    "a batch of a few letters": damaged(b"letters"),
    "a batch of zeros": damaged(bytes(30)),
    "a batch with a body that ends too late": batch(item(body_length=10_000)),
    "a batch with a body of no length": batch(item(body_length=-1)),
    "a batch with properties that end too late": batch(item(own_length=30_000)),
    "a batch and then a few letters": batch(item(), b"letters"),
    "a batch larger than allowed": batch(item(bytes(2 << 20)), item(bytes(2 << 20))),
    "an inner batch of nothing": damaged(b"", BATCHES),
    "an inner batch of a few letters": damaged(b"letters", BATCHES),
    "an inner batch that ends too early": damaged(item()[:-1], BATCHES),
    **{f"a header without {name}": send(less=name) for name in "abcdefghijklm"},
    **{f"a new topic's header without {name}": send(topic=f"New-{name}", less=name) for name in "abcdefghjklm"},
    **{f"a batch's header without {name}": batch(item(), less=name) for name in "abcdefghijklm"},
    **{f"{name}={value!r} in the header": send(more={name: value}) for name, value in
       (("d", "x"), ("e", "x"), ("e", " 1"), ("e", "1 "), ("e", "+1"), ("e", "1_0"), ("e", ""), ("e", "99999999999"),
        ("g", "1.5"), ("j", ""), ("k", "x"), ("m", "x"))},
}  # fmt: skip
LONG_NAMES = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "flag")


def without(name: str) -> bytes:
    """A SEND_MESSAGE whose header, of long names, lacks one."""
    return send(code=RequestCode.SEND_MESSAGE, long_names=True, less=[name])  # type: ignore[arg-type]


def pull(**fields: str) -> bytes:
    header = pull_header(TOPIC, 0, consumer_group="G", queue_id=1, sys_flag=SUBSCRIPTION).encode()
    return request(RequestCode.PULL_MESSAGE, header | fields)


def pop(**fields: str) -> bytes:
    header = {
        "consumerGroup": "P",
        "topic": TOPIC,
        "queueId": "2",
        "maxMsgNums": "8",
        "invisibleTime": "60000",
    }
    header |= {
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    return request(RequestCode.POP_MESSAGE, header | fields)


def asked(code: int, **fields: str) -> bytes:
    """Of a pop's consumer."""
    header = {"consumerGroup": "P", "topic": TOPIC, "queueId": "1", "offset": "0", "invisibleTime": "1000"}
    header |= {"extraInfo": "0 1 60000 0 0 broker-a 1 0", "pollTime": "0", "bornTime": "0", "maxMsgNums": "1"}
    return request(code, header | fields)


def beat(group: str, expression: str) -> bytes:
    subscription = {"topic": TOPIC, "subString": expression, "subVersion": 1, "expressionType": "SQL92"}
    subscription |= {"tagsSet": [], "codeSet": [], "classFilterMode": False}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    consumer |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False}
    data = {"clientID": f"c@{group}", "producerDataSet": [], "consumerDataSet": []}
    data["consumerDataSet"] = [consumer | {"subscriptionDataSet": [subscription]}]
    return request(RequestCode.HEART_BEAT, {}, json.dumps(data).encode())


def checked(expression: str, kind: str = "SQL92") -> bytes:
    data = {"topic": TOPIC, "subString": expression, "subVersion": 1, "expressionType": kind}
    body = {"clientId": "c", "group": "G", "subscriptionData": data}
    return request(RequestCode.CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode())


def of_queue(code: int, name: str, queue_id: int, **fields: str) -> bytes:
    return request(code, {"topic": name, "queueId": str(queue_id), **fields})


BROKEN = ("(", "a >", "a = 1 AND", "a IN ()", "a = 'x", "1", "a > 'b'", "NOT", "BETWEEN", "a BETWEEN 1 AND 0")
RECEIVES: dict[str, bytes | tuple[bytes, ...]] = {
    **{f"a pull by {text!r}": pull(subscription=text, expressionType="SQL92") for text in (*BROKEN, "a = 1")},
    **{f"a pop by {text!r}": pop(expType="SQL92", exp=text) for text in (*BROKEN, "a = 1")},
    **{f"a check of {text!r}": checked(text) for text in (*BROKEN, "a = 1", "")},
    "a pull by a kind of filter that is not there": pull(subscription="x", expressionType="XX"),
    "a pop by a kind of filter that is not there": pop(exp="x", expType="XX"),
    "a heartbeat with a broken expression": beat("Broken", "("),
    "a heartbeat with an expression": beat("Sound", "a IS NULL"),
    "a pull after one with a broken expression":
        (beat("Broken2", "("), pull(consumerGroup="Broken2", sysFlag="0", subVersion="1")),
    "a pull after one with an expression":
        (beat("Sound2", "a IS NULL"), pull(consumerGroup="Sound2", sysFlag="0", subVersion="1")),
    "a pull of an empty queue of batches": pull(topic=BATCHES, queueId="2"),
    "a pull beyond it": pull(topic=BATCHES, queueId="2", queueOffset="5"),
    "a pull of batches": pull(topic=BATCHES, queueId="0"),
    "a pull of an empty queue": pull(queueId="2"),
    **{f"the beginning of {name} {number}": of_queue(RequestCode.GET_MIN_OFFSET, name, number)
       for name, number in ((BATCHES, 0), (BATCHES, 2), (TOPIC, 1), (TOPIC, 2), ("Nope", 0))},
    **{f"a pop of an empty queue, {fields}": pop(**fields) for fields in ({}, {"order": "true"}, {"exp": ""},
       {"expType": "SQL92", "exp": ""})},
    "a look at an empty queue": asked(RequestCode.PEEK_MESSAGE, queueId="2"),
    "a look at messages": asked(RequestCode.PEEK_MESSAGE, consumerGroup="New"),
    "a pop in order": pop(consumerGroup="Order", order="true", queueId="1"),
    "a pop that comes too late": pop(bornTime="1"),
    "a pop of too many": pop(maxMsgNums="33"),
    "a pop of a queue that is not there": pop(queueId="9"),
    "a pop of a topic that is not there": pop(topic="Nope"),
    "a look at a topic that is not there": asked(RequestCode.PEEK_MESSAGE, topic="Nope"),
    **{f"{kind} of {fields}": asked(code, **fields) for kind, code in
       (("another time", RequestCode.CHANGE_MESSAGE_INVISIBLETIME), ("an ack", RequestCode.ACK_MESSAGE)) for fields in
       ({"topic": "Nope"}, {"queueId": "9"}, {"offset": "99"})},
    **{f"a question for messages of {fields}": asked(RequestCode.NOTIFICATION, **fields) for fields in
       ({"topic": "Nope"}, {"queueId": "9"}, {"queueId": "2"})},
    "a key that nothing has": request(RequestCode.QUERY_MESSAGE, {
        "topic": TOPIC, "key": "k", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9999999999999"}),
    "a topic": topic("Another"),
    "a message again": asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    "a question for messages": asked(RequestCode.NOTIFICATION, consumerGroup="New"),
    "a transaction that ends in no way that there is": request(RequestCode.END_TRANSACTION, {
        "producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "7",
        "fromTransactionCheck": "false", "msgId": "x"}),
    "a recall": request(RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": "x", "producerGroup": "PG"}),
}  # fmt: skip

ERROR: Answer = (ResponseCode.SYSTEM_ERROR, None, {})
DIFFERS: dict[str, tuple[bytes, Answer | None, Answer | None]] = {
    # frame, RocketMQ's answer, mqlake's; None: success
    "a body of nothing": (send(b""), ERROR, None),
    "a batch with a size that is wrong": (batch(item(size=10)), None, ERROR),
    "a batch with properties that end in its neighbour": (
        batch(item(own=b"a\x01" + b"x" * 32_700 + b"\x02")),
        None,
        ERROR,
    ),
    "an expression with a rest that cannot belong to it": (
        checked("a LIKE 'x%'"),
        None,
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, None, {}),
    ),
    "a half message without its property": (
        send(sys_flag=4),
        None,
        (ResponseCode.MESSAGE_ILLEGAL, None, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}),
    ),
    "a half message that is delayed": (
        half(DELAY="1"),
        None,
        (ResponseCode.MESSAGE_ILLEGAL, None, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}),
    ),
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """RocketMQ's, and mqlake's with its fast path."""
    directory = tmp_path_factory.mktemp("brokers")
    java = JavaBroker(directory / "java", CONFIG)
    fast = MqlakeBroker(directory / "mqlake", CONFIG, counts=True)
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(lambda broker: broker.start(), (java, fast)))
            list(pool.map(_fill, (java, fast)))
            yield [java, fast]
        finally:
            java.close()
            fast.close()


def _fill(broker: Broker) -> None:
    frames = [topic(TOPIC), topic(BATCHES, "+queue.type=BatchCQ")]
    frames += [send()] * COUNT + [batch(item(), item(), topic=BATCHES, queue_id=0)]
    for frame in frames:
        assert answer(broker, frame)[0] == ResponseCode.SUCCESS
    for name, queue_id, count in ((TOPIC, 1, COUNT), (BATCHES, 0, 2)):
        end = of_queue(RequestCode.GET_MAX_OFFSET, name, queue_id)
        until(lambda end=end, count=count: answer(broker, end)[2].get("offset") == str(count))  # type: ignore[misc]


def answer(broker: Broker, *frames: bytes) -> Answer:
    """That to the last of a connection's frames, each of which waits for the answer to the one before."""
    with closing(Client(broker)) as client:  # type: ignore[arg-type]
        for frame in frames:
            client.socket.sendall(frame)
            while not (command := client.answer()).is_response:
                pass  # the group's members are told of each other
    remark = command.remark if command.code == ResponseCode.SUCCESS else None
    return command.code, remark, dict(command.ext_fields)


OWN = {"msgId", "queueOffset", "transactionId", "popTime", "reviveQid"} | {
    "indexLastUpdateTimestamp",
    "indexLastUpdatePhyoffset",
}
"""Of an answer what is a time, or another's place in the log."""


def same(brokers: list[Broker], *frames: bytes) -> None:
    answers = [answer(broker, *frames) for broker in brokers]
    (*said, fields), (*other_said, other_fields) = answers
    assert (other_said, other_fields.keys()) == (said, fields.keys())
    for name in fields.keys() - OWN:
        assert other_fields[name] == fields[name]


@pytest.mark.parametrize("name", SENDS)
def test_a_send_is_answered_as_by_rocketmq(brokers: list[Broker], name: str):
    same(brokers, SENDS[name])


@pytest.mark.parametrize("name", LONG_NAMES)
def test_a_send_without_a_long_name_is_answered_as_by_rocketmq(brokers: list[Broker], name: str):
    same(brokers, without(name))


@pytest.mark.parametrize("name", RECEIVES)
def test_a_consumer_is_answered_as_by_rocketmq(brokers: list[Broker], name: str):
    frames = RECEIVES[name]
    same(brokers, *([frames] if isinstance(frames, bytes) else frames))


@pytest.mark.parametrize("name", DIFFERS)
def test_an_answer_that_is_another_on_purpose(brokers: list[Broker], name: str):
    frame, *expected = DIFFERS[name]
    for broker, wanted in zip(brokers, expected, strict=True):
        found = answer(broker, frame)
        assert found == wanted if wanted is not None else found[0] == ResponseCode.SUCCESS
