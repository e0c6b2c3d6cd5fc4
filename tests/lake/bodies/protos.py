"""A descriptor set with all that messages can hold, made without a compiler, and its message class."""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

F = descriptor_pb2.FieldDescriptorProto
ONE, MANY = F.LABEL_OPTIONAL, F.LABEL_REPEATED


def add(
    message: Any, name: str, kind: int, *, label: int = ONE, of: str = "", optional: bool = False
) -> None:
    field = message.field.add(
        name=name, number=len(message.field) + 1, type=kind, label=label, type_name=of or None
    )
    if optional:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def order_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(each.DESCRIPTOR.name for each in (timestamp_pb2, duration_pb2, wrappers_pb2))
    order, item = file.message_type.add(name="Order"), file.message_type.add(name="Item")
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="UNKNOWN", number=0)
    kinds.value.add(name="BOOK", number=1)
    add(item, "name", F.TYPE_STRING)
    add(item, "n", F.TYPE_INT32, optional=True)
    add(order, "id", F.TYPE_INT64)
    add(order, "item", F.TYPE_MESSAGE, of=".shop.Item")
    add(order, "items", F.TYPE_MESSAGE, label=MANY, of=".shop.Item")
    add(order, "at", F.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
    add(order, "kind", F.TYPE_ENUM, of=".shop.Kind")
    add(order, "tags", F.TYPE_STRING, label=MANY)
    add(order, "big", F.TYPE_UINT64)
    add(order, "mid", F.TYPE_UINT32)
    add(order, "raw", F.TYPE_BYTES)
    add(order, "maybe", F.TYPE_STRING, optional=True)
    add(order, "wrapped", F.TYPE_MESSAGE, of=".google.protobuf.StringValue")
    add(order, "took", F.TYPE_MESSAGE, of=".google.protobuf.Duration")
    add(order, "ok", F.TYPE_BOOL)
    add(order, "f", F.TYPE_FLOAT)
    add(order, "d", F.TYPE_DOUBLE)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", F.TYPE_INT32)
    add(entry, "value", F.TYPE_INT64)
    add(order, "counts", F.TYPE_MESSAGE, label=MANY, of=".shop.Order.CountsEntry")
    return file


def descriptor_set(*files: Any) -> bytes:
    found = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    for file in files or (order_file(),):
        found.file.add().CopyFrom(file)
    return found.SerializeToString()


def message_class(descriptors: bytes, name: str = "shop.Order") -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
