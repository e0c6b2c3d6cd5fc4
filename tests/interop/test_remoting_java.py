"""Commands, headers and bodies against RocketMQ's own classes."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator

import pytest

from mqlake.base import json_config
from mqlake.remoting.bodies import admin, client, route, topic
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.compressed import decode_compressed
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.codes import RequestCode, SerializeType, version_name
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import admin as admin_headers
from mqlake.remoting.headers import codec, common, consume, namesrv, produce
from tests.interop.java_peer import LATER_VERSION
from tests.interop.java_wire import JavaWire

pytestmark = pytest.mark.java

HEADER_PACKAGE = "org.apache.rocketmq.remoting.protocol.header"
NOT_IN_NAMESRV = {"GetBrokerMemberGroupRequestHeader", "GetTopicsByClusterRequestHeader"}
LATER_HEADERS = {
    "GetAllTopicConfigRequestHeader",
    "GetAllSubscriptionGroupRequestHeader",
    "GetAllSubscriptionGroupResponseHeader",
}
"""Headers that RocketMQ 5.3.3 does not have."""
HEADERS = [
    pytest.param(
        kind,
        f"{HEADER_PACKAGE}{'' if kind.__name__ in NOT_IN_NAMESRV else package}.{kind.__name__}",
        id=kind.__name__,
        marks=[pytest.mark.nightly] if kind.__name__ in LATER_HEADERS else [],
    )
    for module, package in ((produce, ""), (consume, ""), (admin_headers, ""), (namesrv, ".namesrv"))
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, codec.CommandHeader) and kind.__module__ == module.__name__
]

COMMANDS = {
    "bare": {"code": 106, "flag": 0, "opaque": 1},
    "remark": {
        "code": 105,
        "flag": 1,
        "opaque": 2,
        "remark": "none here: \u4e2d\u6587 \U0001f600 \"'\\/\n\t\x01",
    },
    "fields": {"code": 310, "flag": 2, "opaque": 2**31 - 1, "fields": {"a": "g", "i": "K\x01v\x02", "k": ""}},
    "body": {"code": 10, "flag": 0, "opaque": -5, "fields": {"topic": "T"}, "body": bytes(range(256))},
}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaWire]:
    with JavaWire(tmp_path_factory.mktemp("wire")) as peer:
        yield peer


@pytest.fixture(scope="module")
def later_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaWire]:
    with JavaWire(tmp_path_factory.mktemp("later-wire"), version=LATER_VERSION) as peer:
        yield peer


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("name", COMMANDS)
def test_frames_both_ways(java: JavaWire, kind: SerializeType, name: str):
    sent = COMMANDS[name]
    # an empty value is none in the ROCKETMQ form
    fields = {k: v for k, v in sent.get("fields", {}).items() if v or kind is SerializeType.JSON}

    frame = java.encode(kind.name, **sent)
    read = decode_frame(memoryview(frame), 0, len(frame))
    assert (read.code, read.flag, read.opaque) == (sent["code"], sent["flag"], sent["opaque"])
    assert (read.remark, read.ext_fields, read.serialize_type) == (sent.get("remark"), fields, kind)
    assert (read.language.name, read.version) == ("JAVA", 479)
    assert read.body_bytes() == sent.get("body", b"")

    written = encode_frame(read)
    if kind is SerializeType.ROCKETMQ and fields == sent.get("fields", {}):
        assert len(written) == len(frame)
    again = java.decode(written)
    assert again == {
        "type": kind.name,
        "code": sent["code"],
        "flag": sent["flag"],
        "opaque": sent["opaque"],
        "language": "JAVA",
        "version": 479,
        "fields": fields,
        "body": sent.get("body"),
        **({"remark": sent["remark"]} if "remark" in sent else {}),
    }


def test_the_size_of_a_binary_header(java: JavaWire):
    frame = java.encode("ROCKETMQ", 101, flag=0, opaque=7, remark="Sample remark")
    command = RemotingCommand(101, opaque=7, remark="Sample remark", serialize_type=SerializeType.ROCKETMQ)
    assert len(frame) == len(encode_frame(command)) == 8 + 34


def test_a_code_beyond_16_bits_is_said_in_json(java: JavaWire):
    command = RemotingCommand(RequestCode.POP_MESSAGE, serialize_type=SerializeType.ROCKETMQ)
    read = java.decode(encode_frame(command))
    assert (read["type"], read["code"]) == ("JSON", 200050)


def test_names_of_versions(java: JavaWire):
    names = java.request("versions", count=620)["names"]
    assert [version_name(number) for number in range(len(names))] == names
    assert names[479] == "V5_3_3"
    assert version_name(-1) == "-1"  # what a broken client may say


JAVA_TYPES = {
    "String": "a text",
    "Integer": "a 32-bit number",
    "int": "a 32-bit number",
    "Long": "a 64-bit number",
    "long": "a 64-bit number",
    "Boolean": "true or false",
    "boolean": "true or false",
    "Double": "a number",
    "BoundaryType": "a text",
}
CHOICES = {"boundaryType": "upper", "commitOrRollback": "8", "topicFilterType": "SINGLE_TAG"}
SAMPLES = {"a text": "x", "a 32-bit number": "-7", "a 64-bit number": str(2**40), "true or false": "true"}


LATER_FIELDS = {
    "AckMessageRequestHeader": ("liteTopic",),
    "ChangeInvisibleTimeRequestHeader": ("liteTopic", "suspend"),
    "NotificationRequestHeader": ("exp", "expType"),
    "GetAllTopicConfigResponseHeader": ("totalTopicNum",),
    "GetBrokerConfigResponseHeader": ("pendingRestart",),
    "RegisterBrokerRequestHeader": ("partial",),
}
"""Of RocketMQ 5.4 and 5.5, and of mqlake alone."""
OPTIONAL_HERE = {"totalGroupNum"}
"""Brokers before 5.4 leave it out."""
_OF_SENDS = ("producerGroup", "defaultTopic", "defaultTopicQueueNums")
NOT_MISSED = {
    "SendMessageRequestHeader": _OF_SENDS,
    "SendMessageRequestHeaderV2": ("a", "c", "d"),
    "ReplyMessageRequestHeader": _OF_SENDS,
}
"""What RocketMQ calls mandatory, and reads without (tests/interop/test_answers_alike.py asks both)."""


@pytest.mark.parametrize(("kind", "java_class"), HEADERS)
def test_headers_have_javas_fields(
    request: pytest.FixtureRequest, kind: type[codec.CommandHeader], java_class: str
):
    java: JavaWire = request.getfixturevalue("later_java" if kind.__name__ in LATER_HEADERS else "java")
    theirs = {}
    optional = OPTIONAL_HERE.union(NOT_MISSED.get(kind.__name__, ()))
    for field in java.request("header", **{"class": java_class})["fields"]:
        theirs.setdefault(
            field["name"],
            (JAVA_TYPES[field["type"]], field["mandatory"] and field["name"] not in optional),
        )
    later = LATER_FIELDS.get(kind.__name__, ())
    ours = {
        field.name: (field.type_name, field.default is codec._MISSING)
        for field in codec._fields_of(kind)
        if field.name not in later
    }
    assert ours == theirs

    fields = {name: CHOICES.get(name) or SAMPLES[type_name] for name, (type_name, _) in ours.items()}
    again = kind.decode(fields).encode()
    assert {name: text for name, text in again.items() if name not in later} == fields
    read = java.request("fields", **{"class": java_class}, fields=fields)["fields"]
    # Some of Java's headers read no inherited fields.
    inherited = {field.name for field in codec._fields_of(common.TopicRequestHeader)}
    assert {k: v.lower() for k, v in read.items()} == {
        k: v.lower() for k, v in fields.items() if k in read or k not in inherited
    }


PROTOCOL = "org.apache.rocketmq.remoting.protocol"
BODY_PACKAGES = {
    topic: {
        "MessageQueue": "org.apache.rocketmq.common.message",
        "TopicConfig": "org.apache.rocketmq.common",
        "DataVersion": PROTOCOL,
        "TopicQueueMappingInfo": f"{PROTOCOL}.statictopic",
        "TopicQueueMappingDetail": f"{PROTOCOL}.statictopic",
        "TopicConfigAndQueueMapping": f"{PROTOCOL}.statictopic",
        "TopicRemappingDetailWrapper": f"{PROTOCOL}.statictopic",
        "LogicQueueMappingItem": f"{PROTOCOL}.statictopic",
    },
    route: dict.fromkeys(["BrokerData", "QueueData", "TopicRouteData"], f"{PROTOCOL}.route"),
    client: {
        "SubscriptionData": f"{PROTOCOL}.heartbeat",
        "ConsumerData": f"{PROTOCOL}.heartbeat",
        "ProducerData": f"{PROTOCOL}.heartbeat",
        "HeartbeatData": f"{PROTOCOL}.heartbeat",
        "MessageQueueAssignment": "org.apache.rocketmq.common.message",
        "MessageQueueForC": "org.apache.rocketmq.common.message",
        "GetConsumerListByGroupResponseBody": HEADER_PACKAGE,
    },
    admin: {
        "CheckRocksdbCqWriteResult": "org.apache.rocketmq.common",
        **dict.fromkeys(
            ["SimpleSubscriptionData", "SubscriptionGroupConfig", "GroupForbidden"],
            f"{PROTOCOL}.subscription",
        ),
        **dict.fromkeys(
            ["TopicOffset", "TopicStatsTable", "OffsetWrapper", "ConsumeStats"], f"{PROTOCOL}.admin"
        ),
    },
}
INNER = {"HAConnectionRuntimeInfo": "HARuntimeInfo$", "HAClientRuntimeInfo": "HARuntimeInfo$"}
BODIES = [
    pytest.param(
        kind,
        f"{packages.get(kind.__name__, f'{PROTOCOL}.body')}.{INNER.get(kind.__name__, '')}{kind.__name__}",
        id=kind.__name__,
    )
    for module, packages in BODY_PACKAGES.items()
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, JsonBody) and kind.__module__ == module.__name__
    if kind.__name__ != "MessageRequestModes"  # a file of the broker's, whose class has another name in Java
]


def comparable(value: object) -> object:
    """Without what is empty (null in Java may be empty here), and with times that Java sets to now as none."""
    if not isinstance(value, dict):
        return value
    fields = {key: 0 if key in ("timestamp", "subVersion") else comparable(one) for key, one in value.items()}
    return {
        key: one
        for key, one in fields.items()
        if one not in ("", [], {}) and not key.endswith("TimeStampStr")  # times as text, for display
    }


# Their Java classes have no constructor without arguments.
NEVER_NEW = {"MessageQueueForC", "SimpleSubscriptionData", "ProducerInfo", "ProducerTableInfo"}


@pytest.mark.parametrize(("kind", "java_class"), [p for p in BODIES if p.id not in NEVER_NEW])
def test_a_new_body_is_javas(java: JavaWire, kind: type[JsonBody], java_class: str):
    theirs = json_config.loads(java.request("body", **{"class": java_class})["json"])
    assert comparable(json_config.loads(kind().to_json())) == comparable(theirs)


MQ = topic.MessageQueue(topic="T", broker_name="b", queue_id=3)
SAMPLE_BODIES = [
    route.TopicRouteData(
        order_topic_conf="b:4",
        queue_datas=[route.QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=6)],
        broker_datas=[
            route.BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1", 1: "h:2"}, zone_name="z")
        ],
        filter_server_table={"h:1": ["h:3"]},
        topic_queue_mapping_by_broker={"b": topic.TopicQueueMappingInfo(topic="T", curr_id_map={0: 1})},
    ),
    route.ClusterInfo(
        broker_addr_table={"b": route.BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"})},
        cluster_addr_table={"c": {"b"}},
    ),
    topic.RegisterBrokerBody(
        topic_config_serialize_wrapper=topic.TopicConfigAndMappingSerializeWrapper(
            topic_config_table={"T": topic.TopicConfig(topic_name="T", perm=4, attributes={"a": "b"})},
            data_version=topic.DataVersion(timestamp=5, counter=6),
        ),
        filter_server_list=["h:3"],
    ),
    topic.TopicList(topic_list={"T"}, broker_addr="h:1"),
    topic.KVTable(table={"k": "v/\u4e2d"}),
    client.HeartbeatData(
        client_id="10.0.0.1@1",
        producer_data_set=[client.ProducerData(group_name="p")],
        consumer_data_set=[
            client.ConsumerData(
                group_name="g",
                consume_type=client.ConsumeType.CONSUME_PASSIVELY,
                message_model=client.MessageModel.CLUSTERING,
                consume_from_where=client.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                subscription_data_set=[
                    client.SubscriptionData(
                        topic="T", sub_string="a", tags_set={"a"}, code_set={97}, sub_version=8
                    )
                ],
            )
        ],
    ),
    client.LockBatchRequestBody(consumer_group="g", client_id="i", mq_set={MQ}),
    client.LockBatchResponseBody(lock_ok_mq_set={MQ}),
    client.GetConsumerListByGroupResponseBody(consumer_id_list=["i"]),
    client.ResetOffsetBody(offset_table={MQ: 2**40}),
    client.GetConsumerStatusBody(message_queue_table={MQ: 1}, consumer_table={"i": {MQ: 1}}),
    client.ConsumerRunningInfo(
        properties={"k": "v"},
        mq_table={MQ: client.ProcessQueueInfo(commit_offset=5, cached_msg_size_in_mib=2)},
        status_table={"T": client.ConsumeStatus(consume_ok_tps=1.5, pull_rt=2.0)},
    ),
    admin.TopicStatsTable(
        topic_put_tps=1.5, offset_table={MQ: admin.TopicOffset(min_offset=1, max_offset=2)}
    ),
    admin.ConsumeStats(offset_table={MQ: admin.OffsetWrapper(broker_offset=9, consumer_offset=8)}),
    admin.ConsumerOffsetSerializeWrapper(
        offset_table={"T@g": {0: 1, 1: 2}}, data_version=topic.DataVersion(counter=1)
    ),
    admin.ProducerTableInfo(
        data={"g": [admin.ProducerInfo(client_id="i", remote_ip="h", language="JAVA", version=479)]}
    ),
    admin.SimpleSubscriptionData(topic="T", expression_type="TAG", expression="*", version=3),
    client.ResetOffsetBodyForC(
        offset_table=[client.MessageQueueForC(topic="T", broker_name="b", queue_id=1, offset=9)]
    ),
    admin.ConsumerConnection(
        connection_set=[admin.Connection(client_id="i", client_addr="h:9", language="GO", version=317)],
        subscription_table={"T": client.SubscriptionData(topic="T", sub_string="*", sub_version=4)},
        consume_type=client.ConsumeType.CONSUME_ACTIVELY,
        message_model=client.MessageModel.BROADCASTING,
        consume_from_where=client.ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
    ),
]


@pytest.mark.parametrize("body", SAMPLE_BODIES, ids=lambda body: type(body).__name__)
def test_bodies_both_ways(java: JavaWire, body: JsonBody):
    java_class = next(param.values[1] for param in BODIES if param.values[0] is type(body))
    answer = java.request("body", **{"class": java_class}, json=body.to_json().decode())["json"]
    assert type(body).from_json(answer.encode()) == body
    assert type(body).from_json(body.to_json(strict=True)) == body


def test_a_compressed_registration(java: JavaWire):
    names = [f"topic-{i}" for i in range(300)]
    raw = base64.b64decode(java.request("registration", topics=names, timestamp=77)["body"])
    body = decode_compressed(raw, 479)
    wrapper = body.topic_config_serialize_wrapper
    assert sorted(wrapper.topic_config_table) == sorted(names)
    assert wrapper.topic_config_table["topic-7"] == topic.TopicConfig(
        topic_name="topic-7",
        read_queue_nums=3,
        write_queue_nums=4,
        perm=6,
        attributes={"+message.type": "FIFO"},
    )
    assert wrapper.data_version.timestamp == 77
    assert body.filter_server_list == ["10.0.0.1:1"]


def test_the_samples_are_json_for_strict_readers():
    for body in SAMPLE_BODIES:
        json.loads(body.to_json(strict=True))
        assert dataclasses.is_dataclass(body)
