"""What crash tests write, and how they tell whether all of it is there: a message says who wrote it and which it is.

    body = "writer:number:" and filler made of both      keys "writer-number"      queue and kind by the number

So a log alone shows whether it is a clean prefix of what its writers put: each writer's numbers are 0, 1, 2, ...
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from mqlake.formats.batch import encode_messages
from mqlake.formats.record import decode_record
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner, MessageSysFlag
from mqlake.store.log.filler import FILLER_TOPIC, SHORT_FILLER_TOPIC
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.recovery import RecoveryReport
from mqlake.store.store_view import StoreView
from tests.waiting import PATIENCE_S

HOST = ("127.0.0.1", 10911)
FILLER_TOPICS = {FILLER_TOPIC.decode(), SHORT_FILLER_TOPIC.decode()}
QUEUES = 3
BATCH = 4

# Every kind of file rolls within a few dozen messages; background work is done all the time.
SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 8192,
    "mappedFileSizeConsumeQueue": 20 * 20,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
    "maxMessageSize": 4096,
    "flushIntervalCommitLog": 10,
    "commitIntervalCommitLog": 10,
    "flushIntervalConsumeQueue": 10,
    "flushConsumeQueueThoroughInterval": 30,
    # a busy disk may take its time; what is asked here is whether its answers are kept
    "syncFlushTimeout": 60_000,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
}


def body_of(writer: int, number: int) -> bytes:
    head = f"{writer}:{number}:".encode()
    digest = hashlib.sha256(head).digest()
    return head + digest * (1 + digest[0] % 12)


def identity_of(body: bytes) -> tuple[int, int]:
    """(writer, number) of a body; AssertionError when it is not, byte for byte, what that writer wrote."""
    writer, number = (int(part) for part in body.split(b":", 2)[:2])
    assert body == body_of(writer, number), "a body is not what was put"
    return writer, number


def topic_of(writer: int) -> str:
    return f"T{writer}"


def is_prepared(number: int) -> bool:
    """A transaction's first half: in the log and in the index, in no queue."""
    return number % 13 == 7


@dataclasses.dataclass(frozen=True)
class Put:
    """One call: messages `first` … `first + count - 1` of a writer."""

    writer: int
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def message(self, *, wait: bool = True) -> MessageExtBrokerInner:
        if self.count > 1:
            return self._batch(wait)
        msg = MessageExtBrokerInner(topic_of(self.writer), body_of(self.writer, self.first))
        msg.tags, msg.keys = f"tag{self.first % 5}", f"{self.writer}-{self.first}"
        if not in_a_queue(self.first):
            msg.sys_flag = MessageSysFlag.TRANSACTION_PREPARED_TYPE
        return self._addressed(msg, wait)

    def _batch(self, wait: bool) -> MessageExtBatch:
        items = []
        for number in range(self.first, self.end):
            item = Message(topic_of(self.writer), body_of(self.writer, number))
            item.keys = f"{self.writer}-{number}"
            items.append(item)
        batch = MessageExtBatch(topic_of(self.writer), encode_messages(items))
        self._addressed(batch, wait)
        return batch

    def _addressed(self, msg: MessageExtBrokerInner, wait: bool) -> MessageExtBrokerInner:
        msg.queue_id = queue_of(self.first)
        msg.born_host = msg.store_host = HOST
        msg.wait_store_msg_ok = wait
        return msg


def queue_of(number: int) -> int:
    """A batch goes where its first message goes."""
    return (number - number % BATCH if is_in_batch(number) else number) % QUEUES


def is_in_batch(number: int) -> bool:
    return number // BATCH % 5 == 3


def puts(writer: int, start: int) -> Iterator[Put]:
    """What a writer does from message `start` on, for ever; a batch that was begun is not gone on with."""
    number = start
    while True:
        in_batch = is_in_batch(number)
        count = BATCH - number % BATCH if in_batch else 1
        yield Put(writer, number, count)
        number += count


def in_a_queue(number: int) -> bool:
    return is_in_batch(number) or not is_prepared(number)


def read_log(store: StoreView) -> tuple[dict[int, int], list[tuple[int, int, int, int, int]]]:
    """Walks the log record by record. Returns messages per writer and (physical offset, writer, number, queue id,
    queue offset) of each. AssertionError when it is no clean prefix; a fenced hole may lack messages."""
    numbers: dict[int, int] = {}
    holes: dict[int, int] = {}
    fillers = 0
    records = []
    offset = store.min_phy_offset
    file_size = store.config.mapped_file_size_commit_log
    while offset < store.max_phy_offset:
        head = store.commit_log_files.select(offset, 8)
        if head is not None and bytes(head[4:]) == b"\xcb\xd4\x31\x94":
            offset += file_size - offset % file_size
            continue
        record = store.select_one_message_by_offset(offset)
        assert record is not None, f"no record at {offset}, the log ends at {store.max_phy_offset}"
        message = decode_record(record)
        assert message.physical_offset == offset
        offset += message.store_size
        if message.topic in FILLER_TOPICS:
            fillers += 1
            continue
        writer, number = identity_of(message.body)
        assert message.topic == topic_of(writer)
        assert message.keys == f"{writer}-{number}"
        expected = numbers.get(writer, 0)
        in_hole = number > expected and fillers > holes.get(writer, 0)
        assert number == expected or in_hole, f"writer {writer}: {number} where {expected} was expected"
        numbers[writer], holes[writer] = number + 1, fillers
        records.append((message.physical_offset, writer, number, message.queue_id, message.queue_offset))
    return numbers, records


def _counted(records: list[tuple[int, int, int, int, int]]) -> Iterator[int]:
    """For each record, its number if no message of its writer were missing before."""
    counts: dict[int, int] = {}
    for _, writer, *_ in records:
        yield counts.setdefault(writer, 0)
        counts[writer] += 1


def check_store(store: StoreView, *, keys_checked: int = 60) -> dict[int, int]:
    """Log, queues and index against each other; returns the messages of each writer."""
    numbers, records = read_log(store)
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    may_jump = any(record[2] != count for record, count in zip(records, _counted(records), strict=True))
    for offset, writer, number, queue_id, queue_offset in records:
        if in_a_queue(number):
            queue = queues.setdefault((topic_of(writer), queue_id), [])
            following = queue[-1][2] + 1 if queue else 0
            jumps = may_jump and queue_offset > following
            assert queue_offset == following or jumps, f"queue {queue_id} jumps to {queue_offset} at {offset}"
            queue.append((offset, number, queue_offset))
    for queue in store.consume_queues:
        assert (queue.topic, queue.queue_id) in queues or queue.max_offset_in_queue == 0
    for (topic, queue_id), expected in queues.items():
        found, at = [], expected[0][2]
        end = expected[-1][2] + 1
        assert store.min_offset_in_queue(topic, queue_id) == at
        while at < end:
            result = store.get_message("g", topic, queue_id, at, 32)
            in_hole = may_jump and result.next_begin_offset > at
            assert result.buffers or in_hole, f"{topic}-{queue_id}: {result.status} at {at} of {end}"
            found += [(m.physical_offset, identity_of(m.body)[1], m.queue_offset) for m in result.messages()]
            at = result.next_begin_offset
        assert found == expected
        assert store.max_offset_in_queue(topic, queue_id) == end
    step = max(1, len(records) // keys_checked)
    for offset, writer, number, _, _ in records[::-step]:
        found = [
            m.physical_offset
            for m in store.query_message(topic_of(writer), f"{writer}-{number}", 8).messages()
        ]
        assert found == [offset], f"key {writer}-{number} is found at {found}, not at {offset}"
    return numbers


def reopen_and_check(
    root: Path, settings: Mapping[str, object]
) -> tuple[DefaultMessageStore, dict[int, int], RecoveryReport]:
    """Opens (so recovers) the store and checks all of it; the caller shuts it down."""
    reports: list[RecoveryReport] = []
    store = open_store(root, settings, on_recovered=reports.append)
    try:
        assert store.wait_until_dispatched(PATIENCE_S)
        return store, check_store(store), reports[0]
    except BaseException:
        store.shutdown()
        raise
