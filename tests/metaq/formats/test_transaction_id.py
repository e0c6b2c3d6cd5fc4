from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError
from mqlake.metaq.formats.transaction_id import (
    LocalTransactionId,
    TransactionId,
    XATransactionId,
    parse_transaction_id,
)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
WORDS = st.text(st.characters(exclude_characters=": \r\n"), max_size=12)
IDS = st.builds(LocalTransactionId, WORDS, INT32) | st.builds(
    XATransactionId, INT32, st.binary(max_size=8), st.binary(max_size=8), WORDS
)


@given(IDS)
def test_round_trip(transaction: TransactionId) -> None:
    assert parse_transaction_id(str(transaction)) == transaction


def test_keys_of_the_java_client() -> None:
    assert parse_transaction_id("TX:192.0.2.2-1795213741144-1:1") == LocalTransactionId(
        "192.0.2.2-1795213741144-1", 1
    )
    xid = parse_transaction_id("XID:100:0a0b:0c0d:uq1")
    assert xid == XATransactionId(100, b"\x0a\x0b", b"\x0c\x0d", "uq1")
    assert str(xid) == "XID:100:0a0b:0c0d:uq1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TX",
        "TX:s",
        "TX:s:x",
        "TX:s:1:2",
        "TX:s:2147483648",
        "TX:s:--1",
        "TX:s:1_0",
        "XID:1:a:bb:q",
        "XID:1:0g:bb:q",
        "XID:x:aa:bb:q",
        "XID:1:aa:bb",
        "XID:1:a a:bb:q",
        "AB:s:1",
        "null",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(FormatError):
        parse_transaction_id(text)
