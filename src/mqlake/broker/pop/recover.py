"""Offsets after a crash: what was popped since consumerOffset.json was written last.

    consumerOffset.json: T@G 0 → 100
    checkpoints in the log after it: 100 to 131, 132 to 163      ─▶ T@G 0 → 164

The file is written every few seconds. A broker that was killed has handed out messages that the file does not know of;
their checkpoints are in the log, those that are popped in order are in consumerOrderInfo.json and its journal. Without
this they would be handed out again at once, before their time is over, or although they are acknowledged. RocketMQ's
broker does that.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator

from mqlake.broker.pop.checkpoint import CHECKPOINT_TAG, Checkpoint, body_of, decode_checkpoint
from mqlake.broker.pop.queues import POP_CLIENT
from mqlake.broker.pop.state import PopState
from mqlake.errors import FormatError
from mqlake.formats.record import decode_record
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX, REVIVE_GROUP, TIMER_TOPIC, MessageExt
from mqlake.store.filter import TagFilter
from mqlake.store.results import GetMessageStatus

logger = logging.getLogger(__name__)

OVERLAP_MS = 10_000
"""Checkpoints so much older than the file are looked at as well: it holds the offsets as they were some time before."""
PAGE = 1024
REVIVED_MAX = 100_000
"""Messages of one retry queue that are looked at, the newest ones."""
GROUP = "pop recovery"


def recover_offsets(state: PopState, overlap_ms: int = OVERLAP_MS) -> int:
    """Moves offsets past the messages whose checkpoints are in the log; the number of queues. Runs before the first
    pop."""
    broker = state.broker
    since = _written_at(state) - overlap_ms
    reached: dict[tuple[str, str, int], int] = {}
    revive_topic = state.revive_log.topic
    queue_ids = broker.store.consume_queues.queues(revive_topic)
    places = [(TIMER_TOPIC, 0), *((revive_topic, queue_id) for queue_id in queue_ids)]
    for topic, queue_id in places:
        for checkpoint in _checkpoints(state, topic, queue_id, since):
            key = checkpoint.key
            if checkpoint.count == 0 or checkpoint.re_put_times is not None:
                continue
            of = key.topic, key.group, key.queue_id
            reached[of] = max(reached.get(of, 0), key.start_offset + checkpoint.distances[-1] + 1)
    for of, info in state.order_info_manager.used_since(since):
        reached[of] = max(reached.get(of, 0), info.next_offset())
    moved = 0
    for (topic, group, queue_id), offset in reached.items():
        committed = broker.consumer_offset_manager.query_offset(group, topic, queue_id)
        end = broker.store.max_offset_in_queue(topic, queue_id)
        if committed < offset <= end:
            broker.consumer_offset_manager.commit_offset(POP_CLIENT, group, topic, queue_id, offset)
            moved += 1
    if moved:
        logger.info("pop: %d queues go on after what was popped last", moved)
    return moved


class RevivedBefore:
    """Messages that are in a retry topic already: revived before a crash, by checkpoints whose revive offset was not
    written. `until`: revive queue → where it ended at the start; later checkpoints are not concerned."""

    def __init__(self) -> None:
        self._counts: Counter[_Retry] = Counter()
        self.until: dict[int, int] = {}

    def add(self, message: MessageExt) -> None:
        """A record of a retry topic."""
        if message.uniq_key is not None:
            self._counts[_retry_of(message)] += 1

    def take(self, checkpoint: Checkpoint, message: MessageExt) -> bool:
        """True if `message`, as it would be stored now, is there already."""
        if not self._counts or message.uniq_key is None:
            return False
        if checkpoint.revive_offset >= max(self.until.values(), default=0):
            return False
        retry = _retry_of(message)
        if not self._counts[retry]:
            return False
        self._counts[retry] -= 1
        return True

    def __len__(self) -> int:
        return self._counts.total()


_Retry = tuple[str, str, int, int, int]


def _retry_of(message: MessageExt) -> _Retry:
    return (
        message.topic,
        message.uniq_key or "",
        message.reconsume_times,
        message.born_timestamp,
        message.body_crc,
    )


def recover_revived(state: PopState, revived: RevivedBefore) -> None:
    """Notes what was put into retry topics for checkpoints that are read again. Runs before the first revive.

    A checkpoint whose time is not over holds the revive offset, however many after it are done.
    """
    store = state.broker.store
    since = _first_open(state)
    if since is None:
        return
    for topic in store.consume_queues.topics():  # topics.json may not have what was made just before a crash
        if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            continue
        for queue_id in store.consume_queues.queues(topic):
            offset = store.get_offset_in_queue_by_time(topic, queue_id, since)
            end = store.max_offset_in_queue(topic, queue_id)
            offset = max(offset, end - REVIVED_MAX)
            while offset < end:
                result = store.get_message(GROUP, topic, queue_id, offset, PAGE)
                if result.next_begin_offset <= offset:
                    break
                offset = result.next_begin_offset
                for record in result.records():
                    with contextlib.suppress(FormatError):
                        revived.add(decode_record(record, check_crc=False))


def _first_open(state: PopState) -> int | None:
    """When the first checkpoint that is not known as done was stored in the revive topic, in ms; None if all are."""
    broker, topic = state.broker, state.revive_log.topic
    found = []
    for queue_id in broker.store.consume_queues.queues(topic):
        committed = broker.consumer_offset_manager.query_offset(REVIVE_GROUP, topic, queue_id)
        offset = max(committed + 1, broker.store.min_offset_in_queue(topic, queue_id), 0)
        if offset < broker.store.max_offset_in_queue(topic, queue_id):
            found.append(broker.store.message_store_timestamp(topic, queue_id, offset))
    return min(found, default=None)


def _written_at(state: PopState) -> int:
    """When consumerOffset.json was written last, in ms."""
    try:
        return int(os.stat(state.broker.consumer_offset_manager.path).st_mtime * 1000)
    except FileNotFoundError:
        return 0


def _checkpoints(state: PopState, topic: str, queue_id: int, since: int) -> Iterator[Checkpoint]:
    """The checkpoints of a queue that were stored since a time."""
    store = state.broker.store
    offset = store.get_offset_in_queue_by_time(topic, queue_id, since)
    only_checkpoints = TagFilter(CHECKPOINT_TAG)
    while offset < store.max_offset_in_queue(topic, queue_id):
        result = store.get_message(GROUP, topic, queue_id, offset, PAGE, only_checkpoints)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
        if result.status is not GetMessageStatus.FOUND:
            continue
        for record in result.records():
            try:
                yield decode_checkpoint(body_of(record), state.broker.config.broker_name)
            except FormatError:
                continue  # another message with this tag, or what revive reports
