"""The store against a model of plain lists, over random lives: puts of every kind, reads, clean restarts, kills, power
cuts. After each step what can be asked of the store is what the model says.

    kill         another store opens a copy of the directory taken while this one runs: the page cache is all there
    power cut    ... a copy in which what was not synced is there, or not, or in part (tests/crash/power.py)
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqlake.errors import FormatError
from mqlake.formats.batch import encode_messages
from mqlake.formats.record import decode_record
from mqlake.message import (
    SCHEDULE_TOPIC,
    Message,
    MessageExt,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
    delay_level_to_queue_id,
)
from mqlake.store.log.filler import are_fillers
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.recovery import RecoveryReport
from mqlake.store.results import BoundaryType, GetMessageStatus, PutMessageStatus
from tests.crash.power import Disk, copy_as_killed
from tests.waiting import PATIENCE_S

HOSTS = [("127.0.0.1", 10911), ("2001:db8::7", 4567)]
FILE_SIZE = 4096
SMALL = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 7,
    "maxHashSlotNum": 5,
    "maxIndexNum": 20,
    "maxMessageSize": 1024,
    "flushIntervalCommitLog": 5,
    "commitIntervalCommitLog": 5,
    "flushIntervalConsumeQueue": 5,
    "flushConsumeQueueThoroughInterval": 10,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
}
MODES: dict[str, dict[str, object]] = {
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "async": {},
    "sync with the pool": {
        "flushDiskType": "SYNC_FLUSH",
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 2,
    },
    "sync without mmap": {"flushDiskType": "SYNC_FLUSH", "writeWithoutMmap": True},
    "async with property CRC": {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True},
}
PREPARED = MessageSysFlag.TRANSACTION_PREPARED_TYPE
ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE

topics = st.sampled_from(["A", "B", "a-topic-with-a-longer-name"])
queue_ids = st.integers(0, 2)
bodies = st.binary(max_size=700)
keys = st.lists(
    st.sampled_from(["k1", "k2", "clé", "AaAa", "BBBB"]), max_size=2, unique=True
)  # two of one hash
tags = st.sampled_from([None, "t1", "t2"])


@dataclasses.dataclass
class Stored:
    """What the model knows of a message."""

    topic: str
    queue_id: int
    body: bytes
    keys: list[str]
    tags: str | None
    sys_flag: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int

    @property
    def in_queue(self) -> bool:
        return self.sys_flag & 0xC not in (PREPARED, ROLLBACK)

    @property
    def in_index(self) -> bool:
        return self.sys_flag & 0xC != ROLLBACK

    def assert_is(self, message: MessageExt) -> None:
        for name in (
            "topic",
            "queue_id",
            "body",
            "tags",
            "queue_offset",
            "physical_offset",
            "store_timestamp",
        ):
            assert getattr(message, name) == getattr(self, name), name
        assert (message.keys or "").split() == self.keys
        assert message.sys_flag == self.sys_flag


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="mqlake-model-"))
        self.lives = itertools.count()
        self.store: DefaultMessageStore | None = None
        self.messages: list[Stored] = []
        # the first so many were acknowledged under SYNC_FLUSH, or flushed
        self.safe = 0

    @initialize(mode=st.sampled_from(sorted(MODES)), seed=st.integers(0, 1 << 30))
    def begin(self, mode: str, seed: int) -> None:
        self.settings = {**SMALL, **MODES[mode]}
        self.sync = mode.startswith("sync")
        self.dice = random.Random(seed)
        self.root = self.directory / "store"
        self.open(self.root)

    def open(self, root: Path) -> RecoveryReport:
        reports: list[RecoveryReport] = []
        self.root = root
        self.disk = Disk(root).__enter__()
        self.store = open_store(root, self.settings, on_recovered=reports.append)
        return reports[0]

    def close(self) -> None:
        assert self.store is not None
        self.store.shutdown()
        self.store = None
        self.disk.__exit__()

    def teardown(self) -> None:
        if self.store is not None:
            self.close()
        shutil.rmtree(self.directory)

    # ------------------------------------------------------------------ puts

    def put(self, msg: MessageExtBrokerInner, *, wait: bool = True) -> None:
        msg.wait_store_msg_ok = wait
        result = self.store.put_message(msg)
        if len(msg.body) > 1024:
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            return
        assert result.status is PutMessageStatus.PUT_OK, result
        appended = result.append_result
        self.messages.append(
            Stored(
                msg.topic,
                msg.queue_id,
                msg.body,
                (msg.keys or "").split(),
                msg.tags,
                msg.sys_flag,
                appended.logics_offset,
                appended.wrote_offset,
                appended.store_timestamp,
            )
        )
        self.count_offset(self.messages[-1])
        if self.sync and wait:
            self.safe = len(self.messages)

    def count_offset(self, stored: Stored) -> None:
        before = [m.queue_offset for m in self.messages[:-1] if m.in_queue and self.same_queue(m, stored)]
        assert stored.queue_offset == (max(before, default=-1) + 1 if stored.in_queue else 0)

    @staticmethod
    def same_queue(one: Stored, other: Stored) -> bool:
        return (one.topic, one.queue_id) == (other.topic, other.queue_id)

    @rule(
        topic=topics,
        queue_id=queue_ids,
        body=bodies,
        keys=keys,
        tags=tags,
        host=st.sampled_from(HOSTS),
        wait=st.booleans(),
    )
    def put_one(self, topic, queue_id, body, keys, tags, host, wait) -> None:  # type: ignore[no-untyped-def]
        msg = MessageExtBrokerInner(topic, body, tags=tags, keys=keys or None)
        msg.queue_id, msg.born_host, msg.store_host = queue_id, host, HOSTS[0]
        self.put(msg, wait=wait)

    @rule(topic=topics, body=bodies, keys=keys, flag=st.sampled_from([PREPARED, ROLLBACK, 8]))
    def put_transactional(self, topic: str, body: bytes, keys: list[str], flag: int) -> None:
        msg = MessageExtBrokerInner(topic, body, keys=keys or None)
        msg.sys_flag = flag
        self.put(msg)

    @rule(topic=topics, body=bodies, level=st.integers(1, 18))
    def put_delayed(self, topic: str, body: bytes, level: int) -> None:
        msg = MessageExtBrokerInner(topic, body)
        msg.delay_time_level = level
        self.put(msg)
        assert (self.messages[-1].topic, self.messages[-1].queue_id) == (
            SCHEDULE_TOPIC,
            delay_level_to_queue_id(level),
        )

    @rule(topic=topics)
    def put_too_large(self, topic: str) -> None:
        self.put(MessageExtBrokerInner(topic, bytes(1025)))

    @rule(
        topic=topics,
        queue_id=queue_ids,
        items=st.lists(st.tuples(st.binary(max_size=120), keys), min_size=1, max_size=6),
    )
    def put_batch(self, topic: str, queue_id: int, items: list[tuple[bytes, list[str]]]) -> None:
        blob = encode_messages([Message(topic, body, keys=keys or None) for body, keys in items])
        batch = MessageExtBatch(topic, blob)
        batch.queue_id = queue_id
        result = self.store.put_messages(batch)
        assert result.status is PutMessageStatus.PUT_OK, result
        appended = result.append_result
        offsets = [int(offset) for offset in appended.record_offsets]
        for number, ((body, keys), offset) in enumerate(zip(items, offsets, strict=True)):
            queue_offset = appended.logics_offset + number
            self.messages.append(
                Stored(topic, queue_id, body, keys, None, 0, queue_offset, offset, appended.store_timestamp)
            )
            self.count_offset(self.messages[-1])
        if self.sync:
            self.safe = len(self.messages)

    @rule(bodies=st.lists(bodies, min_size=1, max_size=5))
    def put_without_waiting(self, bodies: list[bytes]) -> None:
        """Puts that are all on their way when the first is answered."""
        messages = [MessageExtBrokerInner("A", body) for body in bodies]
        futures = [self.store.async_put_message(msg) for msg in messages]
        for msg, future in zip(messages, futures, strict=True):
            appended = future.result().append_result
            offset, time = appended.wrote_offset, appended.store_timestamp
            self.messages.append(Stored("A", 0, msg.body, [], None, 0, appended.logics_offset, offset, time))
            self.count_offset(self.messages[-1])
        if self.sync:
            self.safe = len(self.messages)

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.commit_log_files.max_wrote_position
        self.safe = len(self.messages)

    # ------------------------------------------------------------------ restarts

    @rule()
    def restart(self) -> None:
        self.close()
        assert not (self.root / "abort").exists()
        report = self.open(self.root)
        assert report.clean_exit
        assert report.torn_bytes == 0
        self.safe = len(self.messages)

    @precondition(lambda self: self.store is not None)
    @rule()
    def kill(self) -> None:
        following = self.directory / str(next(self.lives))
        stored = len(self.messages)
        if "transientStorePoolEnable" in self.settings:
            stored = self.safe  # what waited in a write buffer went with the process
        copy_as_killed(self.root, following)
        before = self.messages
        self.move_to(following)
        assert self.messages == before[: len(self.messages)], "a process that dies leaves no holes"

        assert len(self.messages) >= stored

    @rule()
    def power_cut(self) -> None:
        """Every message that is whole on the disk is kept, also those after holes."""
        following = self.directory / str(next(self.lives))
        self.disk.cut(following, self.dice)
        whole = [message for message in self.messages if self.is_whole(following, message)]
        assert whole[: self.safe] == self.messages[: self.safe]
        self.move_to(following)
        kept = {message.physical_offset for message in self.messages}
        assert kept.issuperset(message.physical_offset for message in whole)

    @staticmethod
    def is_whole(root: Path, message: Stored) -> bool:
        """By its bytes in the file, without the store."""
        offset = message.physical_offset
        path = root / "commitlog" / f"{offset - offset % FILE_SIZE:020d}"
        try:
            message.assert_is(decode_record(path.read_bytes(), offset % FILE_SIZE))
        except (FileNotFoundError, FormatError, AssertionError):
            return False
        return True

    def move_to(self, following: Path) -> None:
        self.close()
        shutil.rmtree(self.root)
        report = self.open(following)
        assert not report.clean_exit
        holes = [(start, start + size) for start, size, _ in report.fences]
        self.messages = [
            message
            for message in self.messages
            if message.physical_offset < report.end_offset
            and not any(start <= message.physical_offset < end for start, end in holes)
        ]
        if self.messages:
            last = self.store.look_message_by_offset(self.messages[-1].physical_offset)
            assert last.physical_offset + last.store_size == report.end_offset
        self.safe = len(self.messages)

    # ------------------------------------------------------------------ reads

    def settled(self) -> DefaultMessageStore:
        self.flush()
        assert self.store.wait_until_dispatched(PATIENCE_S)
        return self.store

    def queue(self, topic: str, queue_id: int) -> list[Stored]:
        return [m for m in self.messages if m.in_queue and (m.topic, m.queue_id) == (topic, queue_id)]

    @invariant()
    def the_last_message_is_there(self) -> None:
        if self.store is not None and self.messages and self.safe == len(self.messages):
            last = self.messages[-1]
            last.assert_is(self.store.look_message_by_offset(last.physical_offset))

    @rule(topic=topics, queue_id=queue_ids, at=st.floats(0, 1), count=st.integers(1, 40))
    def get(self, topic: str, queue_id: int, at: float, count: int) -> None:
        store, queue = self.settled(), self.queue(topic, queue_id)
        end = queue[-1].queue_offset + 1 if queue else 0
        assert store.max_offset_in_queue(topic, queue_id) == end
        offset = round(at * (end + 2))
        expected = [message for message in queue if message.queue_offset >= offset]
        result = store.get_message("group", topic, queue_id, offset, count)
        if expected and offset >= queue[0].queue_offset:
            found = list(result.messages())
            assert len(found) <= count
            assert found or result.status is GetMessageStatus.MESSAGE_WAS_REMOVING, result.status
            assert result.next_begin_offset > (found[-1].queue_offset if found else offset)
            assert (
                len(expected) == len(found) or result.next_begin_offset <= expected[len(found)].queue_offset
            )
            for message, stored in zip(found, expected, strict=False):
                stored.assert_is(message)
        else:
            assert result.buffers == []

    @rule(
        topic=topics,
        key=st.sampled_from(["k1", "k2", "clé", "AaAa", "BBBB", "nobody's"]),
        count=st.integers(1, 40),
    )
    def query(self, topic: str, key: str, count: int) -> None:
        store = self.settled()
        expected = [m for m in self.messages if m.in_index and m.topic == topic and key in m.keys][-count:]
        found = list(store.query_message(topic, key, count).messages())
        assert [message.physical_offset for message in found] == [
            stored.physical_offset for stored in expected
        ]
        for message, stored in zip(found, expected, strict=True):
            stored.assert_is(message)

    @precondition(lambda self: self.messages)
    @rule(at=st.floats(0, 1), boundary=st.sampled_from(list(BoundaryType)))
    def offset_by_time(self, at: float, boundary: BoundaryType) -> None:
        store = self.settled()
        chosen = self.messages[min(int(at * len(self.messages)), len(self.messages) - 1)]
        expected = self.queue(chosen.topic, chosen.queue_id)
        if not chosen.in_queue:
            return
        same = [m.queue_offset for m in expected if m.store_timestamp == chosen.store_timestamp]
        found = store.get_offset_in_queue_by_time(
            chosen.topic, chosen.queue_id, chosen.store_timestamp, boundary
        )
        assert found == (same[0] if boundary is BoundaryType.LOWER else same[-1])

    @rule()
    def read_everything(self) -> None:
        store = self.settled()
        for message in self.messages:
            message.assert_is(store.look_message_by_offset(message.physical_offset))
        with ReadOnlyStore(self.root, {"maxHashSlotNum": 5, "maxIndexNum": 20}) as view:
            assert view.max_phy_offset == store.max_phy_offset
            offsets = [
                int(offset)
                for chunk in view.scan()
                for offset in chunk.scan.physical_offset[~are_fillers(chunk.scan)]
            ]
            assert offsets == [message.physical_offset for message in self.messages]


StoreMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("MQLAKE_CAMPAIGN", "25")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStore = StoreMachine.TestCase
