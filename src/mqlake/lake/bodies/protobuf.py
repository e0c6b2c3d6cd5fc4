"""Protobuf bodies to columns: a chunk in one pass of ptars (Rust), halved where it has a fault until that is found.

    message, repeated, map   struct, array, map<string, …>    Timestamp       timestamp
    int32, int64, bool, …    the same; uint32 is long         Duration        long (µs)
    uint64, fixed64          string                           enum            string: its name, or the unknown number
    optional, oneof, *Value  null when absent; other scalars have their default, as in all of Protobuf

Types within themselves are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.bodies.decoder import Reasons, decode_filled, with_reasons
from mqlake.lake.bodies.evolution import conform
from mqlake.lake.bodies.leaves import converted, times_of
from mqlake.lake.bodies.types import ELEMENT, ColumnType, array_of, map_of, struct_of
from mqlake.lake.requirements import require_modules

INSTALL = "pip install 'mqlake[bodies]'"
_PLAIN = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint32(): "long",
    pa.uint64(): "string",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.duration("us"): "long",
    pa.time64("us"): "long",
}


class ProtobufDecoder:
    """Bodies that are one message of a file descriptor set (`protoc --include_imports --descriptor_set_out`)."""

    def __init__(self, descriptors: bytes, message: str = "") -> None:
        """`message`: its full name; else the first message of the last file, the one that protoc was given.

        ConfigError for what is no descriptor set, or a message that cannot be columns; UnknownKeyError for a message
        that is not there.
        """
        require_modules("google.protobuf", "ptars", command=INSTALL)
        self._descriptors = descriptors
        self.message = message or _first_message(descriptors)
        try:
            descriptor = _descriptor(descriptors, self.message)
        except KeyError:
            raise UnknownKeyError(self.message, _messages(descriptors), what="message") from None
        _check_finite(descriptor, ())
        self.type = _type(self._handler.schema(), self.message)

    @functools.cached_property
    def _handler(self) -> Any:
        import ptars

        descriptor = _descriptor(self._descriptors, self.message)
        config = ptars.PtarsConfig(
            timestamp_unit="us",
            time_unit="us",
            duration_unit="us",
            enum_repr="string",
            list_value_name=ELEMENT,
            list_value_nullable=True,
            map_value_nullable=True,
        )
        return ptars.HandlerPool([descriptor.file], config).get_for_message(descriptor)

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, pa.StringArray]:
        """An empty body is a message of defaults."""
        return decode_filled(bodies, self.type.arrow, self._chunk, length_min=0)

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        kind = self.type.arrow
        parts, reasons = [], []
        for value, reason in self._halved(bodies):
            parts.append(pa.nulls(1, kind) if value is None else conform(value.to_struct_array(), kind))
            reasons += [reason] * len(parts[-1])
        given = reasons if any(reasons) else None
        value, bad = converted(pa.concat_arrays(parts), self.type, _CONVERSIONS, _WHAT)
        return with_reasons(value, bad, given)

    def _halved(self, bodies: pa.BinaryArray) -> Iterator[tuple[pa.RecordBatch | None, str | None]]:
        try:
            yield self._handler.array_to_record_batch(bodies), None
            return
        except ValueError as error:
            if len(bodies) == 1:
                yield None, f"no {self.message}: {error}"
                return
        half = len(bodies) // 2
        yield from self._halved(bodies.slice(0, half))
        yield from self._halved(bodies.slice(half))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_handler"}


_CONVERSIONS = {"timestamp": lambda array, name: times_of(array)}
_WHAT = {"timestamp": "time in the years 1 to 9999"}


def _file_set(descriptors: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError as error:
        raise ConfigError(f"no Protobuf descriptor set: {error}") from error
    if not found.file:
        raise ConfigError("the Protobuf descriptor set has no files")
    return found


def _messages(descriptors: bytes) -> list[str]:
    return [
        f"{file.package}.{message.name}".lstrip(".")
        for file in _file_set(descriptors).file
        for message in file.message_type
    ]


def _first_message(descriptors: bytes) -> str:
    file = _file_set(descriptors).file[-1]
    if not file.message_type:
        raise ConfigError(f"the last file of the Protobuf descriptor set, {file.name}, has no message")
    return f"{file.package}.{file.message_type[0].name}".lstrip(".")


def _descriptor(descriptors: bytes, message: str) -> Any:
    """KeyError for an unknown message."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in _file_set(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except TypeError as error:
        raise ConfigError(
            f"the Protobuf descriptor set is not whole: {error} (make it with protoc --include_imports)"
        ) from error


def _check_finite(descriptor: Any, within: tuple[str, ...]) -> None:
    if descriptor.full_name in within:
        raise ConfigError(f"the message {descriptor.full_name} is within itself: it cannot be a column")
    for field in descriptor.fields:
        if field.message_type is not None:
            _check_finite(field.message_type, (*within, descriptor.full_name))


def _type(kind: pa.Schema | pa.DataType, path: str) -> ColumnType:
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        if not len(list(kind)):
            raise ConfigError(f"the message of {path} has no fields: it cannot be a column")
        return struct_of((field.name, _type(field.type, f"{path}.{field.name}")) for field in kind)
    if pa.types.is_list(kind):
        return array_of(_type(kind.value_type, path))
    if pa.types.is_map(kind):
        return map_of(_type(kind.item_type, path))
    if pa.types.is_timestamp(kind):
        return ColumnType("timestamp")
    if kind not in _PLAIN:
        raise ConfigError(f"{path} has values that cannot be a column ({kind})")
    return ColumnType(_PLAIN[kind])
