"""Records whose bodies are packed, as a consumer would have their messages.

    compressed body              ─▶ the body as its producer had it
    inner batch (one record)     ─▶ a message for each that it holds, queue offsets counted on from its own

The messages are written as plain records into a buffer of their own and scanned there, so that what makes rows
of records makes rows of them too; place, size, body CRC and prepared transaction offset stay those of the record
that lies in the log. Facts: MessageSysFlag and the inner batch of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mqlake.errors import FormatError, MessageError
from mqlake.formats.arrow import Bytes
from mqlake.formats.batch import ITEM_SIZE_MIN, decode_messages
from mqlake.formats.columns import Scan, append_batch, scan_records
from mqlake.formats.compression import decompress_body
from mqlake.formats.record import RECORD_SIZE_MIN, TOPIC_LENGTH_MAX_V1, encode_record
from mqlake.lake.log.splits import Damage
from mqlake.message import MessageSysFlag

PACKED = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
PIECE_BYTES = 8 << 20
"""About so much is unpacked at a time."""
BODY_BYTES_MAX = 64 << 20
"""Largest size that one body may unpack to: a few bytes must not claim all of a worker's memory."""

_IPV6_EXTRA = 24
_I32_MAX = 0x7FFFFFFF


def unpack(
    buf: Bytes, scan: Scan, rows: npt.NDArray[np.int64], file: str, base_offset: int
) -> Iterator[tuple[Bytes, Scan] | Damage]:
    """The messages of the records numbered `rows`, each with a scan over the buffer that it is in.

    `base_offset` is the physical offset at which `file` begins. A body that cannot be unpacked is Damage.
    """
    piece: list[Bytes] = []
    of_record: list[npt.NDArray[np.int64]] = []
    size = 0
    for row in rows.tolist():
        try:
            records, n = _plain_records(buf, scan, row, size)
        except (FormatError, MessageError) as error:
            physical_offset = int(scan.physical_offset[row])
            position = physical_offset - base_offset
            yield Damage(file, position, position + int(scan.size[row]), physical_offset, str(error))
            continue
        piece.append(records)
        of_record.append(np.full(n, row))
        size += len(records)
        if size >= PIECE_BYTES:
            yield from _scans(scan, piece, of_record)
            piece, of_record, size = [], [], 0
    if size:
        yield from _scans(scan, piece, of_record)


def _plain_records(buf: Bytes, scan: Scan, row: int, position: int) -> tuple[Bytes, int]:
    """The messages of one record as records that lie at `position`, and how many they are."""

    def part(name: str, length: int) -> bytes:
        start = int(getattr(scan, name)[row])
        return buf[start : start + length].tobytes()

    sys_flag = int(scan.sys_flag[row])
    body = decompress_body(part("body_start", int(scan.body_length[row])), sys_flag, BODY_BYTES_MAX)
    topic = scan.topics[scan.topic_id[row]]
    version = 1 if len(topic) <= TOPIC_LENGTH_MAX_V1 else 2
    born_host = part("born_host_start", 20 if sys_flag & MessageSysFlag.BORNHOST_V6_FLAG else 8)
    store_host = part("store_host_start", 20 if sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG else 8)
    queue_id, queue_offset = int(scan.queue_id[row]), int(scan.queue_offset[row])
    born_timestamp, store_timestamp = int(scan.born_timestamp[row]), int(scan.store_timestamp[row])
    reconsume_times = int(scan.reconsume_times[row])
    if not sys_flag & MessageSysFlag.NEED_UNWRAP_FLAG:
        record = encode_record(
            body,
            0,
            queue_id,
            int(scan.flag[row]),
            queue_offset,
            position,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            0,
            topic,
            part("properties_start", int(scan.properties_length[row])),
            version,
        )
        return np.frombuffer(record, np.uint8), 1
    head = RECORD_SIZE_MIN + _IPV6_EXTRA + version + len(topic)
    out = np.empty(len(body) + (len(body) // ITEM_SIZE_MIN + 1) * head, np.uint8)
    appended = append_batch(
        out,
        0,
        len(out),
        np.frombuffer(body, np.uint8),
        base_offset=position,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        extra_props=b"",
        version=version,
        max_record_size=_I32_MAX,
    )
    if appended.n < 0:
        decode_messages(body)  # says what is wrong
        raise FormatError(0, "the batch holds a message that no record can hold")
    if appended.n:  # the caller that publishes them writes the size of the first record
        out[:4] = np.frombuffer(int(appended.sizes[0]).to_bytes(4, "big"), np.uint8)
    return out[: appended.wrote].copy(), appended.n


def _scans(
    scan: Scan, piece: list[Bytes], of_record: list[npt.NDArray[np.int64]]
) -> Iterator[tuple[Bytes, Scan]]:
    buf, rows = np.concatenate(piece), np.concatenate(of_record)
    position = done = 0
    while position < len(buf):
        found = scan_records(buf, position, len(buf), 0, max_records=len(rows) - done, check_crc=False)
        assert len(found), found.stop_reason
        here = rows[done : done + len(found)]
        found.physical_offset = scan.physical_offset[here]
        found.size = scan.size[here]
        found.body_crc = scan.body_crc[here]
        found.prepared_transaction_offset = scan.prepared_transaction_offset[here]
        yield buf, found
        position, done = found.end, done + len(found)
