"""Bytes with every field explained: records of the log, units of queues, entries of the index, the checkpoint.

offset  size  hex            field        value
   0     4    00 00 00 c3    TOTALSIZE    195 bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqlake.base.rendering import size_text, time_text
from mqlake.formats.record import (
    BORN_HOST_POSITION,
    MESSAGE_MAGIC_CODE_V2,
    record_layout,
)
from mqlake.message import MessageSysFlag, crc32
from mqlake.message.ids import host_from_bytes
from mqlake.message.rendering import host_text

HEX_SHOWN = 1024
"""Bytes of one field that are shown in hexadecimal."""
ROW = 16


@dataclass(frozen=True, slots=True)
class Field:
    """`size` bytes at `offset`, which counts from the first byte of what is explained."""

    offset: int
    size: int
    name: str
    value: str
    meaning: str = ""


def explain_record(data: memoryview) -> list[Field]:
    """The fields of the record in `data`, which is no longer than the record. Raises FormatError."""
    head, body_start, topic_start, topic_end, properties_start, end = record_layout(data, 0, len(data))
    magic, sys_flag, width = head[1], head[7], 2 if head[1] == MESSAGE_MAGIC_CODE_V2 else 1
    body = data[body_start : body_start + head[-1]]
    born, stored = head[9], head[11]
    after_born = BORN_HOST_POSITION + len(born)
    after_stored = after_born + 8 + len(stored)
    crc_text = "is that of the body" if crc32(body) == head[2] & 0xFFFFFFFF else "IS NOT that of the body"
    fields = [
        Field(0, 4, "TOTALSIZE", f"{head[0]}", "bytes of the whole record"),
        Field(4, 4, "MAGIC", f"{magic & 0xFFFFFFFF:#010x}", f"record of version {width}"),
        Field(
            8, 4, "BODYCRC", f"{head[2] & 0xFFFFFFFF:#010x}", crc_text if len(body) else "there is no body"
        ),
        Field(12, 4, "QUEUEID", f"{head[3]}", "queue of the topic"),
        Field(16, 4, "FLAG", f"{head[4]}", "the producer's own, brokers do not look at it"),
        Field(20, 8, "QUEUEOFFSET", f"{head[5]}", "number of the message in its queue"),
        Field(28, 8, "PHYSICALOFFSET", f"{head[6]}", "of this record in the log"),
        Field(36, 4, "SYSFLAG", f"{sys_flag:#x}", sys_flag_text(sys_flag)),
        Field(40, 8, "BORNTIMESTAMP", f"{head[8]}", time_text(head[8])),
        Field(48, len(born), "BORNHOST", host_text(host_from_bytes(born)), "where the producer is"),
        Field(after_born, 8, "STORETIMESTAMP", f"{head[10]}", time_text(head[10])),
        Field(after_born + 8, len(stored), "STOREHOST", host_text(host_from_bytes(stored)), "the broker"),
        Field(after_stored, 4, "RECONSUMETIMES", f"{head[12]}", "times that a consumer gave it back"),
        Field(after_stored + 4, 8, "PREPAREDOFFSET", f"{head[13]}", "of the half message of a transaction"),
        Field(after_stored + 12, 4, "BODYLENGTH", f"{head[14]}", size_text(head[14])),
    ]
    if len(body):
        fields.append(Field(body_start, len(body), "BODY", "", _body_text(sys_flag)))
    properties = bytes(data[properties_start:end])
    fields += [
        Field(topic_start - width, width, "TOPICLENGTH", f"{topic_end - topic_start}", ""),
        Field(topic_start, topic_end - topic_start, "TOPIC", _text(data[topic_start:topic_end]), ""),
        Field(topic_end, 2, "PROPERTIESLENGTH", f"{len(properties)}", ""),
    ]
    position = properties_start
    for part in properties.split(b"\x02"):
        if part:
            size = min(len(part) + 1, end - position)
            name, _, value = part.partition(b"\x01")
            fields.append(
                Field(position, size, "PROPERTY", f"{_text(name)} = {_text(value)}", "name 01 value 02")
            )
            position += size
    return fields


def sys_flag_text(flag: int) -> str:
    """The bits that are set, in words."""
    names = []
    if flag & MessageSysFlag.COMPRESSED_FLAG:
        names.append(f"compressed with {_COMPRESSION.get(MessageSysFlag.compression_type(flag), '?')}")
    names += [text for bit, text in _BITS.items() if flag & bit]
    names += [_TRANSACTION[kind] for kind in [MessageSysFlag.transaction_value(flag)] if kind]
    return ", ".join(names) or "plain"


_COMPRESSION = {
    MessageSysFlag.COMPRESSION_LZ4_TYPE: "lz4",
    MessageSysFlag.COMPRESSION_ZSTD_TYPE: "zstd",
    MessageSysFlag.COMPRESSION_ZLIB_TYPE: "zlib",
}
_BITS = {
    MessageSysFlag.MULTI_TAGS_FLAG: "several tags",
    MessageSysFlag.BORNHOST_V6_FLAG: "born at an IPv6 address",
    MessageSysFlag.STOREHOSTADDRESS_V6_FLAG: "stored at an IPv6 address",
    MessageSysFlag.NEED_UNWRAP_FLAG: "to be unwrapped",
    MessageSysFlag.INNER_BATCH_FLAG: "a batch as one record",
}
_TRANSACTION = {
    MessageSysFlag.TRANSACTION_PREPARED_TYPE: "half message of a transaction",
    MessageSysFlag.TRANSACTION_COMMIT_TYPE: "committed in a transaction",
    MessageSysFlag.TRANSACTION_ROLLBACK_TYPE: "rolled back in a transaction",
}


def explain_checkpoint(data: bytes) -> list[Field]:
    """The five numbers of a checkpoint, of which 40 bytes are there."""
    names = (
        ("physicMsgTimestamp", "the log was flushed up to the message stored then"),
        ("logicsMsgTimestamp", "the same for the consume queues"),
        ("indexMsgTimestamp", "the same for the index"),
        ("masterFlushedOffset", "physical offset up to which the master had flushed"),
        ("confirmPhyOffset", "physical offset up to which replicas had confirmed"),
    )
    fields = []
    for number, (name, meaning) in enumerate(names):
        value = int.from_bytes(data[number * 8 : number * 8 + 8], "big", signed=True)
        shown = f"{time_text(value)}: {meaning}" if number < 3 else meaning
        fields.append(Field(number * 8, 8, name, str(value), shown))
    return fields


def explain_index_header(data: bytes) -> list[Field]:
    """The header of an index file, 40 bytes."""
    names = (
        ("beginTimestamp", 8, "store time of the first message"),
        ("endTimestamp", 8, "store time of the last message"),
        ("beginPhyOffset", 8, "physical offset of the first message"),
        ("endPhyOffset", 8, "physical offset of the last message"),
        ("hashSlotCount", 4, "hash slots in use"),
        ("indexCount", 4, "number of the next entry; the first is 1"),
    )
    fields, position = [], 0
    for name, size, meaning in names:
        value = int.from_bytes(data[position : position + size], "big", signed=True)
        shown = f"{time_text(value)}: {meaning}" if name.endswith("Timestamp") else meaning
        fields.append(Field(position, size, name, str(value), shown))
        position += size
    return fields


def dump(data: memoryview | bytes, fields: list[Field], most: int = 16 * HEX_SHOWN) -> list[dict[str, Any]]:
    """The first `most` bytes, 16 a row: `runs` are (number of the field or -1, hexadecimal), `text` is the ASCII."""
    owner = [-1] * min(len(data), most)
    for number, each in enumerate(fields):
        for at in range(each.offset, min(each.offset + each.size, len(owner))):
            owner[at] = number
    rows: list[dict[str, Any]] = []
    for start in range(0, len(owner), ROW):
        runs: list[list[Any]] = []
        for at in range(start, min(start + ROW, len(owner))):
            if runs and runs[-1][0] == owner[at]:
                runs[-1][1] += f" {data[at]:02x}"
            else:
                runs.append([owner[at], f"{data[at]:02x}"])
        rows.append(
            {"offset": start, "runs": runs, "text": ascii_of(data[start : min(start + ROW, len(owner))])}
        )
    return rows


def ascii_of(data: memoryview | bytes) -> str:
    """A character a byte; a dot for what is not ASCII text."""
    return "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in data)


def hex_of(data: memoryview | bytes, each: Field) -> str:
    """The bytes of a field, cut to the first few."""
    shown = bytes(data[each.offset : each.offset + min(each.size, ROW)]).hex(" ")
    return shown + (" …" if each.size > ROW else "")


def _text(data: memoryview | bytes) -> str:
    return bytes(data).decode("utf-8", "replace")


def _body_text(sys_flag: int) -> str:
    return "as stored: " + sys_flag_text(sys_flag) if sys_flag & 1 else "as it was sent"
