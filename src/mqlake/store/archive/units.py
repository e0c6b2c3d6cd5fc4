"""Units of a whole file of the log: what dispatch makes of it, so that nobody has to read it for that again.

    units/<20 digits>   "MQUNITS1" [frame][frame]…          a frame for each 32,768 records
    frame               size (4) │ zstd of: size of the head (4) │ head (JSON) │ units │ store times │ inner │ keys

The head has the runs and topics of a PreparedUnits, the arrays are its own and those of an IndexKeys, little-endian; so
consume queues and index are made by the same calls as ever (ConsumeQueueStore.put, IndexService.put), in the log's
order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import orjson

from mqlake.errors import ForeignFormatError, StoreError
from mqlake.formats.columns import Bytes, ScanStop, dispatch_columns, find_record, scan_records
from mqlake.formats.consume_queue import CQ_DTYPE
from mqlake.store.index.index_service import IndexKeys, IndexService
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, PreparedUnits

MAGIC = b"MQUNITS1"
FRAME_RECORDS = 32768
LEVEL = 3
SIZE_BYTES = 4


@dataclasses.dataclass(slots=True)
class Survey:
    """A summary of a stretch of the log: the least and the largest store time (ms), records, topics."""

    first_time_ms: int = 0
    last_time_ms: int = -1
    records: int = 0
    topics: set[str] = dataclasses.field(default_factory=set)

    def add(self, times: np.ndarray[tuple[int], np.dtype[np.int64]], topics: Iterable[bytes]) -> None:
        first, last = int(times.min()), int(times.max())
        self.first_time_ms = first if not self.records else min(self.first_time_ms, first)
        self.last_time_ms = max(self.last_time_ms, last)
        self.records += len(times)
        self.topics |= {topic.decode("utf-8", "replace") for topic in topics}


def survey(
    array: Bytes,
    start: int,
    end: int,
    base: int,
    delay_levels: Mapping[int, int],
    write: Callable[[bytes], object] | None = None,
    read_to: Callable[[int], object] = lambda position: None,
) -> Survey:
    """Looks at the records in positions [start, end) of `array`, whose physical offset is `base`; `write` gets the
    units object, piece by piece. Where no record is, it goes on at the next one. `read_to(position)`: what is before
    is done."""
    found, position = Survey(), start
    if write is not None:
        write(MAGIC)
    while position < end:
        scan = scan_records(array, position, end, base, max_records=FRAME_RECORDS, check_crc=False)
        if len(scan):
            found.add(scan.store_timestamp, scan.topics)
            if write is not None:
                columns = dispatch_columns(array, scan, delay_levels=dict(delay_levels))
                units = ConsumeQueueStore.prepare(scan, columns)
                write(encode(units, IndexService.prepare(scan, columns)))
        position = scan.end
        read_to(position)
        if scan.stop in (ScanStop.END, ScanStop.TRUNCATED, ScanStop.INVALID):
            position = find_record(array, position, end, base)
            if position < 0:
                break
    return found


def encode(units: PreparedUnits, keys: IndexKeys) -> bytes:
    """One frame."""
    from mqlake.base import zstd

    inner = np.empty((3, 0), np.int64) if units.inner is None else units.inner
    head = orjson.dumps(
        {
            "units": len(units.units),
            "inner": -1 if units.inner is None else inner.shape[1],
            "keys": len(keys.key_hash),
            "runs": units.runs,
            "topics": [topic.decode("latin-1") for topic in units.topics],
            "lastTime": units.last_timestamp,
            "lastOffset": keys.last_physical_offset,
        }
    )
    parts = (
        len(head).to_bytes(SIZE_BYTES, "little"),
        head,
        units.units.tobytes(),
        units.store_time.astype("<i8").tobytes(),
        inner.astype("<i8").tobytes(),
        keys.key_hash.astype("<i4").tobytes(),
        keys.physical_offset.astype("<i8").tobytes(),
        keys.store_timestamp.astype("<i8").tobytes(),
    )
    data = zstd.compress(b"".join(parts), LEVEL)
    return len(data).to_bytes(SIZE_BYTES, "little") + data


def decode(data: bytes, place: str) -> Iterator[tuple[PreparedUnits, IndexKeys]]:
    """The frames of a units object. ForeignFormatError, StoreError for damage, with the place."""
    if not data.startswith(MAGIC):
        raise ForeignFormatError(f"{place}: not the units of a log file, or of a newer version")
    position = len(MAGIC)
    while position < len(data):
        size = int.from_bytes(data[position : position + SIZE_BYTES], "little")
        position += SIZE_BYTES
        try:
            yield _frame(data[position : position + size], size)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise StoreError(
                f"{place} is damaged at byte {position}: {error}; `mqlake store archive repair` makes it again from "
                "the log"
            ) from None
        position += size


def _frame(data: bytes, size: int) -> tuple[PreparedUnits, IndexKeys]:
    from mqlake.base import zstd

    if len(data) != size:
        raise ValueError("it is cut short")
    try:
        raw = zstd.decompress(data)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from None
    start = SIZE_BYTES + int.from_bytes(raw[:SIZE_BYTES], "little")
    head = orjson.loads(raw[SIZE_BYTES:start])

    def take(count: int, dtype: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        nonlocal start
        found = np.frombuffer(raw, dtype, count, start)
        start += found.nbytes
        return found

    count, keys = head["units"], head["keys"]
    units = np.frombuffer(raw, CQ_DTYPE, count, start)
    start += units.nbytes
    times = take(count, "<i8")
    inner = None if head["inner"] < 0 else take(3 * head["inner"], "<i8").reshape(3, -1)
    prepared = PreparedUnits(
        units, times, inner, head["runs"], [t.encode("latin-1") for t in head["topics"]], head["lastTime"]
    )
    hashes = take(keys, "<i4").astype(np.int32)
    return prepared, IndexKeys(hashes, take(keys, "<i8"), take(keys, "<i8"), head["lastOffset"])
