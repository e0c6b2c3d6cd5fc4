import re
import subprocess
import sys
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import ConfigError, IllegalTopicError, MessageError
from mqlake.message import (
    DEFAULT_MESSAGE_DELAY_LEVEL,
    NOT_ALLOWED_SEND_TOPICS,
    SCHEDULE_TOPIC,
    STRING_PROPERTY,
    Message,
    MessageExt,
    MessageExtBrokerInner,
    MessageSysFlag,
    bytes_to_properties,
    crc32,
    create_message_id,
    create_uniq_id,
    decode_message_id,
    delay_level_to_queue_id,
    deliver_timestamp,
    host_bytes,
    host_from_bytes,
    is_system_topic,
    java_hash,
    parse_delay_levels,
    properties_to_bytes,
    properties_to_string,
    queue_id_to_delay_level,
    string_to_properties,
    tags_code,
    validate_topic,
)

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1)


class TestMessage:
    def test_tags_and_keys_live_in_the_properties(self):
        message = Message("T", b"x", "TagA", "k1 k2")
        assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2"}
        assert (message.tags, message.keys) == ("TagA", "k1 k2")

    def test_keys_may_be_many(self):
        assert Message("T", keys=["a", "b"]).keys == "a b"
        message = Message("T")
        message.keys = iter(["c", "d"])
        assert message.properties == {"KEYS": "c d"}

    @pytest.mark.parametrize("name", ["tags", "keys", "uniq_key"])
    def test_set_and_cleared(self, name):
        message = Message("T")
        assert getattr(message, name) is None
        setattr(message, name, "x")
        assert getattr(message, name) == "x"
        setattr(message, name, None)
        assert message.properties == {}

    def test_delay_time_level(self):
        message = Message("T")
        assert message.delay_time_level == 0
        message.delay_time_level = 3
        assert message.properties == {"DELAY": "3"}
        assert message.delay_time_level == 3
        message.properties["DELAY"] = "soon"
        with pytest.raises(MessageError, match="soon"):
            _ = message.delay_time_level

    def test_wait_store_msg_ok(self):
        message = Message("T")
        assert message.wait_store_msg_ok
        message.wait_store_msg_ok = False
        assert message.properties == {"WAIT": "false"}
        assert not message.wait_store_msg_ok
        message.properties["WAIT"] = "TRUE"
        assert message.wait_store_msg_ok

    def test_messages_do_not_share_properties(self):
        Message("T").properties["a"] = "b"
        assert Message("T").properties == {}

    def test_the_callers_properties_stay_as_they_are(self):
        properties = {"a": "b"}
        for kind in Message, MessageExt:
            message = kind("T", b"", "TagA", "k", properties=properties)
            assert message.properties == {"a": "b", "TAGS": "TagA", "KEYS": "k"}
        assert properties == {"a": "b"}

    def test_no_attribute_is_invented(self):
        for message in Message("T"), MessageExt("T"), MessageExtBrokerInner("T"):
            with pytest.raises(AttributeError):
                message.topik = "T"  # type: ignore[attr-defined]

    def test_every_slot_has_a_value(self):
        message = MessageExtBrokerInner("T", b"x", "tag", ["k"], queue_id=3, flag=7)
        for slot in (*Message.__slots__, *MessageExt.__slots__):
            assert getattr(message, slot) is not None
        assert (message.tags, message.keys, message.queue_id, message.flag) == ("tag", "k", 3, 7)

    def test_msg_id(self):
        message = MessageExt("T", store_host=("127.0.0.1", 10911), physical_offset=0)
        assert message.msg_id == "7F00000100002A9F0000000000000000"


class TestHashes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", 0),
            ("TagA", 2598919),
            ("TagB", 2598920),
            ("*", 42),
            ("TopicTest#OrderID188", -1231271670),
            ("polygenelubricants", -(1 << 31)),
            ("é", 0xE9),
            ("😀", 0xD83D * 31 + 0xDE00),
        ],
    )
    def test_java_hash(self, text, expected):
        assert java_hash(text) == expected

    @given(st.text(st.characters()))
    def test_java_hash_is_the_polynomial_over_utf_16(self, text):
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
        total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) & 0xFFFFFFFF
        assert java_hash(text) & 0xFFFFFFFF == total
        assert -(1 << 31) <= java_hash(text) < 1 << 31

    def test_tags_code(self):
        assert tags_code(None) == tags_code("") == 0
        assert tags_code("TagA") == 2598919

    def test_crc32(self):
        assert crc32(b"Hello RocketMQ 0") == 613185359
        assert crc32(b"") == 0

    @given(st.binary())
    def test_crc32_is_zlibs_without_the_top_bit(self, data):
        assert (
            crc32(data) == crc32(memoryview(data)) == crc32(bytearray(data)) == zlib.crc32(data) & 0x7FFFFFFF
        )


class TestProperties:
    @given(st.dictionaries(NAMES, VALUES))
    def test_round_trip(self, properties):
        text = properties_to_string(properties)
        assert text == "" or text.endswith("\x02")
        assert string_to_properties(text) == properties
        assert string_to_properties(text.removesuffix("\x02")) == properties
        assert properties_to_bytes(properties) == text.encode()
        for data in text.encode(), bytearray(text.encode()), memoryview(text.encode()):
            assert bytes_to_properties(data) == properties

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", {}),
            ("\x02\x02", {}),
            ("a\x01b", {"a": "b"}),
            ("a\x01\x02c\x01d", {"c": "d"}),
            ("\x01b\x02c\x01d\x02", {"c": "d"}),
            ("ab\x02c\x01d\x02", {"c": "d"}),
            ("a\x01b\x01c\x02", {"a": "b\x01c"}),
            ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ],
    )
    def test_what_is_no_pair_is_skipped(self, text, expected):
        assert string_to_properties(text) == expected

    def test_none_is_left_out(self):
        assert properties_to_string({"a": None, "b": "c"}) == "b\x01c\x02"  # type: ignore[dict-item]
        assert properties_to_bytes({"a": None, "b": "c"}) == b"b\x01c\x02"  # type: ignore[dict-item]

    def test_lone_surrogates_become_question_marks(self):
        assert properties_to_bytes({"a": "x\ud800y"}) == b"a\x01x?y\x02"

    @given(st.binary())
    def test_any_bytes_parse(self, data):
        for name, value in bytes_to_properties(data).items():
            assert name
            assert value


class TestHosts:
    def test_layout(self):
        assert host_bytes(("127.0.0.1", 10911)) == bytes.fromhex("7f000001 00002a9f")
        assert host_bytes(("::1", 1)) == bytes(15) + b"\x01" + b"\0\0\0\x01"

    @given(HOSTS)
    def test_round_trip(self, host):
        assert host_from_bytes(host_bytes(host)) == host

    @given(st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20))
    def test_any_8_or_20_bytes_are_a_host(self, data):
        assert host_bytes(host_from_bytes(data)) == data

    @pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), bytes(19), bytes(21)])
    def test_other_lengths_are_not(self, data):
        with pytest.raises(MessageError):
            host_from_bytes(data)

    @pytest.mark.parametrize(
        "host", [("localhost", 1), ("", 1), ("1.2.3", 1), ("::x", 1), ("1.2.3.4", 1 << 31)]
    )
    def test_not_an_address(self, host):
        with pytest.raises(MessageError):
            host_bytes(host)


class TestMessageIds:
    def test_vector(self):
        assert create_message_id(("127.0.0.1", 10911), 0) == "7F00000100002A9F0000000000000000"
        assert decode_message_id("7F00000100002A9F0000000000000000") == (("127.0.0.1", 10911), 0)

    @given(HOSTS, I64)
    def test_round_trip(self, host, offset):
        message_id = create_message_id(host, offset)
        assert re.fullmatch("([0-9A-F]{32}|[0-9A-F]{56})", message_id)
        assert decode_message_id(message_id) == decode_message_id(message_id.lower()) == (host, offset)

    @given(st.text() | st.text("0123456789abcdefABCDEF \n", min_size=30, max_size=58))
    def test_anything_else_is_a_message_error(self, text):
        try:
            host, offset = decode_message_id(text)
        except MessageError:
            return
        assert create_message_id(host, offset) == text.upper()


class TestUniqIds:
    def test_shape_and_uniqueness(self):
        ids = [create_uniq_id() for _ in range(10_000)]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("[0-9A-F]{32}", uniq_id) for uniq_id in ids)
        assert len({uniq_id[:20] for uniq_id in ids}) == 1

    def test_pid_is_in_it(self):
        import os

        assert int(create_uniq_id()[8:12], 16) == os.getpid() & 0xFFFF

    def test_threads_do_not_collide(self):
        ids: list[str] = []
        threads = [
            threading.Thread(target=lambda: ids.extend([create_uniq_id() for _ in range(2000)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 8000

    def test_a_forked_child_makes_its_own(self):
        program = (
            "import os, sys\n"
            "from mqlake.message import create_uniq_id\n"
            "create_uniq_id()\n"
            "pid = os.fork()\n"
            "os.write(1, (create_uniq_id() + '\\n').encode())\n"
            "if pid: os.waitpid(pid, 0)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        first, second = run.stdout.split()
        assert first[:20] != second[:20]
        assert first[:8] == second[:8]


class TestTopics:
    @pytest.mark.parametrize("topic", ["T", "%RETRY%group-1_x|y", "a" * 127])
    def test_valid(self, topic):
        validate_topic(topic)

    @pytest.mark.parametrize("topic", ["", " ", "a b", "a/b", "..", "é", "a" * 128, "a\n", "a\0"])
    def test_illegal(self, topic):
        with pytest.raises(IllegalTopicError):
            validate_topic(topic)

    def test_system_topics(self):
        assert is_system_topic(SCHEDULE_TOPIC)
        assert is_system_topic("rmq_sys_anything")
        assert not is_system_topic("TopicTest")
        assert SCHEDULE_TOPIC in NOT_ALLOWED_SEND_TOPICS

    def test_reserved_properties(self):
        assert {"KEYS", "TAGS", "UNIQ_KEY", "__CRC32#"} <= STRING_PROPERTY
        assert "color" not in STRING_PROPERTY


class TestSysFlag:
    def test_transaction_value(self):
        assert MessageSysFlag.transaction_value(0xFF) == MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
        assert MessageSysFlag.transaction_value(0x13) == MessageSysFlag.TRANSACTION_NOT_TYPE

    def test_compression_type(self):
        assert MessageSysFlag.compression_type(0x101) == MessageSysFlag.COMPRESSION_LZ4_TYPE
        assert MessageSysFlag.compression_type(0x1) == MessageSysFlag.COMPRESSION_ZLIB_TYPE


class TestDelayLevels:
    def test_default_table(self):
        table = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)
        assert len(table) == 18
        assert (table[1], table[4], table[5], table[18]) == (1000, 30_000, 60_000, 7_200_000)

    @pytest.mark.parametrize("text", ["", " ", "1", "s", "1x", "-1s", "1.5s", "²s"])
    def test_illegal(self, text):
        with pytest.raises(ConfigError):
            parse_delay_levels(text)

    def test_deliver_timestamp(self):
        table = {1: 1000, 2: 5000}
        assert deliver_timestamp(2, 100, table) == 5100
        assert deliver_timestamp(9, 100, table) == 5100
        assert deliver_timestamp(0, 100, table) == 1100
        assert deliver_timestamp(3, 100, {}) == 1100

    def test_queue_of_a_level(self):
        assert delay_level_to_queue_id(1) == 0
        assert queue_id_to_delay_level(delay_level_to_queue_id(18)) == 18
