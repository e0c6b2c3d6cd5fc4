"""Records ↔ index entries, in one pass over the log.

Entries stand in the order of the log, so the keys of the log's records and the entries of the files, one file
after the other, are the same sequence: each chunk of records takes the entries up to its end and compares.

    log     k1 k2 │ k3 k4 k5 │ k6 ...            wrong     an entry without a record that has such a key
    index      k2 │ k3    k5 │ k6 ...            missing   a key between entries that has none
            └ before the first entry: cleaned away with an older file, or never indexed

Each file is also checked by itself: header, and that every entry can be reached from its slot.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mqlake.base.findings import Finding, Findings, Severity
from mqlake.formats.columns import Bools, DispatchColumns, Int64s
from mqlake.formats.index import ENTRY_DTYPE, INDEX_HEADER_SIZE, entry_position
from mqlake.store.index.index_file import IndexFile
from mqlake.store.log.log_reader import Hole, RecordChunk

ENTRIES_A_BLOCK = 65536
HASH_BITS = 31
I32_MAX = 0x7FFFFFFF

Entries = npt.NDArray[np.void]


class _File:
    """The entries of one file, `count` of them; entry i of the array has number i + 1."""

    def __init__(self, file: IndexFile) -> None:
        self.file = file
        self.header = file.header
        self.entries = entries_of(file)
        self.count = len(self.entries)
        self.order: npt.NDArray[np.intp] | None = None

    def position_of(self, entry: int) -> int:
        return entry_position(entry + 1, self.file.hash_slot_num)

    def number(self, at: int) -> int:
        """Which entry stands at place `at` of the order of physical offsets."""
        return at if self.order is None else int(self.order[at])

    def block(self, start: int, end: int) -> Entries:
        return self.entries[start:end] if self.order is None else self.entries[self.order[start:end]]

    def blocks(self) -> Iterator[tuple[int, Entries]]:
        """(number of the first, entries) in the order they lie in; memory is given up after them."""
        for start in range(0, self.count, ENTRIES_A_BLOCK):
            block = self.entries[start : start + ENTRIES_A_BLOCK]
            yield start, block
            self.evict(start, start + len(block))

    def evict(self, start: int, end: int) -> None:
        self.file.mapped_file.evict(self.position_of(start), self.position_of(end))


def entries_of(file: IndexFile) -> Entries:
    """The entries that the header says are in use."""
    count = max(0, min(file.index_count, file.index_num) - 1)
    start = entry_position(1, file.hash_slot_num)
    return np.frombuffer(file.mapped_file.view, ENTRY_DTYPE, count, start)


def entries_before(file: IndexFile, physical_offset: int) -> int:
    """How many entries point before this offset, of entries in the order of the log."""
    entries = entries_of(file)
    return bisect.bisect_left(
        range(len(entries)), physical_offset, key=lambda at: int(entries["phy_offset"][at])
    )


class IndexVerifier:
    """`settled`: the store was closed cleanly and has no writer. Otherwise the newest file may hold anything: the next
    start of the store makes it again.

    `begin`: only the records from this physical offset on are to come, and the files by themselves are another's to
    check.
    """

    def __init__(
        self,
        files: Sequence[IndexFile],
        findings: Findings,
        *,
        log_min: int,
        settled: bool,
        begin: int | None = None,
    ) -> None:
        self.entries_checked = 0
        self.keys_before = 0
        """Keys of records that are older than the first entry: cleaned away, or never indexed."""
        self._findings = findings
        self._log_min = log_min
        self._settled = settled
        self._files = [_File(file) for file in files]
        if begin is None:
            for file in self._files:
                self._check_file(file)
        filled = [file for file in self._files if file.count]
        self._first = int(filled[0].block(0, 1)["phy_offset"][0]) if filled else I64_MAX
        self._last = (
            int(filled[-1].block(filled[-1].count - 1, filled[-1].count)["phy_offset"][0]) if filled else -1
        )
        self._at = (0, 0) if begin is None else self._first_from(begin)
        self._missing = 0
        self._missing_range = (0, 0)

    @property
    def missing(self) -> int:
        """Keys so far that have no entry."""
        return self._missing

    def _first_from(self, physical_offset: int) -> tuple[int, int]:
        """File and place of the first entry that points there or further on."""
        for number, file in enumerate(self._files):
            at = entries_before(file.file, physical_offset)
            if at < file.count:
                return number, at
        return len(self._files), 0

    # ------------------------------------------------------------------ a file by itself

    def _severity(self, file: _File) -> Severity:
        newest = bool(self._files) and file is self._files[-1]
        return Severity.NOTE if newest and not self._settled else Severity.DAMAGE

    def _report(self, file: _File, kind: str, position: int, text: str, count: int = 1) -> None:
        self._findings.add(Finding(self._severity(file), kind, file.file.path, position, text), count)

    def _check_file(self, file: _File) -> None:
        header, index_file = file.header, file.file
        if not 1 <= header.index_count <= index_file.index_num:
            self._report(
                file, "index header", 36, f"{header.index_count} entries in a file of {index_file.index_num}"
            )
        if file.count == 0:
            return
        offsets = file.entries["phy_offset"]
        for name, said, found, position in (
            ("begin", header.begin_phy_offset, int(offsets[0]), 16),
            ("end", header.end_phy_offset, int(offsets[-1]), 24),
        ):
            if said != found:
                text = f"the {name} offset is {said}, the {'first' if name == 'begin' else 'last'} entry's {found}"
                self._report(file, "index header", position, text)
        used = self._check_chains(file)
        if used != header.hash_slot_count:
            self._report(file, "index header", 32, f"{header.hash_slot_count} slots in use, {used} are")
        if self._is_disordered(file):
            text = "entries are not in the order of the log"
            self._report(file, "index entry", file.position_of(0), text)
            file.order = np.argsort(offsets.astype(np.int64), kind="stable")

    @staticmethod
    def _is_disordered(file: _File) -> bool:
        last = -1
        for _, block in file.blocks():
            offsets = block["phy_offset"].astype(np.int64)
            if offsets[0] < last or (np.diff(offsets) < 0).any():
                return True
            last = int(offsets[-1])
        return False

    def _check_chains(self, file: _File) -> int:
        """Each entry must be led to from the one that came after it in its slot, the newest from the slot
        itself; how many slots are in use."""
        slot_num = file.file.hash_slot_num
        slots = np.frombuffer(file.file.mapped_file.view, ">i4", slot_num, INDEX_HEADER_SIZE)
        newest = np.zeros(slot_num, np.int32)
        for start, block in file.blocks():
            key_hash = block["key_hash"].astype(np.int64)
            slot = key_hash % slot_num
            order = np.argsort(slot, kind="stable")
            by_slot = slot[order]
            first = np.concatenate(([True], by_slot[1:] != by_slot[:-1]))
            previous = np.empty(len(block), np.int32)
            previous[order[~first]] = start + 1 + order[np.flatnonzero(~first) - 1]
            previous[order[first]] = newest[by_slot[first]]
            wrong = np.flatnonzero(block["previous"] != previous)
            negative = np.flatnonzero(key_hash < 0)
            if len(negative):
                at = int(negative[0])
                text = f"entry {start + at + 1} has the hash {key_hash[at]}, hashes are never negative"
                self._report(file, "index entry", file.position_of(start + at), text, len(negative))
            if len(wrong):
                at = int(wrong[0])
                text = (
                    f"entry {start + at + 1} says {block['previous'][at]} is the entry before it in its slot, "
                    f"it is {previous[at]}: older messages of the slot are not found"
                )
                self._report(file, "index chain", file.position_of(start + at), text, len(wrong))
            last = np.concatenate((first[1:], [True]))
            newest[by_slot[last]] = start + 1 + order[last]
        differ = slots != newest
        if not self._settled:
            differ &= slots <= file.count  # an entry that a writer has added since
        wrong = np.flatnonzero(differ)
        if len(wrong):
            slot_number = int(wrong[0])
            text = f"slot {slot_number} says entry {slots[slot_number]} is its newest, it is {newest[slot_number]}"
            self._report(file, "index chain", INDEX_HEADER_SIZE + 4 * slot_number, text, len(wrong))
        return int(np.count_nonzero(newest))

    # ------------------------------------------------------------------ with the records

    def check(self, chunk: RecordChunk, columns: DispatchColumns, holes: Sequence[Hole]) -> None:
        """The keys of a chunk's records against the entries; `holes` are those before it."""
        if not self._files:
            return
        record = columns.key_record
        offsets = chunk.scan.physical_offset[record]
        keys = offsets - chunk.start << HASH_BITS | columns.key_hash
        timestamps = chunk.scan.store_timestamp[record]
        if len(offsets) and offsets[0] < self._first:
            before = int(np.searchsorted(offsets, self._first))
            self.keys_before += before
            keys, offsets, timestamps = keys[before:], offsets[before:], timestamps[before:]
        done = 0
        extra: Int64s = np.empty(0, np.int64)
        while True:
            taken = self._next_entries(chunk.end)
            if taken is None:
                break
            file, at, block = taken
            entry_offsets = block["phy_offset"].astype(np.int64)
            self.entries_checked += len(block)
            entry_keys = entry_offsets - chunk.start << HASH_BITS | block["key_hash"]
            same = keys[done : done + len(block)]
            if len(same) == len(block) and (same == entry_keys).all():
                self._check_times(file, at, block, timestamps[done : done + len(block)])
                done += len(block)
                continue
            earlier = entry_offsets < chunk.start
            self._check_wrong(file, at, entry_offsets, earlier & self._stray(entry_offsets, holes))
            self._check_wrong(file, at, entry_offsets, ~earlier & ~np.isin(entry_keys, keys))
            extra = np.concatenate((extra, entry_keys))
        if len(extra) or done < len(keys):
            missing = np.flatnonzero(~np.isin(keys[done:], extra)) + done
            # a record that is in the first entry may have had more keys in a file that is gone
            missing = missing[offsets[missing] > self._first]
            self._miss(offsets[missing])

    def _next_entries(self, end: int) -> tuple[_File, int, Entries] | None:
        """The next entries that point before `end`: file, place of the first, the entries."""
        number, at = self._at
        while number < len(self._files):
            file = self._files[number]
            block = file.block(at, min(file.count, at + ENTRIES_A_BLOCK))
            if not len(block):
                number, at = number + 1, 0
                continue
            count = int(np.searchsorted(block["phy_offset"].astype(np.int64), end))
            self._at = (number, at + count)
            file.evict(max(0, at - ENTRIES_A_BLOCK), at)
            return (file, at, block[:count]) if count else None
        self._at = (number, at)
        return None

    def _stray(self, offsets: Int64s, holes: Sequence[Hole]) -> Bools:
        """Which offsets lie neither before the log nor in a hole of it."""
        stray = offsets >= self._log_min
        for hole in holes:
            stray &= (offsets < hole.start) | (offsets >= hole.end)
        return stray

    def _check_wrong(self, file: _File, at: int, offsets: Int64s, wrong: Bools) -> None:
        found = np.flatnonzero(wrong)
        if len(found):
            entry = file.number(at + int(found[0]))
            text = f"entry {entry + 1} points to offset {offsets[found[0]]}, where no record has a key with its hash"
            self._report(file, "index entry", file.position_of(entry), text, len(found))

    def _check_times(self, file: _File, at: int, block: Entries, timestamps: Int64s) -> None:
        begin = file.header.begin_timestamp
        seconds = np.clip((timestamps - begin) // 1000, 0, I32_MAX) if begin > 0 else 0 * timestamps
        wrong = np.flatnonzero(block["time_diff"] != seconds)
        wrong = wrong[wrong + at > 0]  # the first entry counts from what the file began with
        if len(wrong):
            entry = file.number(at + int(wrong[0]))
            text = (
                f"entry {entry + 1} says {block['time_diff'][wrong[0]]} s after the file's first message, its "
                f"record was stored {seconds[wrong[0]]} s after it"
            )
            self._report(file, "index time", file.position_of(entry), text, len(wrong))

    def _miss(self, offsets: Int64s) -> None:
        if not len(offsets):
            return
        first = self._missing_range[0] if self._missing else int(offsets[0])
        self._missing += len(offsets)
        self._missing_range = first, int(offsets[-1])

    # ------------------------------------------------------------------ the rest

    def finish(self, holes: Sequence[Hole], log_end: int) -> None:
        """Entries that point past the log, keys that have no entry."""
        while (taken := self._next_entries(I64_MAX)) is not None:
            file, at, block = taken
            offsets = block["phy_offset"].astype(np.int64)
            self.entries_checked += len(block)
            stray = self._stray(offsets, holes)
            self._check_wrong(file, at, offsets, stray & (offsets < log_end))
            ahead = np.flatnonzero(stray & (offsets >= log_end))
            if len(ahead):
                entry = file.number(at + int(ahead[0]))
                text = f"entry {entry + 1} points to offset {offsets[ahead[0]]}, behind the end of the log ({log_end})"
                self._report(file, "index entry", file.position_of(entry), text, len(ahead))
        if self._missing:
            first, last = self._missing_range
            file = self._files[-1]
            newest = int(file.block(0, 1)["phy_offset"][0]) if file.count else self._last
            made_anew = not self._settled and first >= newest
            severity = Severity.NOTE if made_anew else Severity.DAMAGE
            text = f"{self._missing} keys of records from offset {first} to {last} have no entry" + (
                " yet: the store makes them while it runs, or when it starts again"
                if made_anew
                else "; `mqlake store rebuild` makes the index again"
            )
            position = file.position_of(file.count)
            finding = Finding(severity, "index missing", file.file.path, position, text)
            self._findings.add(finding, self._missing)


I64_MAX = (1 << 63) - 1
