"""Every byte of a record belongs to one field, and each field says what the record has there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.console.record_bytes import dump, explain_checkpoint, explain_index_header, explain_record, hex_of
from mqlake.formats.checkpoint import Checkpoint
from mqlake.formats.index import IndexHeader
from mqlake.formats.record import decode_record, encode_record
from mqlake.message import crc32, properties_to_bytes
from mqlake.message.ids import host_bytes

names = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
hosts = st.sampled_from([("10.1.2.3", 4567), ("2001:db8::1", 1)])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=80))
    return encode_record(
        body,
        crc32(body),
        draw(st.integers(0, 1000)),
        0,
        draw(st.integers(0, 1 << 40)),
        draw(st.integers(0, 1 << 40)),
        0,
        draw(st.integers(0, 1 << 41)),
        host_bytes(draw(hosts)),
        draw(st.integers(0, 1 << 41)),
        host_bytes(draw(hosts)),
        draw(st.integers(0, 20)),
        0,
        draw(st.text("abcXYZ_-%", min_size=1, max_size=40)).encode(),
        properties_to_bytes(draw(st.dictionaries(names, names, max_size=4))),
        draw(st.sampled_from([1, 2])),
    )


@given(records())
def test_fields_cover_the_record_and_agree_with_the_decoder(data: bytes) -> None:
    fields = explain_record(memoryview(data))
    at = 0
    for field in sorted(fields, key=lambda each: each.offset):
        assert field.offset == at and field.size > 0
        at += field.size
    assert at == len(data)
    message = decode_record(data)
    values = {field.name: field.value for field in fields}
    assert values["TOTALSIZE"] == str(message.store_size)
    assert values["QUEUEOFFSET"] == str(message.queue_offset)
    assert values["PHYSICALOFFSET"] == str(message.physical_offset)
    assert values["STORETIMESTAMP"] == str(message.store_timestamp)
    assert values["RECONSUMETIMES"] == str(message.reconsume_times)
    assert values["TOPIC"] == message.topic
    properties = [field.value for field in fields if field.name == "PROPERTY"]
    assert sorted(properties) == sorted(f"{name} = {value}" for name, value in message.properties.items())


@given(records())
def test_the_dump_has_all_bytes_and_marks_their_fields(data: bytes) -> None:
    fields = explain_record(memoryview(data))
    rows = dump(data, fields)
    shown = [(number, byte) for row in rows for number, run in row["runs"] for byte in run.split()]
    assert bytes.fromhex("".join(byte for _, byte in shown)) == data
    for at, (number, _) in enumerate(shown):
        assert fields[number].offset <= at < fields[number].offset + fields[number].size
    assert hex_of(data, fields[0]) == data[:4].hex(" ")


def test_a_wrong_crc_is_called_wrong() -> None:
    data = bytearray(
        encode_record(b"body", crc32(b"body"), 0, 0, 0, 0, 0, 0, b"\x00" * 8, 0, b"\x00" * 8, 0, 0, b"T", b"")
    )
    right = {field.name: field.meaning for field in explain_record(memoryview(data))}
    data[88] ^= 1
    wrong = {field.name: field.meaning for field in explain_record(memoryview(data))}
    assert right["BODYCRC"] == "is that of the body" and wrong["BODYCRC"] == "IS NOT that of the body"


def test_checkpoint_and_index_header_say_their_numbers() -> None:
    checkpoint = Checkpoint(1_700_000_000_000, 2, 3, 4, 5)
    assert [field.value for field in explain_checkpoint(checkpoint.encode())] == [
        "1700000000000",
        "2",
        "3",
        "4",
        "5",
    ]
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert [field.value for field in explain_index_header(header.encode())] == ["1", "2", "3", "4", "5", "6"]
