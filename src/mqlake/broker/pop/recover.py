"""Offsets after a crash: what was popped since consumerOffset.json was written last.

    consumerOffset.json: T@G 0 → 100
    checkpoints in the log after it: 100 to 131, 132 to 163      ─▶ T@G 0 → 164

The file is written every few seconds. A broker that was killed has handed out messages that the file does not know of;
their checkpoints are in the log. Without this they would be handed out again at once, before their time is over.
RocketMQ's broker does that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from mqlake.broker.pop.checkpoint import CHECKPOINT_TAG, Checkpoint, body_of, decode_checkpoint
from mqlake.broker.pop.queues import POP_CLIENT
from mqlake.broker.pop.state import PopState
from mqlake.errors import FormatError
from mqlake.message import TIMER_TOPIC
from mqlake.store.filter import TagFilter
from mqlake.store.results import GetMessageStatus

logger = logging.getLogger(__name__)

OVERLAP_MS = 10_000
"""Checkpoints so much older than the file are looked at as well: it holds the offsets as they were some time before."""
PAGE = 1024
GROUP = "pop recovery"


def recover_offsets(state: PopState, overlap_ms: int = OVERLAP_MS) -> int:
    """Moves offsets past the messages whose checkpoints are in the log; the number of queues. Runs before the first
    pop."""
    broker = state.broker
    try:
        since = int(os.stat(broker.consumer_offset_manager.path).st_mtime * 1000) - overlap_ms
    except FileNotFoundError:
        since = 0
    reached: dict[tuple[str, str, int], int] = {}
    topic_config = broker.topic_config_manager.select_topic_config(state.revive_log.topic)
    count = topic_config.read_queue_nums if topic_config is not None else 0
    places = [(TIMER_TOPIC, 0), *((state.revive_log.topic, queue_id) for queue_id in range(count))]
    for topic, queue_id in places:
        for checkpoint in _checkpoints(state, topic, queue_id, since):
            key = checkpoint.key
            if checkpoint.count == 0 or checkpoint.re_put_times is not None:
                continue
            of = key.topic, key.group, key.queue_id
            reached[of] = max(reached.get(of, 0), key.start_offset + checkpoint.distances[-1] + 1)
    moved = 0
    for (topic, group, queue_id), offset in reached.items():
        committed = broker.consumer_offset_manager.query_offset(group, topic, queue_id)
        end = broker.store.max_offset_in_queue(topic, queue_id)
        if committed < offset <= end:
            broker.consumer_offset_manager.commit_offset(POP_CLIENT, group, topic, queue_id, offset)
            moved += 1
    if moved:
        logger.info("pop: %d queues go on after the checkpoints in the log", moved)
    return moved


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
