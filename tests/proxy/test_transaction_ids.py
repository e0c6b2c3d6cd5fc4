"""Transaction ids say where the half message is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.proxy.status import StatusError
from mqlake.proxy.transaction_ids import TransactionId
from mqlake.proxy.v2.definition_pb2 import Code

OFFSETS = st.integers(0, 2**62)


@given(st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True), OFFSETS, OFFSETS, st.text(max_size=40))
def test_they_come_back(broker: str, offset: int, physical: int, message_id: str):
    made = TransactionId(broker, offset, physical, message_id)
    assert TransactionId.parse(made.text) == made


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: data.hex()))
def test_nothing_else_is_one(text: str):
    with pytest.raises(StatusError) as caught:
        TransactionId.parse(text)
    assert caught.value.code == Code.INVALID_TRANSACTION_ID
