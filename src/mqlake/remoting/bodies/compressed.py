"""The compressed form of RegisterBrokerBody, from older brokers. It is read but never written.

one zlib stream of
i32 n, DataVersion as JSON
i32 count, each  i32 n, `name readQueueNums writeQueueNums perm FILTER_TYPE {attributes}`
i32 n, list of filter servers as JSON
i32 count, each  i32 n, TopicQueueMappingInfo as JSON        from V5_0_0 on
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from mqlake.errors import FormatError
from mqlake.remoting.bodies.codec import load_json
from mqlake.remoting.bodies.topic import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicFilterType,
    TopicQueueMappingInfo,
)
from mqlake.remoting.codes import Version

DECOMPRESSED_SIZE_MAX = 32 << 20
"""A stream that grows beyond this is refused: half a million topics need less."""
PIECE_SIZE_MAX = 1 << 20
"""A longer piece is refused before it is read as JSON."""

_I32 = struct.Struct(">i")


def decode_compressed(data: bytes | bytearray | memoryview, version: int) -> RegisterBrokerBody:
    """The body a broker of `version` sent compressed. FormatError."""
    reader = _Reader(_decompress(data))
    body = RegisterBrokerBody()
    wrapper = body.topic_config_serialize_wrapper
    wrapper.data_version = DataVersion.from_json(reader.piece())
    for _ in range(reader.count()):
        config = _topic_config(reader.piece(), reader.position)
        wrapper.topic_config_table[config.topic_name] = config
    servers: Any = load_json(reader.piece())
    body.filter_server_list = [str(server) for server in servers] if isinstance(servers, list) else []
    if version >= Version.V5_0_0:
        for _ in range(reader.count()):
            mapping = TopicQueueMappingInfo.from_json(reader.piece())
            wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
    return body


def _decompress(data: bytes | bytearray | memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, DECOMPRESSED_SIZE_MAX)
    except zlib.error as error:
        raise FormatError(0, f"the registration is not a zlib stream: {error}") from error
    if not stream.eof:
        raise FormatError(
            len(data),
            f"the registration's zlib stream has no end, or unpacks to more than {DECOMPRESSED_SIZE_MAX} bytes",
        )
    return plain


def _topic_config(piece: bytes, position: int) -> TopicConfig:
    try:
        name, reads, writes, perm, filter_type, *rest = piece.decode().split(" ", 5)
        attributes = load_json(rest[0].encode()) if rest and rest[0].strip() else {}
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=TopicFilterType[filter_type],
            attributes={str(key): str(value) for key, value in dict(attributes).items()},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(position, f"{piece[:80]!r} is no topic configuration") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def count(self) -> int:
        end = self.position + 4
        if end > len(self.data):
            raise FormatError(self.position, "the registration ends where a number belongs")
        number: int = _I32.unpack_from(self.data, self.position)[0]
        # every item and every byte takes room, so no count can exceed the remaining bytes
        if not 0 <= number <= len(self.data) - end:
            raise FormatError(self.position, f"{number} things in {len(self.data) - end} bytes")
        self.position = end
        return number

    def piece(self) -> bytes:
        size = self.count()
        if size > PIECE_SIZE_MAX:
            raise FormatError(self.position, f"a piece of {size} bytes; {PIECE_SIZE_MAX} are allowed")
        start, self.position = self.position, self.position + size
        return self.data[start : self.position]
