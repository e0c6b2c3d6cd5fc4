"""A commit log in memory, for tests of what is derived from one."""

from __future__ import annotations

import dataclasses

import numpy as np

from mqlake.formats.columns import DispatchColumns, Scan, ScanStop, dispatch_columns, scan_records
from mqlake.formats.record import encode_record
from mqlake.message import crc32, host_bytes, parse_delay_levels, properties_to_bytes

HOST = host_bytes(("127.0.0.1", 10911))
DELAY_LEVELS = parse_delay_levels("1s 5s 10s")
BODY = b"body"


@dataclasses.dataclass
class Record:
    topic: str = "T"
    queue_id: int = 0
    queue_offset: int = 0
    store_timestamp: int = 1_700_000_000_000
    sys_flag: int = 0
    properties: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = BODY
    physical_offset: int = -1
    size: int = -1


class LogOf:
    """The records back to back from physical offset `base` on; each learns its place and size."""

    def __init__(self, records: list[Record], base: int = 0) -> None:
        self.records = records
        self.base = base
        blob = bytearray()
        for record in records:
            record.physical_offset = base + len(blob)
            encoded = encode_record(
                record.body,
                crc32(record.body),
                record.queue_id,
                0,
                record.queue_offset,
                record.physical_offset,
                record.sys_flag,
                record.store_timestamp - 1,
                HOST,
                record.store_timestamp,
                HOST,
                0,
                0,
                record.topic.encode(),
                properties_to_bytes(record.properties),
            )
            record.size = len(encoded)
            blob += encoded
        self.end = base + len(blob)
        self.array = np.frombuffer(bytes(blob), np.uint8)

    def dispatched(self, first: int = 0, last: int | None = None) -> tuple[Scan, DispatchColumns]:
        """What dispatchers get for records first … last - 1."""
        chosen = self.records[first:last]
        start = chosen[0].physical_offset - self.base
        end = chosen[-1].physical_offset + chosen[-1].size - self.base
        scan = scan_records(self.array, start, end, self.base)
        while scan.stop == ScanStop.MAX_RECORDS:  # the first scans of a process take small steps
            scan = scan_records(self.array, start, end, self.base)
        assert len(scan) == len(chosen)
        return scan, dispatch_columns(self.array, scan, delay_levels=DELAY_LEVELS)

    def store_time_of(self, physical_offset: int, size: int) -> int:
        for record in self.records:
            if record.physical_offset == physical_offset and record.size == size:
                return record.store_timestamp
        return -1
