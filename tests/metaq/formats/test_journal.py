from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError, TruncatedRecordError
from mqlake.metaq.formats.journal import (
    AppendMessage,
    JournalRecord,
    MessageLocation,
    OperationType,
    TransactionOperation,
    decode_journal_record,
    decode_locations,
    encode_journal_record,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(max_size=20)
LOCATIONS = st.lists(st.builds(MessageLocation, TEXT, INT64, INT32, INT32), max_size=3).map(tuple)


def operation(
    kind: OperationType, locations: tuple[MessageLocation, ...]
) -> st.SearchStrategy[JournalRecord]:
    return st.builds(
        TransactionOperation, st.just(kind), TEXT, st.booleans(), st.just(locations if kind.is_commit else ())
    )


RECORDS = st.builds(AppendMessage, INT64, st.binary(max_size=200)) | st.tuples(
    st.sampled_from(OperationType), LOCATIONS
).flatmap(lambda drawn: operation(*drawn))

# written by the Java broker 1.4.6.2
XID = "XID:100:0a0b:0c0d:uq1"
JAVA = [
    (
        "00000011 0802120d 0805 1000 1a07 " + b"TX:s1:1".hex(),
        TransactionOperation(OperationType.LOCAL_ROLLBACK, "TX:s1:1"),
    ),
    (
        "00000021 0802 121b 0801 1000 1a15 " + XID.encode().hex() + " 1801",
        TransactionOperation(OperationType.XA_PREPARE, XID),
    ),
    (
        "00000021 0802 121d 0802 1001 1a15 " + XID.encode().hex() + " 201f"
        "0000000000000000 00000017 3442f0f1 0000000b" + b"meta-test-0".hex(),
        TransactionOperation(
            OperationType.XA_COMMIT, XID, True, (MessageLocation("meta-test-0", 0, 0x17, 0x3442F0F1),)
        ),
    ),
]


@pytest.mark.parametrize(("text", "record"), JAVA)
def test_bytes_of_the_java_broker(text: str, record: JournalRecord) -> None:
    raw = bytes.fromhex(text)
    assert encode_journal_record(record) == raw
    decoded = decode_journal_record(raw)
    assert (decoded.record, decoded.end) == (record, len(raw))


def test_a_put_of_the_java_broker() -> None:
    put = b"put meta-test 0 3 0 -1 TX:s1:1 101\r\nabc"
    raw = encode_journal_record(AppendMessage(-5468922500081516544, put))
    # 0x38 bytes: command type 1, 0x34 bytes of content: the id in ten bytes, the put in 0x27
    assert raw[:9].hex() == "000000380801123408"
    assert len(raw) == 4 + 0x38 and raw.endswith(b"\x12\x27" + put)
    assert decode_journal_record(raw).record == AppendMessage(-5468922500081516544, put)


@given(st.lists(RECORDS, max_size=4))
def test_round_trip(records: list[JournalRecord]) -> None:
    raw = b"".join(map(encode_journal_record, records))
    found, position = [], 0
    while position < len(raw):
        record, _, position = decode_journal_record(raw, position)
        found.append(record)
    assert found == records


@given(RECORDS, st.data())
def test_cut_anywhere(record: JournalRecord, data: st.DataObject) -> None:
    raw = encode_journal_record(record)
    with pytest.raises(TruncatedRecordError):
        decode_journal_record(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=80), RECORDS, st.data())
def test_garbage_is_a_format_error_and_nothing_else(
    garbage: bytes, record: JournalRecord, data: st.DataObject
) -> None:
    raw = bytearray(encode_journal_record(record))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    for bad in (garbage, bytes(raw), len(garbage).to_bytes(4, "big") + garbage):
        try:
            decode_journal_record(bad)
        except FormatError:
            pass


def test_locations_that_do_not_fit() -> None:
    with pytest.raises(FormatError):
        decode_locations(b"\0" * 19)
    with pytest.raises(FormatError):
        decode_locations(b"\0" * 16 + b"\0\0\0\x05abc")


def test_locations_behind_what_is_no_commit_are_passed_over() -> None:
    """Found by the fuzzer."""
    commit = TransactionOperation(OperationType.XA_COMMIT, XID, True, (MessageLocation("t-0", 0, 23, 7),))
    raw = bytearray(encode_journal_record(commit))
    raw[raw.index(b"\x08\x02\x10") + 1] = OperationType.XA_PREPARE
    decoded = decode_journal_record(bytes(raw))
    assert decoded.record == TransactionOperation(OperationType.XA_PREPARE, XID, True)
    assert decoded.end == len(raw)
