from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.broker.filter.properties import RecordProperties
from mqlake.formats.record import encode_record
from mqlake.message import MessageSysFlag, bytes_to_properties, host_bytes, properties_to_bytes

V4, V6 = host_bytes(("10.0.0.1", 1)), host_bytes(("::1", 1))


def record(properties: bytes, *, born: bytes = V4, store: bytes = V4, topic: bytes = b"T", version: int = 1):
    sys_flag = (MessageSysFlag.BORNHOST_V6_FLAG if born is V6 else 0) | (
        MessageSysFlag.STOREHOSTADDRESS_V6_FLAG if store is V6 else 0
    )
    encoded = encode_record(
        body=b"a\x01b\x02" * 3,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        physical_offset=0,
        sys_flag=sys_flag,
        born_timestamp=0,
        born_host=born,
        store_timestamp=0,
        store_host=store,
        reconsume_times=0,
        prepared_transaction_offset=0,
        topic=topic,
        properties=properties,
        version=version,
    )
    return memoryview(encoded)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("born", "store"), [(V4, V4), (V6, V4), (V4, V6), (V6, V6)])
def test_in_every_shape_of_a_record(born, store, version):
    properties = properties_to_bytes({"a": "1", "bc": "zwei", "c": "ü"})
    found = RecordProperties(record(properties, born=born, store=store, topic=b"T" * 100, version=version))
    assert (found.get("a"), found.get("bc"), found.get("c"), found.get("b")) == ("1", "zwei", "ü", None)


def test_the_last_one_counts_and_an_empty_one_is_none():
    found = RecordProperties(record(b"a\x011\x02a\x012\x02b\x013\x02b\x01\x02c\x014"))
    assert (found.get("a"), found.get("b"), found.get("c")) == ("2", "3", "4")


pieces = st.sampled_from([b"a", b"b", b"ab", b"\x01", b"\x02", b"\x02", b"\xff", b"x"])


@settings(max_examples=200, deadline=None)
@given(st.lists(pieces, max_size=20).map(b"".join))
def test_the_same_as_decoding_all(text):
    found, decoded = RecordProperties(record(text)), bytes_to_properties(text)
    for name in ("a", "b", "ab"):
        assert found.get(name) == decoded.get(name)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 120), st.binary(min_size=1, max_size=8), st.integers(0, 130))
def test_a_damaged_record_raises_nothing(at, junk, length):
    damaged = bytearray(record(b"a\x011\x02"))
    damaged[at : at + len(junk)] = junk
    assert RecordProperties(memoryview(bytes(damaged[:length]))).get("none") is None
