"""Many records at a time: logs to columns, columns to consume queue and index entries, batches to logs.

    mapped file ──scan_records──▶ Scan ──dispatch_columns──▶ DispatchColumns ──index_put_many──▶ index file
                                   └──gather──▶ bodies, topics, properties back to back (Arrow's layout)
    encodeMessages blob ──append_batch──▶ mapped file

Buffers are one-dimensional, contiguous numpy arrays of uint8 (`np.frombuffer(mmap, np.uint8)`); a position
counts bytes from the start of such a buffer. The work is done by one of two modules with the same functions
and the same results: `native.columns`, which lets go of the GIL, or `plain` where mqlake was installed without a
compiler (`mqlake.native`). Importing this package does not import the kernels.

No input makes these functions read or write outside their buffers, and none makes them raise, except for
arguments that contradict each other (ValueError, TypeError).
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqlake import native
from mqlake.errors import MessageError
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.columns import layout, plain
from mqlake.formats.columns.layout import BAD_BLOB, NO_ROOM, PROPERTIES_TOO_LARGE, RECORD_TOO_LARGE
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.formats.index import index_file_size
from mqlake.formats.record import (
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    RECORD_SIZE_MIN,
    check_record,
    encode_unpublished,
    topic_field,
    with_host_flags,
)
from mqlake.message import SCHEDULE_TOPIC, deliver_timestamp

__all__ = [
    "BAD_BLOB",
    "NO_ROOM",
    "PROPERTIES_TOO_LARGE",
    "RECORD_TOO_LARGE",
    "AppendedBatch",
    "DispatchColumns",
    "Followed",
    "QueueUnits",
    "Scan",
    "ScanRoom",
    "ScanStop",
    "Walk",
    "append_batch",
    "arrivals_by_queue",
    "as_input",
    "dispatch_columns",
    "find_record",
    "follow_units",
    "gather",
    "gather_runs",
    "index_put_many",
    "index_query",
    "scan_records",
    "units_by_queue",
    "walk_records",
    "whole_records",
]

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Int16s = NDArray[np.int16]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@functools.cache
def record_codec() -> ModuleType:
    """The module that does the work: `native.columns`, or `plain` where that is not compiled."""
    return native.module("columns") or plain


def as_input(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """As compiled functions take their inputs: of this type, without gaps, and read-only."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _input_bytes(buf: Bytes) -> Bytes:
    if not _require_bytes(buf):
        return buf
    view = buf.view()
    view.flags.writeable = False
    return view


def _output_bytes(buf: Bytes) -> Bytes:
    if not _require_bytes(buf):
        raise TypeError("a writable array is needed")
    return buf


def _require_bytes(buf: Bytes) -> bool:
    """True if `buf` may be written; TypeError when it is not an array of bytes without gaps."""
    flags = buf.flags
    if buf.dtype != np.uint8 or buf.ndim != 1 or not flags.c_contiguous:
        raise TypeError(f"a contiguous array of uint8 is needed, not {buf.dtype} with strides {buf.strides}")
    return flags.writeable


def _require_range(start: int, limit: int, length: int) -> None:
    if not 0 <= start <= limit <= length:
        raise ValueError(f"positions {start} to {limit} do not lie in a buffer of {length} bytes")


class ScanStop(enum.IntEnum):
    """Why a walk over records stopped. The first four have the values of record.RecordKind."""

    BLANK = layout.BLANK
    """The blank that ends a file; `Scan.end` is the position after all it claims."""
    END = layout.END
    """A size of zero: nothing was written from `Scan.end` on, or nothing that was finished."""
    TRUNCATED = layout.TRUNCATED
    """The record or blank at `Scan.end` says more bytes than there are before the limit."""
    INVALID = layout.INVALID
    """Damage at `Scan.end`."""
    LIMIT = layout.LIMIT
    """Everything up to the limit is records."""
    MAX_RECORDS = layout.MAX_RECORDS
    """There may be more: go on at `Scan.end`."""


class Scan:
    """n records that lie back to back, a numpy array of length n for each field.

    Starts are positions in the scanned buffer, lengths and sizes are bytes, timestamps ms. `topic_id` is a
    number into `topics`, given in order of appearance; it means nothing outside this scan.
    """

    __slots__ = (
        "_narrow",
        "_topic_record",
        "_wide",
        "end",
        "queues",
        "stop",
        "stop_reason",
        "topics",
        *layout.WIDE,
        *layout.NARROW,
    )

    position: Int64s
    physical_offset: Int64s
    queue_offset: Int64s
    born_timestamp: Int64s
    store_timestamp: Int64s
    prepared_transaction_offset: Int64s
    body_start: Int64s
    topic_start: Int64s
    properties_start: Int64s
    born_host_start: Int64s
    store_host_start: Int64s
    size: Int32s
    queue_id: Int32s
    sys_flag: Int32s
    flag: Int32s
    body_crc: Int32s
    reconsume_times: Int32s
    body_length: Int32s
    topic_length: Int32s
    topic_id: Int32s
    properties_length: Int32s

    queues: tuple[Int64s, Int64s]
    """The queue of each record, as a number, and of each queue what arrivals_by_queue() says."""
    topics: list[bytes]
    end: int
    """Position where the walk stopped: the next one to look at."""
    stop: ScanStop
    stop_reason: str
    """The fault at `end` when the stop is INVALID or TRUNCATED, else empty."""

    def __init__(self, wide: Int64s, narrow: Int32s, topic_record: Int32s) -> None:
        self._wide = wide
        self._narrow = narrow
        self._topic_record = topic_record

    def __getattr__(self, name: str) -> Any:
        """Makes a column at its first use: 21 at once would cost as much as a small scan."""
        column: NDArray[Any]
        if name in layout.WIDE:
            column = self._wide[layout.WIDE.index(name)]
        elif name in layout.NARROW:
            column = self._narrow[layout.NARROW.index(name)]
        elif name == "queues":
            self.queues = _number_queues(self)
            return self.queues
        else:
            raise AttributeError(name)
        setattr(self, name, column)
        return column

    def __len__(self) -> int:
        return len(self._wide[0])


CACHE_LINE = 64
SMALL_SCAN = 1024
"""Records for which arrays are no new pages, and cheaper than a zeroed table of a whole room's topics."""


def _rows(count: int, columns: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Rows of at least so many columns, an odd number of cache lines each: of a power of two, the rows of one column
    would all have to be in the same few places of the processor's caches."""
    in_line = CACHE_LINE // np.dtype(dtype).itemsize
    return np.empty((count, (-(-columns // in_line) | 1) * in_line), dtype)


class ScanRoom:
    """Arrays for scans of at most `records`, of which each takes the place of the one before. For who scans all the
    time: the pages of new arrays cost as much as to scan small records."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.wide = _rows(len(layout.WIDE), records, np.int64)
        self.narrow = _rows(len(layout.NARROW), records, np.int32)
        self.slots = np.zeros(1 << (2 * records - 1).bit_length(), np.int32)
        self.topic_record = np.empty(records, np.int32)


def scan_records(
    buf: Bytes,
    start: int,
    limit: int,
    base_offset: int,
    *,
    max_records: int = 65536,
    check_crc: bool = True,
    force_prop_crc: bool = False,
    room: ScanRoom | None = None,
) -> Scan:
    """The records from `start` on, none beyond `limit`, at most `max_records`, up to the first non-record.

    MAX_RECORDS may come before that many: the first scans of a process take small steps.

    `base_offset` is the physical offset of buf[0]: a record at position p must say PHYSICALOFFSET
    base_offset + p. The checks are those of record.check_record. A blank ends the walk. The columns are good until the
    next scan in `room`.
    """
    data = _input_bytes(buf)
    _require_range(start, limit, len(data))
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}; at least 1 is needed")
    capacity = min(max_records, (limit - start) // RECORD_SIZE_MIN + 1)
    if room is None or not SMALL_SCAN < capacity <= room.records <= max_records:
        room = ScanRoom(capacity)
    else:
        room.slots.fill(0)
    wide, narrow, topic_record = room.wide, room.narrow, room.topic_record
    n, topics, end, stop = record_codec().scan(
        data, start, limit, base_offset, check_crc, force_prop_crc, wide, narrow, room.slots, topic_record
    )
    scan = Scan(wide[:, :n], narrow[:, :n], topic_record[:topics])
    scan.end = end
    scan.stop = ScanStop(stop)
    scan.stop_reason = ""
    if scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
        scan.stop_reason = check_record(
            data.data,
            end,
            limit,
            base_offset + end,
            check_crc=check_crc,
            force_prop_crc=force_prop_crc,
        ).reason
    view = data.data
    starts = wide[layout.TOPIC_START].take(scan._topic_record).tolist()
    lengths = narrow[layout.TOPIC_LENGTH].take(scan._topic_record).tolist()
    scan.topics = [bytes(view[a : a + b]) for a, b in zip(starts, lengths, strict=True)]
    return scan


class Walk(NamedTuple):
    """The records that a walk found."""

    records: int
    store_timestamp: int
    """Store time of the last record, in ms; 0 without one."""
    end: int
    stop: ScanStop
    stop_reason: str


def walk_records(buf: Bytes, start: int, limit: int, base_offset: int, *, check_crc: bool = True) -> Walk:
    """scan_records() for those who need no columns: the same checks, the same end."""
    data = _input_bytes(buf)
    _require_range(start, limit, len(data))
    records, timestamp, end, stop = record_codec().walk(data, start, limit, base_offset, check_crc)
    reason = ""
    if stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
        reason = check_record(data.data, end, limit, base_offset + end, check_crc=check_crc).reason
    return Walk(int(records), int(timestamp), int(end), ScanStop(stop), reason)


def find_record(buf: Bytes, start: int, limit: int, base_offset: int) -> int:
    """First position in [start, limit) where a whole record begins that passes every check, or -1.

    A body may hold the image of a record, but not one that says the physical offset at which it lies, unless
    someone who can foresee offsets wants to be found.
    """
    data = _input_bytes(buf)
    _require_range(start, limit, len(data))
    return int(record_codec().find_record(data, start, limit, base_offset))


_NO_DELAYS = np.zeros(1, np.int64)


class DispatchColumns(NamedTuple):
    """The columns that consume queues and index need. Per record, as in the Scan:"""

    tags_code: Int64s
    """The tags' hash, 0 without tags; for a delayed message in SCHEDULE_TOPIC_XXXX when it is due (ms)."""
    has_keys: Bools
    """True if the record has any index keys."""
    inner_num: Int16s
    """Messages in an inner batch, 1 for a message alone."""
    inner_base: Int64s
    """Queue offset of the first of them."""
    key_hash: Int32s
    """Index keys of all records in order, UNIQ_KEY before KEYS; none for rolled back records."""
    key_record: Int32s
    """Which record each key belongs to."""


def dispatch_columns(buf: Bytes, scan: Scan, *, delay_levels: Mapping[int, int]) -> DispatchColumns:
    """Reads the properties of the scanned records; `delay_levels` gives the ms of each level.

    Of equal property names the last counts. Text that is not UTF-8 counts as if it had U+FFFD in its place. A
    DELAY, INNER_NUM or INNER_BASE that is no number counts as absent.
    """
    data = _input_bytes(buf)
    n = len(scan)
    # As scanned: callers may have replaced `size` by that of the record in the log from which a message was unpacked.
    if n and scan._wide[layout.POSITION, -1] + scan._narrow[layout.SIZE, -1] > len(data):
        raise ValueError("the scan is of another, longer buffer")
    schedule = SCHEDULE_TOPIC.encode()
    schedule_topic, delays = -1, _NO_DELAYS
    if schedule in scan.topics:
        schedule_topic = scan.topics.index(schedule)
        last_level = max(delay_levels, default=0)
        delays = np.array(
            [deliver_timestamp(level, 0, delay_levels) for level in range(last_level + 1)], np.int64
        )
    tags_code = np.empty(n, np.int64)
    has_keys = np.empty(n, np.bool_)
    inner_num = np.empty(n, np.int16)
    inner_base = np.empty(n, np.int64)
    topic_code = np.empty(len(scan.topics), np.int64)
    hashes: list[Int32s] = []
    records: list[Int32s] = []
    first = 0
    work = record_codec()
    shapes = np.zeros((layout.SHAPES + 1) * layout.SHAPE_SIZE, np.int64)
    capacity = 2 * n + 16
    while True:
        key_hash = np.empty(capacity, np.int32)
        key_record = np.empty(capacity, np.int32)
        first, keys = work.dispatch(
            data,
            first,
            scan._wide,
            scan._narrow,
            scan._topic_record,
            topic_code,
            schedule_topic,
            delays,
            tags_code,
            has_keys,
            inner_num,
            inner_base,
            key_hash,
            key_record,
            shapes,
        )
        hashes.append(key_hash[:keys])
        records.append(key_record[:keys])
        if first == n:
            break
        capacity *= 2
    if len(hashes) > 1:
        hashes, records = [np.concatenate(hashes)], [np.concatenate(records)]
    return DispatchColumns(tags_code, has_keys, inner_num, inner_base, hashes[0], records[0])


class QueueUnits(NamedTuple):
    """Consume queue units of scanned records, queue by queue, each queue's in the order of the log."""

    units: Bytes
    """Back to back, CQ_STORE_UNIT_SIZE bytes each."""
    record: Int64s
    """Which record of the scan each unit is of."""
    runs: list[list[int]]
    """Units of one queue whose messages follow each other, an inner batch counting as all of its own: topic id, queue
    id, the first unit, one after the last, the first one's queue offset, 1 if no inner batch is among them, and the
    physical offset at which the last record ends."""


def units_by_queue(scan: Scan, columns: DispatchColumns, *, hidden: int) -> QueueUnits:
    """Returns the units of the records that have none of the `hidden` bits in SYSFLAG."""
    n = len(scan)
    record, units = np.empty(n, _INT64), np.empty(n * CQ_STORE_UNIT_SIZE, _UINT8)
    numbers, arrivals = scan.queues
    runs = np.empty((n, 7), _INT64)
    count, found = record_codec().units_by_queue(
        scan._wide,
        scan._narrow,
        columns.tags_code,
        columns.inner_num,
        hidden,
        numbers,
        arrivals,
        np.empty(len(arrivals), _INT64),
        record,
        units,
        runs,
    )
    return QueueUnits(units[: count * CQ_STORE_UNIT_SIZE], record[:count], runs[:found].tolist())


def arrivals_by_queue(scan: Scan) -> list[list[int]]:
    """Returns for each queue that has records: topic id, queue id, its next queue offset, how many records, and
    their bytes."""
    found: list[list[int]] = scan.queues[1].tolist()
    return found


FEW_QUEUES = 1024


def _number_queues(scan: Scan) -> tuple[Int64s, Int64s]:
    """The queue of each record, by its number, and of each queue what arrivals_by_queue() says."""
    n = len(scan)
    numbers, room = np.empty(n, _INT64), FEW_QUEUES
    while True:
        # of arrays as large as all records may need most pages would be touched for nothing
        queues = min(room, n)
        arrivals = np.empty((queues, 5), _INT64)
        found = record_codec().number_queues(
            scan._wide,
            scan._narrow,
            np.zeros(2 * room, _INT32),
            np.empty(queues, _INT64),
            numbers,
            arrivals,
        )
        if found >= 0:
            return numbers, arrivals[:found]
        room *= 16


def gather(
    buf: Bytes, starts: Int64s, lengths: NDArray[np.integer[Any]], *, large: bool = False
) -> tuple[NDArray[np.integer[Any]], Bytes]:
    """Copies the slices back to back: slice i is data[offsets[i]:offsets[i + 1]].

    Offsets are int32, with `large` int64 (Arrow's binary and large_binary). ValueError when a slice lies
    outside the buffer, or when 2 GiB are exceeded without `large`.
    """
    source = _input_bytes(buf)
    starts = as_input(starts, np.int64)
    if len(starts) != len(lengths):
        raise ValueError("as many lengths as starts are needed")
    # Before the sum: lengths that no slice can have might overflow it.
    if len(lengths) and (lengths.min() < 0 or lengths.max() > len(source)):
        raise ValueError("a slice lies outside the buffer")
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > 0x7FFFFFFF and not large:
        raise ValueError(f"{total} bytes do not fit 32-bit offsets")
    data = np.empty(total, np.uint8)
    if not record_codec().gather(source, starts, as_input(offsets, np.int64), data):
        raise ValueError("a slice lies outside the buffer")
    return (offsets if large else offsets.astype(np.int32)), data


Followed = tuple[int, int, int, Int64s]
"""How many units were followed, so many records; their bytes; how many stretches of records lie back to back, and in so
many first rows (start, end) of each in the buffer. No NamedTuple, which takes longer to make than units to follow."""

_INT32, _INT64, _UINT8 = (
    np.dtype(np.int32),
    np.dtype(np.int64),
    np.dtype(np.uint8),
)  # numpy takes longer to look up a type of Python's
_NO_OFFSETS = np.empty(0, np.int64)


@functools.lru_cache(maxsize=4096)
def _topic_bytes(topic: str) -> Bytes:
    return np.frombuffer(topic.encode(), np.uint8)


def follow_units(
    buf: Bytes,
    end: int,
    base_offset: int,
    units: bytes,
    topic: str,
    queue_id: int,
    queue_offsets: Int64s | range,
    bytes_max: int,
    *,
    check_crc: bool = False,
) -> Followed | None:
    """Follows consume queue `units` to their records in buf[:end]: as many as take no more than `bytes_max` together,
    and the first in any case.

    None when a unit leads to anything but the whole message of this topic and queue and of its own among
    `queue_offsets`, or out of buf[:end]; with `check_crc` also when a body does not have its CRC. `base_offset`
    is the physical offset of buf[0].
    """
    data = _input_bytes(buf) if buf.flags.writeable else buf
    count = len(units) // CQ_STORE_UNIT_SIZE
    runs = np.empty((count, 2), _INT64)
    first, offsets = (
        (queue_offsets.start, _NO_OFFSETS) if isinstance(queue_offsets, range) else (0, queue_offsets)
    )
    followed, size, run_count = record_codec().follow_units(
        data,
        end,
        base_offset,
        np.frombuffer(units, _UINT8),
        _topic_bytes(topic),
        queue_id,
        first,
        offsets,
        bytes_max,
        check_crc,
        runs,
    )
    return None if followed < 0 else (followed, size, run_count, runs)


def whole_records(buf: Bytes, count: int) -> list[tuple[int, int, int]]:
    """(Start of the body, its end, end of the record) of each of at most `count` records that lie back to back in
    `buf`, wherever in a log they were; fewer when one is not whole (as record.check_record() says)."""
    places = np.empty((count, 3), np.int64)
    found: int = record_codec().whole_records(_input_bytes(buf), places)
    numbers = iter(places[:found].ravel().tolist())  # a list of each would take longer than to find them
    return list(zip(numbers, numbers, numbers, strict=True))


def gather_runs(buf: Bytes, runs: Int64s, size: int) -> Bytes:
    """The bytes of `runs`, (start, end) of each, one after the other; they have `size` bytes together."""
    data = np.empty(size, np.uint8)
    source = _input_bytes(buf) if buf.flags.writeable else buf
    if not record_codec().gather_runs(source, np.ascontiguousarray(runs, np.int64), data):
        raise ValueError("a run lies outside the buffer, or the size is not theirs")
    return data


_TIME = struct.Struct(">q")


class AppendedBatch(NamedTuple):
    n: int
    """Records written; when none was, BAD_BLOB, NO_ROOM, RECORD_TOO_LARGE or PROPERTIES_TOO_LARGE (< 0)."""
    wrote: int
    """Bytes of all records."""
    physical_offsets: Int64s
    sizes: Int32s


def append_batch(
    out: Bytes,
    position: int,
    max_blank: int,
    blob: Bytes,
    *,
    base_offset: int,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    extra_props: bytes,
    version: int,
    max_record_size: int,
) -> AppendedBatch:
    """Writes a record for each message of an encodeMessages `blob` to out[position:position + max_blank].

    `base_offset` is the physical offset of out[0]; `queue_offset` belongs to the first message, the others
    count on from there. `extra_props`, the properties of the batch itself, are put after each message's own.

    The batch shows only when the caller writes the first record's TOTALSIZE (`sizes[0]`, 4 bytes at
    `position`), which is left as it is here; 4 zero bytes follow the last record. NO_ROOM: the records and
    the 8 bytes of a blank exceed `max_blank`. Raises what record.encode_record raises for these fields.
    """
    _output_bytes(out)
    if max_blank < 0:
        raise ValueError(f"max_blank is {max_blank}")
    _require_range(position, position + max_blank, len(out))
    source = _input_bytes(blob)
    shared = bytearray(
        _shared_head(queue_id, sys_flag, born_host, store_host, reconsume_times, topic, version)
    )
    try:
        _TIME.pack_into(shared, BORN_TIMESTAMP_POSITION, born_timestamp)
        _TIME.pack_into(shared, BORN_HOST_POSITION + len(born_host), store_timestamp)
    except struct.error as error:
        raise MessageError(f"a number does not fit its field of the record: {error}") from error
    extra_start = len(shared)
    template = np.frombuffer(b"".join((shared, extra_props)), _UINT8)
    capacity = len(source) // ITEM_SIZE_MIN
    offsets = np.empty(capacity, _INT64)
    sizes = np.empty(capacity, _INT32)
    n, wrote = record_codec().append_batch(
        out,
        position,
        max_blank,
        source,
        template,
        extra_start - len(topic) - version,
        extra_start,
        queue_offset,
        base_offset,
        max_record_size,
        offsets,
        sizes,
    )
    return AppendedBatch(n, wrote, offsets[: max(0, n)], sizes[: max(0, n)])


@functools.lru_cache(maxsize=1024)
def _shared_head(
    queue_id: int,
    sys_flag: int,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int,
    topic: bytes,
    version: int,
) -> bytes:
    """Encodes what the records of a batch share before their properties, but for their times; the same for many
    batches."""
    flags, field = with_host_flags(sys_flag, born_host, store_host), topic_field(topic, version)
    size, rest = encode_unpublished(
        b"", 0, queue_id, 0, 0, 0, flags, 0, born_host, 0, store_host, reconsume_times, 0, field, b"", version
    )
    return size + rest[:-6]  # without the length of its properties, and the zeros after it


def _require_index(index: Bytes, hash_slot_num: int, index_num: int) -> None:
    if hash_slot_num < 1 or index_num < 1 or len(index) < index_file_size(hash_slot_num, index_num):
        raise ValueError(f"{len(index)} bytes are no index of {hash_slot_num} slots and {index_num} entries")


def index_put_many(
    index: Bytes,
    hash_slot_num: int,
    index_num: int,
    key_hash: Int32s,
    physical_offset: Int64s,
    store_timestamp: Int64s,
) -> int:
    """Puts keys into an index file in order; how many were put, fewer than given when the file is full.

    The three arrays have one element a key. Entries, slots and the header in `index` are brought up to date.
    """
    _require_index(_output_bytes(index), hash_slot_num, index_num)
    if not len(key_hash) == len(physical_offset) == len(store_timestamp):
        raise ValueError("hashes, offsets and timestamps differ in number")
    return int(
        record_codec().index_put_many(
            index,
            hash_slot_num,
            index_num,
            as_input(key_hash, np.int32),
            as_input(physical_offset, np.int64),
            as_input(store_timestamp, np.int64),
        )
    )


def index_query(
    index: Bytes, hash_slot_num: int, index_num: int, key_hash: int, begin: int, end: int, max_num: int
) -> Int64s:
    """Physical offsets, newest first, at most `max_num`, of entries with this hash stored in [begin, end] ms.

    Times are kept in whole seconds after the file's first. Equal hashes do not mean equal keys: look at the
    records.
    """
    data = _input_bytes(index)
    _require_index(data, hash_slot_num, index_num)
    found = np.empty(max(0, max_num), np.int64)
    hits = record_codec().index_query(data, hash_slot_num, index_num, int(key_hash), begin, end, found)
    return found[:hits]
