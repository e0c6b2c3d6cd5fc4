from __future__ import annotations

import enum
import json
import struct
import typing
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.names import camel_case
from mqlake.errors import FormatError
from mqlake.remoting.bodies.admin import (
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    SubscriptionGroupConfig,
    TopicStatsTable,
)
from mqlake.remoting.bodies.client import (
    CMResult,
    ConsumeFromWhere,
    ConsumerRunningInfo,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageRequestMode,
    ResetOffsetBody,
)
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.compressed import decode_compressed
from mqlake.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from mqlake.remoting.bodies.topic import (
    DataVersion,
    MessageQueue,
    RegisterBrokerBody,
    TopicConfig,
    TopicFilterType,
    TopicList,
)

MQ = MessageQueue(topic="T", broker_name="b", queue_id=0)


def test_numbers_as_keys_are_bare_or_quoted():
    route = TopicRouteData(
        broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=6)],
    )
    plain, strict = route.to_json(), route.to_json(strict=True)
    assert b'"brokerAddrs":{0:"h:1"}' in plain
    assert json.loads(strict)["brokerDatas"][0]["brokerAddrs"] == {"0": "h:1"}
    assert TopicRouteData.from_json(plain) == TopicRouteData.from_json(strict) == route
    assert b"zoneName" not in plain


def test_objects_as_keys():
    body = ResetOffsetBody(offset_table={MQ: 5})
    assert body.to_json() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
    assert ResetOffsetBody.from_json(body.to_json()) == body
    assert ResetOffsetBody.from_json(body.to_json(strict=True)) == body


def test_what_clients_send():
    heartbeat = HeartbeatData.from_json(
        b'{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
        b'[{"classFilterMode":false,"codeSet":[97],"expressionType":"TAG","subString":"a","subVersion":17,'
        b'"tagsSet":["a"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
        b'"producerDataSet":[{"groupName":"p"}],"withoutSub":false,"someThingNew":[1]}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert heartbeat.client_id == "10.0.0.1@7"
    assert consumer.consume_type is not None and consumer.consume_type.name == "CONSUME_PASSIVELY"
    assert consumer.subscription_data_set[0].code_set == {97}
    locks = LockBatchRequestBody.from_json(
        b'{"clientId":"i","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    )
    assert locks.mq_set == {MQ}
    assert LockBatchResponseBody(lock_ok_mq_set={MQ}).to_json() == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    )


def test_null_and_missing_have_the_default():
    config = SubscriptionGroupConfig.from_json(b'{"groupName":"g","retryMaxTimes":null}')
    assert config == SubscriptionGroupConfig(group_name="g")
    assert SubscriptionGroupConfig(group_name="g").to_value()["groupRetryPolicy"] == {"type": "CUSTOMIZED"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"[]", "TopicRouteData: an object"),
        (b'""', "TopicRouteData: an object"),
        (b'{"queueDatas":[[]]}', r"\.queueDatas\[0\]: an object"),
        (b'{"queueDatas":[{"perm":6},{"perm":"rw"}]}', r"\.queueDatas\[1\]\.perm: a whole number"),
        (b'{"queueDatas":[{"perm":18446744073709551616}]}', r"perm: a whole number of 64 bits"),
        (b'{"queueDatas":[{"perm":9.3e18}]}', r"perm: a whole number of 64 bits"),
        (b'{"queueDatas":[{"perm":"18446744073709551616"}]}', r"perm: a whole number of 64 bits"),
        (b'{"queueDatas":[{"perm":"-9223372036854775809"}]}', r"perm: a whole number of 64 bits"),
        (b'{"queueDatas":[{"perm":0%s}]}' % (b"5" * 400), r"perm: a whole number of 64 bits"),
        (b'{"brokerDatas":[{"brokerAddrs":{"x":"h:1"}}]}', r"\[x\]: a whole number"),
        (b'{"queueDatas":[{"perm":"6,x"}]}', r"perm: a whole number"),
        (b'{"queueDatas":[{"perm":1e999}]}', r"perm: a whole number"),
        (b'{"brokerDatas":[{"brokerAddrs":{"":"h:1"}}]}', r"\[\]: a key"),
        (b'{"brokerDatas":[{"enableActingMaster":"maybe"}]}', "true or false"),
        (b'{"brokerDatas":', "ends"),
        (b"\xff", "UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(text: bytes, where: str):
    with pytest.raises(FormatError, match=where):
        TopicRouteData.from_json(text)


@pytest.mark.parametrize("number", [b"18446744073709551615", b'"18446744073709551615"', b"-1"])
def test_an_unsigned_number_is_the_signed_one_of_its_bits(number: bytes):
    """Without it one queue's "no offset yet" of a client written in C++ would make all that it tells unreadable."""
    queue = b'{"topic":"T","brokerName":"b","queueId":0}'
    info = ConsumerRunningInfo.from_json(
        b'{"mqTable":{%s:{"commitOffset":%s,"cachedMsgMinOffset":%s}},"properties":{}}'
        % (queue, number, number)
    )
    (state,) = info.mq_table.values()
    assert (state.commit_offset, state.cached_msg_min_offset) == (-1, -1)
    stats = ConsumeStats.from_json(
        b'{"offsetTable":{%s:{"brokerOffset":5,"consumerOffset":%s}},"consumeTps":0}' % (queue, number)
    )
    assert [each.consumer_offset for each in stats.offset_table.values()] == [-1]
    topic = TopicStatsTable.from_json(
        b'{"offsetTable":{%s:{"minOffset":0,"maxOffset":%s}}}' % (queue, number)
    )
    assert [each.max_offset for each in topic.offset_table.values()] == [-1]
    table = ConsumerOffsetSerializeWrapper.from_json(b'{"offsetTable":{"T@G":{0:%s}}}' % number)
    assert table.offset_table == {"T@G": {0: -1}}
    reset = ResetOffsetBody.from_json(b'{"offsetTable":{%s:%s}}' % (queue, number))
    assert list(reset.offset_table.values()) == [-1]


ENUMS = [ConsumeType, MessageModel, ConsumeFromWhere, MessageRequestMode, CMResult, TopicFilterType]


def test_ordinals_are_those_of_java():
    assert {kind.__name__: [member.name for member in kind] for kind in ENUMS} == {
        "ConsumeType": ["CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"],
        "MessageModel": ["BROADCASTING", "CLUSTERING"],
        "ConsumeFromWhere": [
            "CONSUME_FROM_LAST_OFFSET",
            "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
            "CONSUME_FROM_MIN_OFFSET",
            "CONSUME_FROM_MAX_OFFSET",
            "CONSUME_FROM_FIRST_OFFSET",
            "CONSUME_FROM_TIMESTAMP",
        ],
        "MessageRequestMode": ["PULL", "POP"],
        "CMResult": [
            "CR_SUCCESS",
            "CR_LATER",
            "CR_ROLLBACK",
            "CR_COMMIT",
            "CR_THROW_EXCEPTION",
            "CR_RETURN_NULL",
        ],
        "TopicFilterType": ["SINGLE_TAG", "MULTI_TAG"],
    }


def body_enums(kind: type[JsonBody]) -> Iterator[tuple[str, type[enum.Enum]]]:
    for name, hint in typing.get_type_hints(kind).items():
        for each in (hint, *typing.get_args(hint)):
            if isinstance(each, type) and issubclass(each, enum.Enum):
                yield name, each


def all_bodies(kind: type[JsonBody] = JsonBody) -> Iterator[type[JsonBody]]:
    for each in kind.__subclasses__():
        yield each
        yield from all_bodies(each)


def test_every_enum_of_every_body_is_read_by_name_and_by_ordinal():
    seen = set()
    for kind in all_bodies():
        for attribute, choices in body_enums(kind):
            seen.add(choices)
            for ordinal, member in enumerate(choices):
                for value in (ordinal, member.name, member.name.lower()):
                    body = kind.from_json(json.dumps({camel_case(attribute): value}).encode())
                    assert getattr(body, attribute) is member
            for value in ("OTHER", "", None):
                body = kind.from_json(json.dumps({camel_case(attribute): value}).encode())
                assert body == kind()
            for value in (-1, len(choices), 0.5, True, []):
                with pytest.raises(
                    FormatError, match=f"{camel_case(attribute)}: one of {next(iter(choices)).name}"
                ):
                    kind.from_json(json.dumps({camel_case(attribute): value}).encode())
    assert seen == set(ENUMS)


def test_values_of_another_type_are_read_as_fastjson_reads_them():
    heartbeat = HeartbeatData.from_json(
        b"{client_ID:7, HeartbeatFingerprint:'1,234', withoutSub:1, producerDataSet:{groupName:{a:[1]}}, "
        b"consumerDataSet:[{'group-name':true, unitMode:'T', messageModel:1, subscriptionDataSet:'', "
        b"consumeType:''},{unitMode:2},{subscriptionDataSet:[{subVersion:'5.00', codeSet:['7',3.9,true,''], "
        b"tagsSet:Set['a']}]}]}"
    )
    first, second, third = heartbeat.consumer_data_set
    assert (heartbeat.client_id, heartbeat.heartbeat_fingerprint, heartbeat.without_sub) == ("7", 1234, True)
    assert [producer.group_name for producer in heartbeat.producer_data_set] == ['{"a":[1]}']
    assert (first.group_name, first.unit_mode, first.message_model) == ("true", True, MessageModel.CLUSTERING)
    assert (first.subscription_data_set, first.consume_type, second.unit_mode) == ([], None, False)
    (subscription,) = third.subscription_data_set
    assert (subscription.sub_version, subscription.code_set, subscription.tags_set) == (5, {7, 3, 1}, {"a"})


def test_a_name_that_fits_comes_before_one_that_is_like_it():
    assert TopicConfig.from_json(b'{"topic_name":"b","topicName":"a","TOPICNAME":"c"}').topic_name == "a"


def test_a_key_that_is_no_object():
    with pytest.raises(FormatError, match="an object is needed"):
        ResetOffsetBody.from_json(b'{"offsetTable":{"x":1}}')


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.dictionaries(st.integers(0, 9), st.integers(0, 2**62)),
    )
)
def test_offsets_round_trip(table: dict[str, dict[int, int]]):
    body = ConsumerOffsetSerializeWrapper(offset_table=table)
    assert ConsumerOffsetSerializeWrapper.from_json(body.to_json()) == body
    assert ConsumerOffsetSerializeWrapper.from_json(body.to_json(strict=True)) == body


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(data: bytes):
    for kind in (RegisterBrokerBody, HeartbeatData, ResetOffsetBody, TopicList):
        try:
            kind.from_json(data)
        except FormatError:
            pass


def piece(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(*parts: bytes) -> bytes:
    return zlib.compress(b"".join(parts))


COUNT = struct.Struct(">i").pack


def test_a_compressed_registration():
    parts = [
        piece(b'{"counter":3,"stateVersion":0,"timestamp":5}'),
        COUNT(2) + piece(b"T 8 4 6 SINGLE_TAG {}") + piece(b'U 1 1 4 MULTI_TAG {"a":"b c"}'),
        piece(b'["h:1"]'),
    ]
    old = decode_compressed(compressed(*parts), 400)
    wrapper = old.topic_config_serialize_wrapper
    assert wrapper.data_version == DataVersion(counter=3, timestamp=5)
    assert wrapper.topic_config_table["T"].write_queue_nums == 4
    assert wrapper.topic_config_table["U"].attributes == {"a": "b c"}
    assert old.filter_server_list == ["h:1"]
    new = decode_compressed(compressed(*parts, COUNT(1) + piece(b'{"topic":"T","bname":"b"}')), 479)
    assert new.topic_config_serialize_wrapper.topic_queue_mapping_info_map["T"].bname == "b"


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        compressed(piece(b"{}"))[:-3],
        compressed(COUNT(-1)),
        compressed(COUNT(2**31 - 1)),
        compressed(piece(b"{}"), COUNT(1), piece(b"T 8 4")),
        compressed(piece(b"{}"), COUNT(1), piece(b"T 8 4 6 NO_SUCH {}")),
        compressed(piece(b"{}"), COUNT(1), piece(b"T 8 4 6 SINGLE_TAG [1]")),
        compressed(piece(b"{}")),
    ],
)
def test_a_compressed_registration_that_is_none(data: bytes):
    with pytest.raises(FormatError):
        decode_compressed(data, 479)


def test_a_long_piece_of_a_registration_is_refused_unread(monkeypatch: pytest.MonkeyPatch):
    """Blanks of many megabytes, which compress to nothing, would be read as JSON by and by."""
    monkeypatch.setattr("mqlake.remoting.bodies.compressed.PIECE_SIZE_MAX", 1000)
    with pytest.raises(FormatError, match="a piece of 1001 bytes; 1000 are allowed"):
        decode_compressed(compressed(piece(b" " * 1001)), 479)


def test_a_registration_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqlake.remoting.bodies.compressed.DECOMPRESSED_SIZE_MAX", 1000)
    with pytest.raises(FormatError, match="unpacks to more than 1000 bytes"):
        decode_compressed(zlib.compress(bytes(10_000)), 479)
