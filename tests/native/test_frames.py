"""The compiled reader of frames beside the codec: the same, or CODEC_ONLY; and never outside of its buffers."""

from __future__ import annotations

import dataclasses
import json
import random
import string
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake import native
from mqlake.errors import ProtocolError
from mqlake.native import frame_layout as layout
from mqlake.native.frame_layout import BLOCK
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import SendMessageRequestHeader, SendMessageRequestHeaderV2
from tests.formats.columns_cases import INPUT, OUTPUT

kernels = native.module("frames")
HEAD = np.zeros(layout.HEAD_ROOM, np.int64)
FIELDS = np.zeros((layout.LETTERS, 2), np.int64)
SHAPES = np.zeros(layout.SHAPES_SIZE, np.uint8)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COMMANDS = st.builds(
    RemotingCommand,
    st.integers(-(2**15), 2**15 - 1),
    opaque=INT32,
    flag=INT32,
    ext_fields=st.one_of(
        st.dictionaries(st.sampled_from(names), TEXTS.filter(bool), max_size=5)
        for names in ("abcxyz", layout.LONG_NAMES)
    ),
    body=st.one_of(st.none(), st.binary(max_size=20)),
    serialize_type=st.sampled_from(SerializeType),
)


def read(data: bytes, room: int | None = None) -> tuple[int, RemotingCommand | None]:
    """What `read_frame` says, and the command it found."""
    text = OUTPUT.put(bytes(len(data) + BLOCK if room is None else room))
    stop, end = kernels.read(INPUT.put(data), HEAD, FIELDS, text, SHAPES)
    assert 0 <= end <= len(text)
    if stop <= 0:
        return stop, None
    code, flag, opaque, body_start, names = HEAD[: layout.HEAD_NAMES + 1].tolist()
    name_of = {layout.LONG: layout.LONG_NAMES}.get(names, string.ascii_lowercase)
    fields = {
        name_of[letter]: text[start : start + length].tobytes().decode()
        for letter, (start, length) in enumerate(FIELDS.tolist())
        if length >= 0
    }
    return stop, RemotingCommand(
        code, flag=flag, opaque=opaque, ext_fields=fields, body=data[body_start:stop]
    )


def assert_alike(data: bytes) -> int:
    """Checks it against the codec; what `read_frame` says."""
    stop, found = read(data)
    if found is not None:
        expected = decode_frame(memoryview(data), 0, stop)
        for name in ("code", "flag", "opaque", "ext_fields"):
            assert getattr(found, name) == getattr(expected, name), name
        assert not expected.remark
        assert found.body_bytes() == expected.body_bytes()
    return stop


@given(COMMANDS)
def test_as_the_codec_reads_it(command: RemotingCommand) -> None:
    frame = encode_frame(command)
    assert assert_alike(frame) == len(frame)
    assert assert_alike(frame + b"\0\0\0\x01") == len(frame)


PROPERTY = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)
PROPERTIES = st.lists(
    st.tuples(st.sampled_from(["UNIQ_KEY", "WAIT", "KEYS", "é"]), st.one_of(PROPERTY, TEXTS)), max_size=4
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs))


@given(COMMANDS, st.data())
def test_the_headers_before_change_nothing(command: RemotingCommand, data: st.DataObject) -> None:
    """Of the same shape, or nearly: with its bytes, some of them damaged, the next one is read as if it came first."""
    command.serialize_type = SerializeType.JSON
    names, properties = (
        [*command.ext_fields],
        "properties" if max(map(len, [*command.ext_fields, ""])) > 1 else "i",
    )
    frames = []
    for _ in range(data.draw(st.integers(2, 4))):
        command.ext_fields = {name: data.draw(TEXTS) or "x" for name in names if data.draw(st.integers(0, 9))}
        command.ext_fields[properties] = data.draw(PROPERTIES) or "x"
        command.opaque = data.draw(INT32)
        frames.append(encode_frame(command))
    last = bytearray(frames.pop())
    if data.draw(st.booleans()):
        last[data.draw(st.integers(8, len(last) - 1))] = data.draw(st.sampled_from(b'"\\,:{} 0a\x00\xff'))
    HEAD[:] = 0
    alone = read(bytes(last))
    HEAD[:] = 0
    for frame in frames:
        assert_alike(frame)
    assert repr(read(bytes(last))) == repr(alone)


def steps() -> int:
    """How many values of the last header's shape vary."""
    shape = int(HEAD[layout.HEAD_SHAPE])
    assert shape > 0
    return int(HEAD[shape + layout.SHAPE_STEPS])


def test_only_what_varies_is_read() -> None:
    """What the two headers before had in common is compared: with other bytes in its place none is read alike."""
    HEAD[:] = 0

    def frame(number: int) -> bytes:
        properties = f"KEYS\1k{number}\2TAGS\1T\2UNIQ_KEY\1{number}\2WAIT\1true\2"
        fields = {"a": "group", "e": str(number), "i": properties, "k": "false"}
        return encode_frame(RemotingCommand(310, opaque=number, ext_fields=fields))

    for number in range(7, 13):
        assert_alike(frame(number))
        # the opaque, e, KEYS, UNIQ_KEY, and where the properties begin and stop
        assert steps() == (3 if number == 7 else 6)
        assert bool(HEAD[layout.HEAD_NOTED]) == (number < 9)
        HEAD[layout.HEAD_NOTED] = 0
    assert read(frame(13).replace(b"group", b"grouq"))[0] > 0
    assert HEAD[layout.HEAD_NOTED] > 0 and steps() == 7


def test_a_pair_has_two_shapes() -> None:
    """Messages with keys and without in turn: each is read by its own shape."""
    HEAD[:] = 0
    for number in range(10, 20):
        for keys in ("", f"KEYS\1k{number}\2"):
            fields = {"i": f"{keys}UNIQ_KEY\1{number}\2"}
            assert_alike(encode_frame(RemotingCommand(310, opaque=number, ext_fields=fields)))
    assert sorted(HEAD[layout.SHAPES_AT :: layout.SHAPE_SIZE].nonzero()[0]) == [0, 1]
    assert steps() == 5


def test_a_shape_is_of_one_command() -> None:
    """Batches and single messages in turn: what tells one from the other does not vary."""
    HEAD[:] = 0
    for number in range(10, 20):
        for code, is_batch in ((310, "false"), (320, "true")):
            fields = {"i": f"UNIQ_KEY\1{number}\2", "m": is_batch}
            assert_alike(encode_frame(RemotingCommand(code, opaque=number, ext_fields=fields)))
            assert steps() == (3 if number == 10 else 4)


JSON_VALUES = st.one_of(
    TEXTS, st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.floats(allow_nan=False)
)
SPACE = st.text(" \t\r\n", max_size=2)


@given(
    COMMANDS, st.dictionaries(st.sampled_from("abcxyz"), JSON_VALUES, max_size=5), st.booleans(), st.data()
)
def test_json_in_any_form(
    command: RemotingCommand, fields: dict[str, object], ascii_only: bool, data: st.DataObject
) -> None:
    """Any order, spaces, types of values; nulls; escapes: as the codec reads it, and mostly by this reader."""
    header = [
        ("code", command.code),
        ("flag", command.flag),
        ("opaque", command.opaque),
        ("version", 1),
        ("language", data.draw(st.sampled_from(["JAVA", "x", 3, None]))),
        ("remark", data.draw(st.sampled_from([None, ""]))),
        ("extFields", fields),
    ]
    separators = tuple(data.draw(SPACE) + mark + data.draw(SPACE) for mark in ",:")
    text = json.dumps(
        dict(data.draw(st.permutations(header))), separators=separators, ensure_ascii=ascii_only
    )  # type: ignore[arg-type]
    raw = (data.draw(SPACE) + text + data.draw(SPACE)).encode()
    body = command.body_bytes()
    frame = struct.pack(">ii", 4 + len(raw) + len(body), len(raw)) + raw + body
    stop = assert_alike(frame)
    is_usual = fields and all(
        isinstance(value, bool | None)
        or (isinstance(value, int) and abs(value) < 2**63)
        or (isinstance(value, str) and (not ascii_only or max(value, default="") < "\U00010000"))
        for value in fields.values()
    )
    assert stop == (len(frame) if is_usual else layout.CODEC_ONLY)


@given(COMMANDS, st.data())
def test_a_part_of_a_frame_needs_more(command: RemotingCommand, data: st.DataObject) -> None:
    frame = encode_frame(command)
    assert read(frame[: data.draw(st.integers(0, len(frame) - 1))]) == (layout.NEED_MORE, None)


def test_long_names_stand_for_the_letters() -> None:
    values = ["group", "topic", "default", "1", "2", "3", "4", "5", "properties", "6", "true", "7", "false"]
    v1 = SendMessageRequestHeader.decode(dict(zip(layout.LONG_NAMES[:13], values, strict=True)))
    v2 = SendMessageRequestHeaderV2.decode(dict(zip("abcdefghijklm", values, strict=True)))
    names = [field.name for field in dataclasses.fields(SendMessageRequestHeader)]
    assert [getattr(v1, name) for name in names] == [getattr(v2, name) for name in names]


@pytest.mark.parametrize("kind", list(SerializeType))
def test_what_names_there_are_is_said(kind: SerializeType) -> None:
    def names_of(*names: str) -> int:
        command = RemotingCommand(1, ext_fields=dict.fromkeys(names, "1"), serialize_type=kind)
        stop, _ = read(encode_frame(command))
        return int(HEAD[layout.HEAD_NAMES]) if stop > 0 else stop

    assert names_of() == 0
    assert names_of("a", "z") == layout.SHORT
    assert names_of("topic", "queueId") == layout.LONG
    assert names_of("topic", "e") == layout.SHORT | layout.LONG
    for names in (("topics",), ("Topic",), ("A",), ("{",), ("topic", "b"), ("sysflaG",), ("é",)):
        assert names_of(*names) == layout.CODEC_ONLY, names


@given(COMMANDS)
def test_without_room_for_the_fields(command: RemotingCommand) -> None:
    frame = encode_frame(command)
    assert read(frame, room=int.from_bytes(frame[5:8], "big") + BLOCK - 1) == (layout.CODEC_ONLY, None)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_any_header_bytes_are_read_alike_or_not_at_all(kind: SerializeType) -> None:
    source = random.Random(int(kind))
    fields = {"a": "group", "b": "topic", "e": "12", "i": 'k\x01v"\\\n\x02', "z": "x" * 30 + "é你\U0001f600"}
    frame = encode_frame(RemotingCommand(310, opaque=77, ext_fields=fields, serialize_type=kind))
    header = frame[8:]
    usual = 0
    for _ in range(20_000):
        changed = bytearray(header)
        for _ in range(source.randint(1, 4)):
            place = source.randrange(len(changed))
            what = source.random()
            if what < 0.4:
                changed[place] = source.choice(b'"\\,:{}[]0129-+eEu.tn\x00\x01\x02\x1f \x7f\x80\xff')
            elif what < 0.6:
                del changed[place]
            elif what < 0.8:
                changed[place:place] = changed[source.randrange(len(changed)) :][: source.randint(1, 9)]
            else:
                changed[place] ^= 1 << source.randrange(8)
        data = struct.pack(">iI", 4 + len(changed), kind << 24 | len(changed)) + changed
        try:
            usual += assert_alike(data) > 0
        except ProtocolError as error:
            pytest.fail(f"{data!r} was read, but {error}")
    assert 100 < usual < 19_000


@pytest.mark.parametrize("length", [-1, 0, 3, 16_777_213, 2**31 - 1, -(2**31)])
def test_lengths_that_no_frame_has(length: int) -> None:
    data = struct.pack(">iI", length, 0) + b"{}"
    assert read(data)[0] == layout.CODEC_ONLY


@pytest.mark.parametrize("header_length", [3, 4, 0xFFFFFF])
def test_a_header_longer_than_its_frame(header_length: int) -> None:
    assert read(struct.pack(">iI", 6, header_length) + b"{}", room=100)[0] == layout.CODEC_ONLY


@pytest.mark.parametrize(
    "value",
    [0, *(10**n + more for n in range(19) for more in (-1, 0, 1)), *(255, 2**31 - 1, 99_990_000, 2**63 - 1)],
)
def test_numbers_are_written(value: int) -> None:
    out = OUTPUT.put(b"\xff" * 40)
    end = kernels.write(out, 0, value)
    assert out[:end].tobytes() == b"%d" % value
    assert not out[end : max(8, end)].any() and (out[max(8, end) :] == 0xFF).all()
    assert kernels.write(out, 3, value, hexadecimal=True) == 19
    assert out[3:19].tobytes() == b"%016X" % value


def test_damaged_headers() -> None:
    """After one of the same shape."""
    from tests.fuzz import send_headers  # which uses this module

    done, count, found = send_headers.run(200_000)
    assert done >= 200_000 and 0 < found < count
