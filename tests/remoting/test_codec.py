"""Frames: any bytes give a frame, need more, or ProtocolError."""

from __future__ import annotations

import re
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import HeaderError, ProtocolError
from mqlake.remoting import codec
from mqlake.remoting.codec import decode_frame, encode_frame, encode_into, frame_end, frame_size, join_small
from mqlake.remoting.codes import LanguageCode, ResponseCode, SerializeType
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.headers.namesrv import GetRouteInfoRequestHeader

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    kind = draw(st.sampled_from(SerializeType))
    some = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    texts = TEXT if kind is SerializeType.JSON else some
    return RemotingCommand(
        draw(INT32 if kind is SerializeType.JSON else st.integers(-(2**15), 2**15 - 1)),
        language=draw(st.sampled_from(LanguageCode)),
        version=draw(st.integers(0, 2**15 - 1)),
        opaque=draw(INT32),
        flag=draw(INT32),
        remark=draw(st.none() | texts),
        ext_fields=draw(st.dictionaries(texts, texts, max_size=4)),
        body=draw(st.none() | st.binary(min_size=1, max_size=40)),
        serialize_type=kind,
    )


def same(one: RemotingCommand, other: RemotingCommand) -> bool:
    slots = [name for name in RemotingCommand.__slots__ if name != "body"]
    return all(getattr(one, name) == getattr(other, name) for name in slots) and (
        one.body_bytes() == other.body_bytes()
    )


def decode(frame: bytes) -> RemotingCommand:
    assert frame_end(frame, 0, len(frame)) == len(frame)
    return decode_frame(memoryview(frame), 0, len(frame))


@given(commands())
def test_round_trip(command: RemotingCommand):
    assert same(decode(encode_frame(command)), command)


@given(commands(), st.binary(max_size=5))
def test_a_frame_ends_where_it_ends(command: RemotingCommand, behind: bytes):
    frame = encode_frame(command)
    for cut in range(len(frame)):
        assert frame_end(frame, 0, cut) == 0
        assert frame_end(b"xyz" + frame, 3, 3 + cut) == 0
    assert frame_end(b"xyz" + frame + behind, 3, 3 + len(frame) + len(behind)) == 3 + len(frame)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_more_or_an_error(data: bytes):
    try:
        if end := frame_end(data, 0, len(data)):
            decode_frame(memoryview(data), 0, end)
    except ProtocolError:
        pass


@given(st.sampled_from([0, 1, 2, 255]), st.binary(max_size=64), st.integers(0, 80))
def test_any_header_is_read_or_refused(kind: int, rest: bytes, header_size: int):
    frame = struct.pack(">iI", 4 + len(rest), kind << 24 | header_size) + rest
    try:
        decode(frame)
    except ProtocolError:
        pass


@given(commands(), st.data())
def test_a_damaged_frame_is_read_or_refused(command: RemotingCommand, data: st.DataObject):
    frame = bytearray(encode_frame(command))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(frame))
    except ProtocolError:
        pass


@pytest.mark.parametrize("size", [-(2**31), -5, 0, 3, 16_777_213, 2**31 - 1])
def test_a_length_that_no_frame_has(size: int):
    with pytest.raises(ProtocolError, match="frame of"):
        frame_end(struct.pack(">i", size), 0, 4)


def test_the_longest_frame_is_waited_for():
    with pytest.raises(ProtocolError, match="begins with 'GET ', as HTTP does"):
        frame_size(memoryview(b"xGET / HTTP/1.1"), 1, 15)
    assert frame_size(struct.pack(">i", 16_777_212), 0, 4) == 16_777_216
    assert frame_size(b"\0\0\0", 0, 3) == 0
    assert frame_end(struct.pack(">i", 16_777_212), 0, 4) == 0


def with_header(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), kind << 24 | len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"opaque":2147483648}',
        b'{"opaque":null}',
        b'{"code":1,"extFields":[1]}',
        b'{"code":1,"extFields":{"a":{"b":1}}}',
        b'{"code":1,"remark":[]}',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_json_headers_that_are_none(header: bytes):
    with pytest.raises(ProtocolError):
        decode(with_header(header))


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (b'{"code":-2147483648,"version":2147483647,"opaque":2147483648}', "opaque is 2147483648"),
        (b'{"code":2147483647,"version":-2147483648,"opaque":-2147483649}', "opaque is -2147483649"),
        (b'{"code":"%s"}' % (b"x" * 78), f"code is '{'x' * 78}'"),
        (b'{"code":"%s"}' % (b"x" * 79), f"code is '{'x' * 76}..."),
    ],
)
def test_the_error_names_the_field_that_is_no_number_and_little_of_it(header: bytes, named: str):
    with pytest.raises(ProtocolError, match=f"{re.escape(named)}, not a 32-bit number"):
        decode(with_header(header))


def test_a_json_header_with_little_in_it():
    command = decode(with_header(b"{'code':34,language:'NO_SUCH', extFields:{n:1,t:true,f:false,none:null}}"))
    assert (command.code, command.language, command.opaque) == (34, LanguageCode.OTHER, 0)
    assert command.ext_fields == {"n": "1", "t": "true", "f": "false"}


def test_a_long_header_in_the_slow_dialect_is_refused():
    header = b"{'code':34,'remark':'" + b"x" * codec.DIALECT_HEADER_SIZE_MAX + b"'}"
    with pytest.raises(ProtocolError, match="not JSON"):
        decode(with_header(header))


def test_a_header_beyond_the_limit_is_refused():
    header = b'{"remark":"' + b"x" * codec.HEADER_SIZE_MAX + b'"}'
    with pytest.raises(ProtocolError, match="more than"):
        decode(with_header(header))


def test_the_bytes_of_a_json_command():
    command = RemotingCommand(105, language=LanguageCode.JAVA, opaque=7, ext_fields={"topic": "T"}, body=b"b")
    header = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert encode_frame(command) == struct.pack(">iI", 5 + len(header), len(header)) + header + b"b"


def test_the_bytes_of_a_binary_command():
    command = RemotingCommand(
        105, language=LanguageCode.GO, opaque=7, ext_fields={"k": "v"}, serialize_type=SerializeType.ROCKETMQ
    )
    header = bytes.fromhex("0069 09 01df 00000007 00000000 00000000 00000008 0001 6b 00000001 76")
    assert encode_frame(command) == struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        "0069 09 01df 00000007 00000000 00000000",  # no fields
        "0069 09 01df 00000007 00000000 ffffffff 00000000",  # a remark of -1 bytes
        "0069 09 01df 00000007 00000000 00000005 00000000",  # a remark beyond the header
        "0069 09 01df 00000007 00000000 00000000 ffffffff",
        "0069 09 01df 00000007 00000000 00000000 00000001",
        "0069 09 01df 00000007 00000000 00000000 00000001 00",
        "0069 09 01df 00000007 00000000 00000000 00000002 ffff",
        "0069 09 01df 00000007 00000000 00000000 00000007 0001 6b ffffffff",
        "0069 09 01df 00000007 00000000 00000000 00000007 0001 6b 00000001",
        "0069 09 01df 00000007 00000000 00000000 00000008 0001 ff 00000001 76",  # not UTF-8
    ],
)
def test_binary_headers_that_are_none(header: str):
    with pytest.raises(ProtocolError):
        decode(with_header(bytes.fromhex(header), kind=1))


@pytest.mark.parametrize("field", ["0001 6b 00000000", "0000 00000001 76", "0000 00000000"])
def test_binary_fields_without_a_name_or_a_value_are_left_out(field: str):
    """As RocketMQ leaves them out: null and the empty text are one in this form."""
    fields = bytes.fromhex(field + "0001 78 00000001 79")
    header = (
        bytes.fromhex("0069 09 01df 00000007 00000000 00000000") + struct.pack(">i", len(fields)) + fields
    )
    assert decode(with_header(header, kind=1)).ext_fields == {"x": "y"}


@pytest.mark.parametrize("code", [-40_000, 40_000, 200_050])
def test_what_the_binary_form_cannot_say_is_json(code: int):
    command = RemotingCommand(code, serialize_type=SerializeType.ROCKETMQ)
    assert decode(encode_frame(command)).serialize_type is SerializeType.JSON
    long_key = RemotingCommand(1, ext_fields={"k" * 40_000: "v"}, serialize_type=SerializeType.ROCKETMQ)
    assert decode(encode_frame(long_key)).ext_fields == long_key.ext_fields


@pytest.mark.parametrize("kind", SerializeType)
def test_half_a_character_in_an_answer_is_sent_anyway(kind: SerializeType):
    """What UTF-8 cannot hold is `?`, in both forms, and all else is as it is without it: the code is a number."""
    bad, good = (
        RemotingCommand(
            ResponseCode.SYSTEM_ERROR,
            flag=1,
            remark=f"file {text}",
            ext_fields={f"k{text}": f"v/é{text}"},
            serialize_type=kind,
        )
        for text in ("\udcff", "?")
    )
    assert encode_frame(bad) == encode_frame(good)
    assert decode(encode_frame(bad)).code == 1


def test_a_request_names_the_field_that_utf_8_cannot_hold():
    """Without it the broker would answer for another topic, or close the connection with all that is in flight."""
    with pytest.raises(HeaderError, match=r"the field <topic> of the request holds half a character"):
        RemotingCommand.create_request(1, GetRouteInfoRequestHeader(topic="T\ud800"))


def test_a_frame_too_large_is_not_written():
    with pytest.raises(ProtocolError):
        encode_frame(RemotingCommand(1, body=bytes(codec.FRAME_SIZE_MAX)))
    with pytest.raises(ProtocolError):
        encode_frame(RemotingCommand(1, remark="x" * codec.HEADER_SIZE_MAX))


def test_the_header_of_an_answer_may_fill_its_frame():
    answer = RemotingCommand(0, flag=RESPONSE_FLAG, ext_fields={"msgId": "x" * (4 << 20)})
    for kind in SerializeType:
        answer.serialize_type = kind
        frame = encode_frame(answer)
        with pytest.raises(ProtocolError, match="more than"):
            decode(frame)
        read = decode_frame(memoryview(frame), 0, len(frame), codec.FRAME_SIZE_MAX)
        assert read.ext_fields == answer.ext_fields
    with pytest.raises(ProtocolError):
        encode_frame(RemotingCommand(1, flag=RESPONSE_FLAG, remark="x" * codec.FRAME_SIZE_MAX))


def test_a_body_of_slices_is_sent_without_a_copy():
    log = bytearray(range(256)) * 1000
    slices = [memoryview(log)[:100_000], memoryview(log)[5:30]]
    command = RemotingCommand(0, body=slices)
    out: list = [b"before"]
    size = encode_into(out, command)
    assert out[2] is slices[0] and out[3] is slices[1]
    assert decode(b"".join(out[1:])).body_bytes() == bytes(log[:100_000]) + bytes(log[5:30])
    assert size == sum(map(len, out[1:]))


def test_small_buffers_are_joined():
    large = bytes(codec.BODY_JOINED_MAX + 1)
    assert join_small([b"a", b"b", large, b"c", b"d"]) == [b"ab", large, b"cd"]
    assert join_small([b"a"]) == [b"a"]


def test_the_body_is_a_slice_of_what_was_received():
    frame = bytearray(encode_frame(RemotingCommand(1, body=b"abc")))
    command = decode_frame(memoryview(frame), 0, len(frame))
    frame[-1:] = b"X"
    assert command.body_bytes() == b"abX"


def test_decoding_copies_no_body():
    frame = encode_frame(RemotingCommand(1, ext_fields={"k": "v" * 10_000}, body=bytes(8_000_000)))
    tracemalloc.start()
    try:
        decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", ['"v"', "[]", "1e300", '{"a":{}}'])
def test_the_worst_header_costs_a_bounded_multiple_of_its_size(value: str):
    fields = ",".join(f'"{i:x}":{value}' for i in range(40_000))
    header = f'{{"code":1,"extFields":{{{fields}}}}}'.encode()
    assert len(header) < codec.HEADER_SIZE_MAX
    tracemalloc.start()
    try:
        decode(with_header(header))
    except ProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 40 * len(header)
