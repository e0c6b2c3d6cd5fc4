"""A partition against a model of plain lists, over random lives: appends, flushes, restarts, kills, power cuts.

kill         the directory as the page cache has it: all that was appended is there
power cut    what was not flushed may be missing from some byte on, or be zeros or rubbish from there on
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqlake.metaq.config.values import DeletePolicy
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.store.message_store import Location, MessageStore

SEGMENT_SIZE = 300


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.lives = 0
        self.records: list[tuple[int, bytes]] = []  # (offset, bytes), those that can be read or will be
        self.safe = 0  # offset up to which everything is on the disk
        self.message_id = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root)

    @initialize(threshold=st.sampled_from([0, 3]), first=st.sampled_from([0, 7]))
    def begin(self, threshold: int, first: int) -> None:
        self.threshold = threshold
        self.end = self.safe = self.first = first
        self.open(offset_if_create=first)

    def open(self, **options: int) -> None:
        self.store = MessageStore(
            f"{self.root}/{self.lives}",
            "t",
            0,
            max_segment_size=SEGMENT_SIZE,
            unflush_threshold=self.threshold,
            unflush_interval_ms=10**9,
            delete_policy=DeletePolicy("delete", 1000),
            **options,  # type: ignore[arg-type]
        )

    @rule(bodies=st.lists(st.binary(max_size=120), min_size=1, max_size=3))
    def append(self, bodies: list[bytes]) -> None:
        parts = []
        for body in bodies:
            self.message_id += 1
            parts.append(encode_record(body, self.message_id, 0))
        told: list[Location | None] = []
        location = self.store.append(
            b"".join(parts), lambda location, error: told.append(location), len(parts)
        )
        assert location == (self.end, sum(map(len, parts))) and told == [location]
        for part in parts:
            self.records.append((self.end, part))
            self.end += len(part)
        if self.threshold == 0:
            self.safe = self.end
        self.safe = max(self.safe, self.store.max_offset)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.safe = self.end

    @rule(fast=st.booleans())
    def restart(self, fast: bool) -> None:
        self.store.close()
        self.open(fast_boot=fast)
        self.safe = self.end

    @rule()
    def kill(self) -> None:
        self.next_life()
        self.open()
        self.safe = self.end

    @rule(seed=st.integers(0, 1 << 20))
    def power_cut(self, seed: int) -> None:
        chance = random.Random(seed)
        self.next_life()
        last = max(os.listdir(f"{self.root}/{self.lives}/t-0"))
        with open(f"{self.root}/{self.lives}/t-0/{last}", "r+b") as file:
            start = int(last.removesuffix(".meta"))
            kept = max(0, self.safe - start)
            lost = bytearray(file.read()[kept:])
            if lost and chance.random() < 0.7:
                at = chance.randrange(len(lost))
                size = len(lost) - at
                lost[at:] = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
            file.seek(kept)
            file.write(lost)
            file.truncate(kept + chance.randint(0, len(lost)))
        self.open()
        assert self.safe <= self.store.max_offset <= self.end
        kept_records = [
            (offset, raw) for offset, raw in self.records if offset + len(raw) <= self.store.max_offset
        ]
        for i, (offset, raw) in enumerate(kept_records):
            found = self.store.read(offset, len(raw))
            if offset >= self.safe:  # no checksum covers a record's id and flag
                assert (found[:8], found[20:]) == (raw[:8], raw[20:])
                kept_records[i] = offset, found
        self.records = kept_records
        self.end = self.safe = self.store.max_offset

    def next_life(self) -> None:
        self.lives += 1
        shutil.copytree(f"{self.root}/{self.lives - 1}", f"{self.root}/{self.lives}")
        old = self.store
        old.close()

    @rule(keep=st.integers(1, 3))
    def delete(self, keep: int) -> None:
        for segment in self.store.segments[:-keep]:
            os.utime(segment.message_set.path, (0, 0))
        self.store.run_delete_policy(10_000)
        self.records = [(offset, raw) for offset, raw in self.records if offset >= self.store.min_offset]

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        store = self.store
        assert store.append_offset == self.end
        assert self.safe <= store.max_offset <= self.end
        found, offset = b"", store.min_offset
        while (part := store.slice(offset, 1 << 20)) is not None:
            found += part.read(1 << 20)
            offset += part.size
        assert offset == store.max_offset
        assert found == b"".join(raw for offset, raw in self.records if offset < store.max_offset)
        sizes = [segment.message_set.size for segment in store.segments[:-1]]
        assert all(SEGMENT_SIZE <= size < SEGMENT_SIZE + 420 for size in sizes)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
