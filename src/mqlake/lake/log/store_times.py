"""Where in a log a time is likely to be: a search by the store times of single records.

    offset  |------------|------------|------|--|--|------|------------|      samples, closer where the time may be
    time    10:00        11:00        12:00            12:30          13:00

Store times rise along the log, unless the clock is set back. So a region between two samples is only skipped when the
wanted time is further away than a minute, than the region is long, and than its neighbours are; and never
when its second sample is older than its first. A clock set back by more than the length of a region shows in its
samples; one set back by less stays within that distance. A clock that was set back and forth again between two samples
goes unnoticed: this is no proof. For a local log time_spans looks at what would be skipped; for a remote one, where
that would read it all, `skipping=sampled` says that samples are enough.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from struct import Struct

from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import find_record
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, store_timestamp_position
from mqlake.lake.log.splits import REMOTE_MARGIN, LogFile
from mqlake.lake.log.storage import Storage
from mqlake.message import MessageSysFlag

CLOCK_BACK_MS = 60_000
GRAIN = 64 << 10
REMOTE_GRAIN = 16 << 20
"""A region that is no longer is not divided."""
STRIDE = 16 << 20
"""Samples of a local log are never further apart, so that a clock shows that was wrong for so many bytes."""
MAPPED_MAX = 100
"""Files of a log that are mapped at a time, each with a descriptor: it may have more than a process may open."""
PARTS = 4
"""Into which a region is divided."""
HEAD_BYTES = 128

# size, magic, queue id, queue offset, physical offset, system flag
_HEAD = Struct(">ii4xi4xqqi")
_TIME, _LENGTH = Struct(">q"), Struct(">i")
_INFINITE = float("inf")

Sample = tuple[int, int | None]
"""A physical offset, and the store time (ms) of the record there, None where none was found."""


class Heads:
    """Single records of a log, looked at in place. `files`: oldest first."""

    def __init__(self, storage: Storage, files: Sequence[LogFile]) -> None:
        self.storage, self.files = storage, files
        self._begins = [file.base_offset for file in files]
        self._mapped: dict[str, Bytes] = {}

    def _read(self, file: LogFile, start: int, end: int) -> Bytes:
        end = min(end, file.limit)
        if not self.storage.is_local:
            return self.storage.read(file.file, start, end)
        if file.file not in self._mapped:
            if len(self._mapped) >= MAPPED_MAX:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[file.file] = self.storage.map(file.file, file.limit)
        return self._mapped[file.file][start:end]

    def file_of(self, offset: int) -> LogFile | None:
        """The file that has data at a physical offset."""
        number = bisect.bisect_right(self._begins, offset) - 1
        return self.files[number] if number >= 0 and offset < self.files[number].end_offset else None

    def _head(self, offset: int) -> tuple[LogFile, bytes, int, int] | None:
        """Of the record at `offset`: its file, first bytes, and the positions in them of store time and body length."""
        file = self.file_of(offset)
        if file is None:
            return None
        position = offset - file.base_offset
        head = self._read(file, position, position + HEAD_BYTES).tobytes()
        if len(head) < HEAD_BYTES and len(head) < 88:
            return None
        _, magic, _, _, physical_offset, sys_flag = _HEAD.unpack_from(head)
        if magic not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2) or physical_offset != offset:
            return None
        time = store_timestamp_position(sys_flag)
        body = time + 8 + (20 if sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG else 8) + 12
        return (file, head, time, body) if body + 4 <= len(head) else None

    def store_time_at(self, offset: int) -> int | None:
        """Store time (ms) of the record that begins at a physical offset, None where none does."""
        found = self._head(offset)
        return None if found is None else int(_TIME.unpack_from(found[1], found[2])[0])

    def message_at(self, offset: int) -> tuple[str, int, int] | None:
        """Topic, queue id and queue offset of the record that begins at a physical offset, None where none does."""
        found = self._head(offset)
        if found is None:
            return None
        file, head, _, at = found
        _, magic, queue_id, queue_offset, _, _ = _HEAD.unpack_from(head)
        width = 1 if magic == MESSAGE_MAGIC_CODE else 2
        start = offset - file.base_offset + at + 4 + max(0, _LENGTH.unpack_from(head, at)[0])
        tail = self._read(file, start, start + width + 0x7FFF).tobytes()
        length = int.from_bytes(tail[:width], "big")
        return tail[width : width + length].decode("utf-8", "replace"), queue_id, queue_offset

    def first_after(self, file: LogFile, position: int) -> Sample | None:
        """The first record that begins at a position of a file, or soon after."""
        end = file.limit if self.storage.is_local else position + REMOTE_MARGIN
        data = self._read(file, position, end)
        found = find_record(data, 0, len(data), file.base_offset + position)
        if found < 0:
            return None
        offset = file.base_offset + position + found
        return offset, self.store_time_at(offset)


def ranges_by_samples(heads: Heads, earliest: float, latest: float) -> list[tuple[int, int]]:
    """Ranges of physical offsets in which the records with a store time (ms) from `earliest` to `latest` are, as far as
    samples show.

    Raises FileNotFoundError for a file that was deleted.
    """
    grain = GRAIN if heads.storage.is_local else REMOTE_GRAIN
    samples: list[Sample] = [
        (file.base_offset, heads.store_time_at(file.base_offset)) for file in heads.files
    ]
    if heads.storage.is_local:
        between = (
            heads.first_after(file, position)
            for file in heads.files
            for position in range(STRIDE, file.limit, STRIDE)
        )
        samples = sorted(dict([*samples, *filter(None, between)]).items())
    last = heads.files[-1]
    near_end = heads.first_after(last, max(0, last.limit - grain))
    if near_end is not None and near_end[0] > samples[-1][0]:
        samples.append(near_end)
    end = last.end_offset
    while True:
        possible = _possible(samples, earliest, latest)
        more: list[Sample] = []
        for number in possible:
            start = samples[number][0]
            until = samples[number + 1][0] if number + 1 < len(samples) else end
            if until - start > grain and _may_be_narrowed(samples, number, earliest, latest):
                more += _between(heads, start, until)
        known = {offset for offset, _ in samples}
        more = [sample for sample in more if sample[0] not in known]
        if not more:
            break
        samples = sorted(dict([*samples, *more]).items())
    return [
        (samples[number][0], samples[number + 1][0] if number + 1 < len(samples) else end)
        for number in possible
    ]


def _between(heads: Heads, start: int, until: int) -> list[Sample]:
    """Samples that divide a region, which lies in one file."""
    file = heads.file_of(start)
    assert file is not None
    limit = min(until, file.end_offset) - file.base_offset
    first = start - file.base_offset
    found = [heads.first_after(file, first + (limit - first) * part // PARTS) for part in range(1, PARTS)]
    return [sample for sample in found if sample is not None and start < sample[0] < until]


def _possible(samples: Sequence[Sample], earliest: float, latest: float) -> list[int]:
    """Numbers of the regions, each from one sample to the next, that may have a record with such a time."""
    lengths = [
        _INFINITE if a is None or b is None or b < a else b - a
        for (_, a), (_, b) in itertools.pairwise(samples)
    ]
    lengths.append(_INFINITE)  # nothing is known of the end
    found = []
    for number, (_, begins) in enumerate(samples):
        ends = samples[number + 1][1] if number + 1 < len(samples) else None
        around = [each for each in lengths[max(0, number - 1) : number + 2] if each < _INFINITE]
        guard = max([CLOCK_BACK_MS, *around])
        if (
            begins is None
            or ends is None
            or ends < begins
            or (earliest <= ends + guard and latest >= begins - guard)
        ):
            found.append(number)
    return found


def _may_be_narrowed(samples: Sequence[Sample], number: int, earliest: float, latest: float) -> bool:
    """True if a part of a region could be skipped, if only there were samples in it."""
    begins = samples[number][1]
    ends = samples[number + 1][1] if number + 1 < len(samples) else None
    if begins is None or ends is None or ends < begins:
        return True
    return begins < earliest - CLOCK_BACK_MS or ends > latest + CLOCK_BACK_MS
