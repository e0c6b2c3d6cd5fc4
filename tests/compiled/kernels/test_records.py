"""The compiled writer of records beside record.encode_record, which is written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.compiled.kernels import records
from mqlake.formats.columns import ScanStop, scan_records
from mqlake.formats.record import encode_record
from mqlake.message import crc32
from tests.formats.columns_cases import I32, I64, INPUT, OUTPUT, PROPERTIES, TOPICS, V4, V6, many

FIELDS = st.fixed_dictionaries(
    {
        "queue_id": I32,
        "sys_flag": st.integers(0, 0x7FF),
        "born_timestamp": I64,
        "born_host": st.sampled_from([V4, V6]),
        "store_timestamp": I64,
        "store_host": st.sampled_from([V4, V6]),
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
        "topic": TOPICS,
        "version": st.sampled_from([1, 2]),
    }
)
MESSAGES = st.lists(st.tuples(st.binary(max_size=60), I32, I64, PROPERTIES), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Once, and not within a test's time."""
    write([(b"b", 0, 0, b"p")], 0, head(sys_flag=0), b"\1T", 88)


def head(**fields: Any) -> bytes:
    given_fields: dict[str, Any] = {
        "queue_id": 0,
        "born_timestamp": 0,
        "born_host": V4,
        "store_timestamp": 0,
        "store_host": V4,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "topic": b"T",
    }
    return encode_record(
        body=b"",
        body_crc=0,
        flag=0,
        queue_offset=0,
        physical_offset=0,
        properties=b"",
        **(given_fields | fields),
    )


def write(
    messages: list[tuple[bytes, int, int, bytes]], start: int, shared: bytes, topic: bytes, head_length: int
) -> np.ndarray:
    """The messages written one after the other from `start` on, over bytes that are all 0xEE."""
    sizes = [len(shared) + len(body) + len(properties) for body, _, _, properties in messages]
    out = OUTPUT.put(b"\xee" * (start + sum(sizes) + 8))
    position = start
    for n, (body, flag, queue_offset, properties) in enumerate(messages):
        data = INPUT.put(body + properties + shared + topic)
        at = records.write_record(
            out,
            position,
            sizes[n],
            data[len(body + properties) :],
            head_length,
            flag,
            queue_offset,
            1000 + position,
            data,
            0,
            len(body),
            data,
            len(body + properties + shared),
            len(topic),
        )
        records.put_ended(out, at, data, len(body), len(properties))
        records.finish_record(out, position, n == 0, sizes[n])
        position += sizes[n]
    records.terminate(out, position)
    return out


def ended(properties: bytes) -> bytes:
    return properties if not properties or properties.endswith(b"\x02") else properties + b"\x02"


@many
@given(MESSAGES, FIELDS, st.integers(0, 50))
def test_records_are_those_of_the_python_writer(
    messages: list[tuple[bytes, int, int, bytes]], fields: dict[str, Any], start: int
) -> None:
    messages = [(body, flag, offset, ended(properties)) for body, flag, offset, properties in messages]
    shared = head(**fields)
    version = fields["version"]
    topic = len(fields["topic"]).to_bytes(version, "big") + fields["topic"]
    expected, offset = b"", 1000 + start
    for body, flag, queue_offset, properties in messages:
        record = encode_record(
            body=body,
            body_crc=crc32(body),
            flag=flag,
            queue_offset=queue_offset,
            physical_offset=offset,
            properties=properties,
            **fields,
        )
        expected, offset = expected + record, offset + len(record)
    out = write(messages, start, shared, topic, len(shared) - 2 - len(topic))
    end = start + len(expected)
    # neither what was before nor the first size is touched; a size of zero follows the last record, and no more
    assert out[: start + 4].tobytes() == b"\xee" * (start + 4)
    assert out[start + 4 : end].tobytes() == expected[4:]
    assert out[end:].tobytes() == bytes(4) + b"\xee" * 4


def test_no_record_shows_before_the_first_has_its_size() -> None:
    shared = head(sys_flag=0)
    out = write([(b"body", 1, 2, b"")] * 3, 0, shared, b"\1T", 88).copy()
    out[:4] = 0
    assert (len(scan_records(out, 0, len(out), 1000)), scan_records(out, 0, len(out), 1000).stop) == (
        0,
        ScanStop.END,
    )
    size = len(shared) + 4
    out[:4] = np.frombuffer(size.to_bytes(4, "big"), np.uint8)
    found = scan_records(out, 0, len(out), 1000)
    assert found.position.tolist() == [0, size, 2 * size]
    assert (found.end, found.stop) == (3 * size, ScanStop.END)


@pytest.mark.parametrize("text", ["A", "é", "€", "😀", "\u07ff", "\ud7ff", "\ue000", "\U0010ffff"])
def test_characters_of_utf8(text: str) -> None:
    from mqlake.compiled.kernels.primitives import read_character

    data = text.encode()
    assert read_character(INPUT.put(data), 0, len(data)) == (ord(text), len(data))


@given(st.binary(min_size=1, max_size=8))
def test_malformed_utf8_is_replaced_as_python_replaces_it(data: bytes) -> None:
    from mqlake.compiled.kernels.primitives import read_character

    buf, position, found = INPUT.put(data), 0, ""
    while position < len(data):
        point, length = read_character(buf, position, len(data))
        found += "\ufffd" if point < 0 else chr(point)
        position += length
    assert found == data.decode("utf-8", "replace")


def test_a_record_gets_its_size_last() -> None:
    """Whatever a killed process leaves of it has none; that of an append's first record is the publisher's."""
    shared, data = np.zeros(88, np.uint8), np.frombuffer(b"body", np.uint8)
    topic = np.frombuffer(b"\x01T", np.uint8)
    out = np.zeros(200, np.uint8)
    size = 88 + 4 + 2 + 2 + 3
    at = records.write_record(out, 10, size, shared, 88, 0, 7, 1234, data, 0, 4, topic, 0, 2)
    assert at == 10 + size - 3 and out[10:14].tolist() == [0, 0, 0, 0]
    records.finish_record(out, 10, True, size)
    assert out[10:14].tolist() == [0, 0, 0, 0]
    records.finish_record(out, 10, False, size)
    assert out[10:14].tolist() == [0, 0, 0, size]
    assert out[at - 2 : at].tolist() == [0, 3] and out[98:102].tobytes() == b"body"
