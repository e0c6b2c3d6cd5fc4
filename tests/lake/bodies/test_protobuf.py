"""Protobuf bodies, against what Google's own library reads from each."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.bodies.protobuf import ProtobufDecoder
from tests.lake.bodies.protos import F, add, descriptor_set, message_class

DESCRIPTORS = descriptor_set()
Order = message_class(DESCRIPTORS)
DECODER = ProtobufDecoder(DESCRIPTORS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BROKEN = [b"\xff", b"\x08", b"\x32\x02\xff\xfe"]
NAMES = ("UNKNOWN", "BOOK")


def item(message: Any) -> dict[str, Any]:
    return {"name": message.name, "n": message.n if message.HasField("n") else None}


def oracle(body: bytes) -> dict[str, Any] | None:
    try:
        order = Order.FromString(body)
    except DecodeError:
        return None
    has = order.HasField
    try:
        at = EPOCH + timedelta(seconds=order.at.seconds, microseconds=order.at.nanos // 1000)
    except OverflowError:
        return None
    return {
        "id": order.id,
        "item": item(order.item) if has("item") else None,
        "items": [item(each) for each in order.items],
        "at": at if has("at") else None,
        "kind": NAMES[order.kind] if order.kind in (0, 1) else str(order.kind),
        "tags": list(order.tags),
        "big": str(order.big),
        "mid": order.mid,
        "raw": order.raw,
        "maybe": order.maybe if has("maybe") else None,
        "wrapped": order.wrapped.value if has("wrapped") else None,
        "took": order.took.seconds * 1_000_000 + order.took.nanos // 1000 if has("took") else None,
        "ok": order.ok,
        "f": order.f,
        "d": order.d,
        "counts": sorted((str(key), value) for key, value in order.counts.items()),
    }


long = st.integers(-(2**63), 2**63 - 1)
items = st.fixed_dictionaries({}, optional={"name": st.text(max_size=3), "n": st.integers(-9, 9)})
orders = st.fixed_dictionaries(
    {},
    optional={
        "id": long,
        "item": items,
        "items": st.lists(items, max_size=2),
        "kind": st.integers(0, 3),
        "at": st.fixed_dictionaries(
            {"seconds": st.one_of(st.integers(-(2**37), 2**38), long), "nanos": st.integers(0, 10**9 - 1)}
        ),
        "tags": st.lists(st.text(max_size=2), max_size=2),
        "big": st.integers(0, 2**64 - 1),
        "mid": st.integers(0, 2**32 - 1),
        "raw": st.binary(max_size=3),
        "maybe": st.text(max_size=2),
        "wrapped": st.fixed_dictionaries({"value": st.text(max_size=2)}),
        "took": st.fixed_dictionaries({"seconds": st.integers(0, 10**9), "nanos": st.integers(0, 10**9 - 1)}),
        "ok": st.booleans(),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "counts": st.dictionaries(st.integers(-9, 9), long, max_size=2),
    },
)
bodies = st.one_of(
    orders.map(lambda fields: Order(**fields).SerializeToString()),
    st.tuples(orders, st.integers(0, 9)).map(lambda given: Order(**given[0]).SerializeToString()[given[1] :]),
    st.sampled_from(
        [b"\xff", b"\x08", b"\x32\x02\xff\xfe", b"\xf8\x07\x01", b"\x0a\x01a", b"\x08\x01\x08\x02"]
    ),
)


@given(st.lists(bodies, max_size=9))
@settings(max_examples=50)
def test_any_bodies(given: list[bytes]) -> None:
    value, reason = DECODER.decode(pa.array(given, pa.binary()))
    value.validate(full=True)
    assert value.type == DECODER.type.arrow
    for body, found, why in zip(given, value.to_pylist(), reason.to_pylist(), strict=True):
        if found is not None:
            found["counts"].sort()
        wanted = oracle(body)
        if wanted is not None or body in BROKEN:  # of other broken ones ptars takes some for unknown fields
            assert found == wanted, (body, why)
        assert (why is None) == (found is not None)


def test_a_fault_among_many() -> None:
    whole = [Order(id=n).SerializeToString() for n in range(3000)]
    whole[1234] = b"\x08"
    value, reason = pickle.loads(pickle.dumps(DECODER)).decode(pa.array([None, *whole], pa.binary()))
    assert [row and row["id"] for row in value.to_pylist()] == [None, *range(1234), None, *range(1235, 3000)]
    assert reason.null_count == 3000 and reason[1235].as_py().startswith("no shop.Order: ")


def test_the_message_that_is_named() -> None:
    assert ProtobufDecoder(DESCRIPTORS, "shop.Item").type.ddl == "name string, n int"
    with pytest.raises(UnknownKeyError, match=r"shop\.Itm"):
        ProtobufDecoder(DESCRIPTORS, "shop.Itm")


def test_descriptors_that_are_refused() -> None:
    node = descriptor_pb2.FileDescriptorProto(name="node.proto", package="p", syntax="proto3")
    add(node.message_type.add(name="Node"), "next", F.TYPE_MESSAGE, of=".p.Node")
    empty = descriptor_pb2.FileDescriptorProto(name="empty.proto", package="p", syntax="proto3")
    empty.message_type.add(name="Nothing")
    none = descriptor_pb2.FileDescriptorProto(name="none.proto", package="p", syntax="proto3")
    alone = descriptor_pb2.FileDescriptorSet()
    alone.file.add(name="a.proto", dependency=["gone.proto"]).message_type.add(name="A")
    for each, said in (
        (b"\xff", "no Protobuf descriptor set"),
        (b"", "has no files"),
        (descriptor_set(node), "p.Node is within itself"),
        (descriptor_set(empty), "has no fields"),
        (descriptor_set(none), "has no message"),
        (alone.SerializeToString(), "--include_imports"),
    ):
        with pytest.raises(ConfigError, match=said):
            ProtobufDecoder(each)
