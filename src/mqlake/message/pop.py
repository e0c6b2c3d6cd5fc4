"""Texts that pop consumers and brokers exchange: topics of retries, receipt handles, offsets of an answer.

    receipt handle   0 1795310521607 20000 1 0 broker-a 0 3        the property POP_CK, extraInfo in requests
    startOffsetInfo  0 0 100;1 0 7          flag, queue, first offset of the checkpoint
    msgOffsetInfo    0 0 100,103;1 0 7      flag, queue, offsets in the order of the records
    orderCountInfo   0 qo0%100 2;0 0 0      flag, queue and offset, or queue: how often it was given out before

flag: 0 the topic itself, 1 its retry topic %RETRY%G_T, 2 its retry topic %RETRY%G+T.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mqlake.errors import MessageError
from mqlake.message.topics import RETRY_GROUP_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX

REVIVE_TOPIC_PREFIX = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
ORDER_REVIVE_QUEUE_ID = 999
"""In place of a revive queue: the message was popped in order and has no checkpoint."""

NORMAL_TOPIC = 0
RETRY_TOPIC_V1 = 1
RETRY_TOPIC_V2 = 2


def revive_topic(cluster: str) -> str:
    """The topic of a cluster's checkpoints and acknowledgements."""
    return REVIVE_TOPIC_PREFIX + cluster


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Returns the topic of messages that the group did not acknowledge in time."""
    return f"{RETRY_GROUP_TOPIC_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def retry_flag(topic: str) -> int:
    """0 for a topic itself, 1 or 2 for a pop retry topic."""
    if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return NORMAL_TOPIC
    return RETRY_TOPIC_V2 if "+" in topic else RETRY_TOPIC_V1


def real_topic(topic: str, group: str, flag: int) -> str:
    """The topic that holds a message with this flag."""
    return topic if flag == NORMAL_TOPIC else pop_retry_topic(topic, group, v2=flag == RETRY_TOPIC_V2)


def normal_topic(topic: str, group: str) -> str:
    """The topic whose retry topic for `group` this is; the topic itself if it is no retry topic."""
    for separator in "_+":
        prefix = f"{RETRY_GROUP_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


class ReceiptHandle(NamedTuple):
    """Identifies a message that was popped, and its checkpoint. Times in ms.

    `start_offset`: the first offset of its checkpoint. `queue_id`, `queue_offset`: its place in the topic that `flag`
    tells. `revive_queue_id`: the queue of its checkpoint, ORDER_REVIVE_QUEUE_ID without one. `queue_offset` is -1 in
    handles of old versions, `physical_offset` in those without it.
    """

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    flag: int
    broker_name: str
    queue_id: int
    queue_offset: int = -1
    physical_offset: int = -1

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Raises MessageError if it is no receipt handle."""
        fields = text.split(" ")
        if 7 <= len(fields) <= 9 and fields[5]:
            try:
                numbers = [_number(field) for field in (*fields[:5], *fields[6:])]
            except ValueError:
                pass
            else:
                start, pop_time, invisible, revive_queue_id, flag, queue_id, *rest = numbers
                if flag in (NORMAL_TOPIC, RETRY_TOPIC_V1, RETRY_TOPIC_V2):
                    return cls(start, pop_time, invisible, revive_queue_id, flag, fields[5], queue_id, *rest)
        raise MessageError(
            f"{text[:200]!r} is not a receipt handle: 7 to 9 fields with a space between are needed, "
            "startOffset popTime invisibleTime reviveQueueId flag brokerName queueId [queueOffset "
            "[commitLogOffset]]"
        )

    @property
    def text(self) -> str:
        fields = self if self.physical_offset >= 0 else self[:8] if self.queue_offset >= 0 else self[:7]
        return " ".join(map(str, fields))

    @property
    def is_order(self) -> bool:
        return self.revive_queue_id == ORDER_REVIVE_QUEUE_ID

    @property
    def visible_at(self) -> int:
        """When the message can be given out again unless it has been acknowledged."""
        return self.pop_time + self.invisible_time


_LONG_DIGITS = 20


def _number(text: str) -> int:
    if len(text) > _LONG_DIGITS or "_" in text:  # int() takes more than Java does
        raise ValueError(text)
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number


# --- offsets of an answer


def start_offset_info(items: Iterable[tuple[int, int, int]]) -> str:
    """startOffsetInfo of (flag, queue id, first offset)."""
    return ";".join([f"{flag} {queue_id} {offset}" for flag, queue_id, offset in items])


def msg_offset_info(items: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """msgOffsetInfo of (flag, queue id, offsets)."""
    return ";".join([f"{flag} {queue_id} {','.join(map(str, offsets))}" for flag, queue_id, offsets in items])


def order_count_info(flag: int, queue_id: int, counts: dict[int, int], offsets: Sequence[int]) -> str:
    """orderCountInfo of a queue: of each offset that was given out before (`counts`), and the least of all."""
    items = [f"{flag} qo{queue_id}%{offset} {counts[offset]}" for offset in offsets if counts.get(offset)]
    items.append(f"{flag} {queue_id} {min((counts.get(offset, 0) for offset in offsets), default=0)}")
    return ";".join(items)


def parse_start_offset_info(text: str | None) -> dict[tuple[int, int], int]:
    """(flag, queue id) → first offset. MessageError."""
    found = {}
    for flag, queue, value in _items(text):
        key = _int(flag, text), _int(queue, text)
        if key in found:
            raise MessageError(f"{_short(text)}: queue {key[1]} with flag {key[0]} is there twice")
        found[key] = _int(value, text)
    return found


def parse_msg_offset_info(text: str | None) -> dict[tuple[int, int], list[int]]:
    """(flag, queue id) → offsets. MessageError."""
    return {
        (_int(flag, text), _int(queue, text)): [_int(offset, text) for offset in value.split(",")]
        for flag, queue, value in _items(text)
    }


def parse_order_count_info(text: str | None) -> dict[tuple[int, int, int | None], int]:
    """(flag, queue id, offset) → how often that message was given out before; offset None: the least of the queue.
    MessageError."""
    found = {}
    for flag, queue, value in _items(text):
        queue_id, _, offset = queue.removeprefix("qo").partition("%")
        key = _int(flag, text), _int(queue_id, text), _int(offset, text) if offset else None
        found[key] = _int(value, text)
    return found


def _items(text: str | None) -> list[tuple[str, str, str]]:
    items = []
    for item in (text or "").split(";"):
        fields = item.split(" ")
        if len(fields) == 3:
            items.append((fields[0], fields[1], fields[2]))
        elif item:
            raise MessageError(f"{_short(text)}: {item[:80]!r} has to be three fields with spaces between")
    return items


def _int(field: str, text: str | None) -> int:
    try:
        return _number(field)
    except ValueError:
        raise MessageError(f"{_short(text)}: {field[:80]!r} is not a number") from None


def _short(text: str | None) -> str:
    return f"the offsets {(text or '')[:200]!r}"
