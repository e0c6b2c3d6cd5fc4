import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqlake.errors import (
    BadCrcError,
    BadLengthError,
    BadMagicError,
    FormatError,
    IllegalTopicError,
    MessageError,
    PropertiesTooLargeError,
    TruncatedRecordError,
)
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    CRC32_TAIL_LENGTH,
    HEADS,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    RECORD_SIZE_MIN,
    RecordKind,
    RecordPlace,
    calculate_message_length,
    check_record,
    decode_record,
    encode_blank,
    encode_message,
    encode_record,
    store_timestamp,
    why_not_at,
)
from mqlake.message import bytes_to_properties, crc32, host_bytes, properties_to_bytes

V4 = host_bytes(("127.0.0.1", 10911))
V6 = host_bytes(("2001:db8::1", 10911))
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
PROPERTIES = properties_to_bytes({"TAGS": "TagA", "KEYS": "a b"})


def make(
    body=b"Hello RocketMQ 0",
    *,
    topic=b"TopicTest",
    properties=PROPERTIES,
    physical_offset=4096,
    born_host=V4,
    store_host=V4,
    **more,
):
    fields = {
        "body": body,
        "body_crc": crc32(body),
        "queue_id": 3,
        "flag": 7,
        "queue_offset": 11,
        "physical_offset": physical_offset,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": born_host,
        "store_timestamp": 1_700_000_000_001,
        "store_host": store_host,
        "reconsume_times": 2,
        "prepared_transaction_offset": 5,
        "topic": topic,
        "properties": properties,
    }
    return encode_record(**(fields | more))


@st.composite
def fields(draw):
    version = draw(st.sampled_from([1, 2]))
    body = draw(st.binary(max_size=200))
    return {
        "body": body,
        "body_crc": crc32(body),
        "queue_id": draw(I32),
        "flag": draw(I32),
        "queue_offset": draw(I64),
        "physical_offset": draw(I64),
        "sys_flag": draw(I32),
        "born_timestamp": draw(I64),
        "born_host": draw(st.sampled_from([V4, V6])),
        "store_timestamp": draw(I64),
        "store_host": draw(st.sampled_from([V4, V6])),
        "reconsume_times": draw(I32),
        "prepared_transaction_offset": draw(I64),
        "topic": draw(st.text(st.characters(codec="ascii"), max_size=127 if version == 1 else 300)).encode(),
        "properties": properties_to_bytes(
            draw(st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1), max_size=3))
        ),
        "version": version,
    }


class TestLayout:
    def test_heads_have_the_specified_sizes(self):
        # 4+4+4+4+4+8+8+4+8 +host+ 8 +host+ 4+8 and the body length
        assert [HEADS[flags].size for flags in (0, 0x10, 0x20, 0x30)] == [88, 100, 100, 112]
        assert RECORD_SIZE_MIN == calculate_message_length(0, 0, 0, 0) == 91

    def test_magic_codes(self):
        assert MESSAGE_MAGIC_CODE & 0xFFFFFFFF == 0xDAA320A7
        assert MESSAGE_MAGIC_CODE_V2 & 0xFFFFFFFF == 0xDAA320AB
        assert BLANK_MAGIC_CODE & 0xFFFFFFFF == 0xCBD43194

    def test_every_field_is_where_the_table_says(self):
        body, topic = b"Hello RocketMQ 0", b"TopicTest"
        expected = b"".join(
            [
                (91 + len(body) + len(topic) + len(PROPERTIES)).to_bytes(4, "big"),
                bytes.fromhex("DAA320A7"),
                (613185359).to_bytes(4, "big"),
                (3).to_bytes(4, "big"),
                (7).to_bytes(4, "big"),
                (11).to_bytes(8, "big"),
                (4096).to_bytes(8, "big"),
                (0).to_bytes(4, "big"),
                (1_700_000_000_000).to_bytes(8, "big"),
                bytes.fromhex("7F000001 00002A9F"),
                (1_700_000_000_001).to_bytes(8, "big"),
                bytes.fromhex("7F000001 00002A9F"),
                (2).to_bytes(4, "big"),
                (5).to_bytes(8, "big"),
                len(body).to_bytes(4, "big") + body,
                len(topic).to_bytes(1, "big") + topic,
                len(PROPERTIES).to_bytes(2, "big") + PROPERTIES,
            ]
        )
        assert make(body, topic=topic) == expected

    def test_blank(self):
        assert encode_blank(100) == bytes.fromhex("00000064 CBD43194")


class TestEncode:
    @given(fields(), st.booleans())
    def test_round_trip(self, given_fields, prop_crc):
        data = encode_record(**given_fields, prop_crc=prop_crc)
        assert len(data) == calculate_message_length(
            int.from_bytes(data[36:40], "big"),
            len(given_fields["body"]),
            len(given_fields["topic"]),
            len(given_fields["properties"]) + (CRC32_TAIL_LENGTH if prop_crc else 0),
            given_fields["version"],
        )
        for buf, pos in (data, 0), (b"before" + data + b"after", 6), (memoryview(bytearray(data)), 0):
            message = decode_record(buf, pos)
            assert message.topic.encode() == given_fields["topic"]
            assert host_bytes(message.born_host) == given_fields["born_host"]
            assert host_bytes(message.store_host) == given_fields["store_host"]
            assert message.sys_flag & ~0x30 == given_fields["sys_flag"] & ~0x30
            assert message.sys_flag & 0x10 == (0x10 if given_fields["born_host"] == V6 else 0)
            assert message.sys_flag & 0x20 == (0x20 if given_fields["store_host"] == V6 else 0)
            for name in ("body", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset"):
                assert getattr(message, name) == given_fields[name]
            for name in (
                "born_timestamp",
                "store_timestamp",
                "reconsume_times",
                "prepared_transaction_offset",
            ):
                assert getattr(message, name) == given_fields[name]
            properties = message.properties
            if prop_crc:
                assert int(properties.pop("__CRC32#")[::-1]) == crc32(data[:-CRC32_TAIL_LENGTH])
            assert properties == bytes_to_properties(given_fields["properties"])
            assert message.store_size == len(data)
            assert check_record(
                buf, pos, len(buf), given_fields["physical_offset"], force_prop_crc=prop_crc
            ) == (RecordKind.MESSAGE, len(data), "")

    def test_longest_topics(self):
        assert decode_record(make(topic=b"t" * 127)).topic == "t" * 127
        assert decode_record(make(topic=b"t" * 255, version=2)).topic == "t" * 255
        with pytest.raises(IllegalTopicError):
            make(topic=b"t" * 128)
        with pytest.raises(IllegalTopicError):
            make(topic=b"t" * 32768, version=2)

    def test_longest_properties(self):
        longest = b"a\x01" + b"x" * 32764 + b"\x02"
        assert len(decode_record(make(properties=longest)).properties["a"]) == 32764
        with pytest.raises(PropertiesTooLargeError):
            make(properties=longest + b"\x02")
        with pytest.raises(PropertiesTooLargeError):
            make(properties=longest, prop_crc=True)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"queue_id": 1 << 31},
            {"queue_offset": 1 << 63},
            {"born_host": b"\x7f\0\0\x01"},
            {"store_host": b""},
        ],
    )
    def test_what_does_not_fit_is_a_message_error(self, wrong):
        with pytest.raises(MessageError):
            make(**wrong)


class TestPropertyCrc:
    def tail(self, **more):
        data = make(prop_crc=True, **more)
        return data, data[-CRC32_TAIL_LENGTH:]

    def test_layout(self):
        data, tail = self.tail()
        digits = f"{crc32(data[:-CRC32_TAIL_LENGTH]):010d}"[::-1].encode()
        assert tail == b"__CRC32#\x01" + digits + b"\x02"
        assert data[:-CRC32_TAIL_LENGTH].endswith(PROPERTIES)

    def test_separator_is_inserted_only_when_one_is_missing(self):
        assert len(make(properties=b"a\x01b", prop_crc=True)) == len(
            make(properties=b"a\x01b\x02", prop_crc=True)
        )
        assert make(properties=b"a\x01b", prop_crc=True) == make(properties=b"a\x01b\x02", prop_crc=True)
        assert len(make(properties=b"", prop_crc=True)) == len(make(properties=b"")) + CRC32_TAIL_LENGTH

    def test_verified_when_forced(self):
        data, _ = self.tail()
        for pos in range(8, len(data)):
            if pos in range(28, 36):
                continue  # the physical offset has its own reason
            broken = bytearray(data)
            broken[pos] ^= 1
            check = check_record(broken, 0, len(broken), 4096, force_prop_crc=True)
            assert check.kind is RecordKind.INVALID, pos

    def test_a_record_without_it_is_checked_by_its_body(self):
        for data in make(), make(properties=b""):
            assert check_record(data, 0, len(data), 4096, force_prop_crc=True).kind is RecordKind.MESSAGE
            broken = bytearray(data)
            broken[88] ^= 1
            check = check_record(broken, 0, len(broken), 4096, force_prop_crc=True)
            assert check == (RecordKind.INVALID, 0, "body CRC")

    def test_verified_unasked_where_the_next_record_has_a_right_one(self):
        data, _ = self.tail()
        following, _ = self.tail(physical_offset=4096 + len(data))
        for pos in range(8, len(data)):
            if pos in range(28, 36):
                continue
            broken = bytearray(data + following)
            broken[pos] ^= 1
            check = check_record(broken, 0, len(broken), 4096)
            assert check.kind is RecordKind.INVALID, pos
        assert check_record(data + following, 0, len(data + following), 4096).kind is RecordKind.MESSAGE

    def test_one_that_a_client_has_sent_means_nothing(self):
        """A store that writes none keeps what a client calls so: a record in another place had it, or nobody."""
        sent = make(properties=b"a\x01b\x02__CRC32#\x010123456789\x02")
        for following in make(physical_offset=4096 + len(sent)), sent, b"":
            log = sent + following
            assert check_record(log, 0, len(log), 4096).kind is RecordKind.MESSAGE
        assert check_record(sent, 0, len(sent), 4096, force_prop_crc=True).kind is RecordKind.INVALID

    def test_not_looked_at_without_checksums(self):
        data = bytearray(make(prop_crc=True))
        data[-2] ^= 1
        check = check_record(data, 0, len(data), 4096, check_crc=False, force_prop_crc=True)
        assert check.kind is RecordKind.MESSAGE


class TestDecode:
    def test_without_body(self):
        data = bytearray(make())
        data[88] ^= 1
        assert decode_record(data, read_body=False).body == b""
        assert decode_record(data, check_crc=False).body[1:] == b"ello RocketMQ 0"
        with pytest.raises(BadCrcError):
            decode_record(data)

    def test_not_utf_8(self):
        message = decode_record(make(topic=b"T\xff", properties=b"k\x01\xfe\x02"))
        assert (message.topic, message.properties) == ("T\ufffd", {"k": "\ufffd"})

    def test_blank_and_zeros_are_no_record(self):
        for data in encode_blank(100) + bytes(92), bytes(100):
            with pytest.raises(BadMagicError):
                decode_record(data)

    def test_truncated_at_every_point(self):
        data = make(store_host=V6)
        for length in range(len(data)):
            with pytest.raises(TruncatedRecordError):
                decode_record(data[:length])
            check = check_record(data[:length], 0, len(data), 4096)
            # a few zeros cannot be told from the zeros behind the last record
            assert check.kind is (RecordKind.TRUNCATED if any(data[:length]) else RecordKind.END)
            assert check_record(data, 0, length, 4096).kind is check.kind

    def test_positions_outside(self):
        data = make()
        for pos in -1, len(data), len(data) + 1:
            with pytest.raises(TruncatedRecordError):
                decode_record(data, pos)

    @pytest.mark.parametrize(
        ("pos", "fmt", "value"),
        [
            (0, ">i", 90),
            (0, ">i", -1),
            (84, ">i", -1),
            (84, ">i", 1 << 30),
            (84, ">i", 17),
            (104, ">b", -1),
            (104, ">b", 127),
        ],
    )
    def test_lengths_that_contradict(self, pos, fmt, value):
        data = bytearray(make())
        struct.pack_into(fmt, data, pos, value)
        with pytest.raises(BadLengthError):
            decode_record(data)
        assert check_record(data, 0, len(data), 4096).kind is RecordKind.INVALID

    def test_smallest_record_with_larger_hosts(self):
        data = bytearray(make(b"", topic=b"", properties=b""))
        assert len(data) == RECORD_SIZE_MIN
        data[39] |= 0x30
        with pytest.raises(BadLengthError):
            decode_record(data)

    @given(fields(), st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 255)), min_size=1, max_size=4))
    def test_mutations_raise_format_errors_only(self, given_fields, changes):
        data = bytearray(encode_record(**given_fields))
        for pos, flip in changes:
            data[pos % len(data)] ^= flip
        self.decodes_or_format_error(bytes(data))

    @given(st.binary(max_size=200))
    @example(b"")
    def test_any_bytes(self, data):
        self.decodes_or_format_error(data)

    @given(
        st.binary(min_size=100, max_size=200), st.sampled_from([MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2])
    )
    def test_any_bytes_behind_a_magic(self, data, magic):
        self.decodes_or_format_error(struct.pack(">ii", len(data), magic) + data[8:])

    def decodes_or_format_error(self, data):
        try:
            message = decode_record(data)
        except FormatError as e:
            decoded, error = None, e
            assert 0 <= e.offset <= len(data)
        else:
            decoded, error = message, None
        physical_offset = decoded.physical_offset if decoded else 0
        check = check_record(data, 0, len(data), physical_offset)
        assert (check.kind is RecordKind.MESSAGE) == (decoded is not None) or (
            # decode_record does not know where the record should be
            "physical offset" in check.reason
        )
        assert check.kind is not RecordKind.TRUNCATED or isinstance(
            error, (TruncatedRecordError, BadMagicError)
        )
        check_record(data, 0, len(data), physical_offset, force_prop_crc=True)


class TestCheck:
    def test_message(self):
        data = make()
        assert check_record(data, 0, len(data), 4096) == (RecordKind.MESSAGE, len(data), "")

    def test_another_place(self):
        check = check_record(make(), 0, 1000, 4097)
        assert check == (RecordKind.INVALID, 0, "physical offset 4096 where 4097 was expected")

    def test_body_crc(self):
        data = bytearray(make())
        data[90] ^= 4
        assert check_record(data, 0, len(data), 4096) == (RecordKind.INVALID, 0, "body CRC")
        assert check_record(data, 0, len(data), 4096, check_crc=False).kind is RecordKind.MESSAGE

    def test_body_crc_of_no_body(self):
        data = make(b"", body_crc=5)
        assert check_record(data, 0, len(data), 4096).kind is RecordKind.MESSAGE
        assert decode_record(data).body_crc == 5

    def test_blank(self):
        data = encode_blank(100) + bytes(92)
        assert check_record(data, 0, 100, 0) == (RecordKind.BLANK, 100, "")
        assert check_record(data, 0, 99, 0).kind is RecordKind.TRUNCATED
        assert check_record(encode_blank(8), 0, 8, 0) == (RecordKind.BLANK, 8, "")
        assert check_record(encode_blank(7), 0, 8, 0).kind is RecordKind.INVALID

    def test_clean_end(self):
        for length in (0, 1, 7, 8, 100):
            assert check_record(bytes(length), 0, length, 0) == (RecordKind.END, 0, "")
        assert check_record(b"\0\0\x01", 0, 3, 0).kind is RecordKind.TRUNCATED

    def test_size_not_yet_written(self):
        data = bytes(4) + make()[4:]
        assert check_record(data, 0, len(data), 4096) == (RecordKind.END, 0, "")
        blank = bytes(4) + encode_blank(100)[4:]
        assert check_record(blank, 0, 8, 0) == (RecordKind.END, 0, "")

    def test_limit_hides_what_follows(self):
        data = make() + make()
        assert check_record(data, 0, len(data) // 2, 4096).kind is RecordKind.MESSAGE
        assert check_record(data, len(data) // 2, len(data), 4096).kind is RecordKind.MESSAGE


@pytest.mark.parametrize("born_host", [("1.2.3.4", 5), ("::1", 6)])
def test_the_store_time_of_a_record_anywhere(born_host):
    record = make(born_host=host_bytes(born_host), store_timestamp=-77)
    assert store_timestamp(b"??" + record, 2) == -77


class TestWhyNotAt:
    """What a consume queue unit says of its record, against the record."""

    DATA = make()
    PLACE = RecordPlace(len(DATA), 4096, 3, 11, b"TopicTest")

    def test_is_empty_for_the_record_itself(self):
        for before in (0, 40):
            log = b"\xff" * before + self.DATA + make(physical_offset=4096 + len(self.DATA))
            for available in (len(self.DATA), len(log) - before):
                assert why_not_at(log, before, available, self.PLACE, check_crc=True) == ""

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            ({"size": 1}, "where one of 1 bytes at 4096 was expected"),
            ({"physical_offset": 4097}, "at 4097 was expected"),
            ({"queue_id": 4}, "queue 3, queue offset 11, where 4 and 11 were expected"),
            ({"queue_offset": 12}, "queue 3, queue offset 11, where 3 and 12 were expected"),
            ({"topic": b"TopicTesT"}, "the record says topic 'TopicTest'"),
        ],
    )
    def test_names_what_differs(self, changed, reason):
        assert reason in why_not_at(self.DATA, 0, len(self.DATA), self.PLACE._replace(**changed))

    def test_a_light_queue_points_to_records_of_other_queues(self):
        place = self.PLACE._replace(queue_id=None, queue_offset=99, topic=b"%LMQ%other")
        assert why_not_at(self.DATA, 0, len(self.DATA), place, check_crc=True) == ""

    def test_the_body_is_checked_on_request(self):
        for body in (b"Hello", b""):
            data = make(body, body_crc=1)
            place = self.PLACE._replace(size=len(data))
            assert why_not_at(data, 0, len(data), place) == ""
            assert why_not_at(data, 0, len(data), place, check_crc=True) == ("body CRC" if body else "")

    @pytest.mark.parametrize(
        ("pos", "available"), [(0, 0), (0, 7), (-1, 117), (1, 117), (117, 8), (1 << 40, 117)]
    )
    def test_where_there_are_no_such_bytes(self, pos, available):
        assert len(self.DATA) > 117
        data = self.DATA[:117]
        assert why_not_at(data, pos, available, self.PLACE) == "the log has no such bytes"

    def test_what_is_no_record(self):
        assert why_not_at(encode_blank(100), 0, 8, self.PLACE) == "a blank, not a record"
        assert (
            why_not_at(self.DATA, 0, 90, self.PLACE) == f"the record has {len(self.DATA)} bytes, 90 are there"
        )


def test_a_message_becomes_the_record_that_it_was_read_from() -> None:
    for topic, version in ((b"Topic", 1), (b"T" * 128, 2)):
        for hosts in ((V4, V4), (V4, V6), (V6, V4)):
            record = encode_record(
                b"body",
                crc32(b"body"),
                1,
                2,
                3,
                4,
                0x4,
                5,
                hosts[0],
                6,
                hosts[1],
                7,
                8,
                topic,
                b"a\x01b\x02",
                version,
            )
            assert encode_message(decode_record(record)) == record
