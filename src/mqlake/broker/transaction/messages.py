"""The messages of a transaction, made of each other.

    sent ──▶ half ──▶ put back (checked once more) ──▶ final: what consumers get
                                                   └─▶ discarded: nobody would say what to do
    op: "12,13,17,", tagged d: half messages that have ended, by queue offset

Properties are kept through all of it (RocketMQ renders them before it clears any), so a final message still says
REAL_TOPIC, REAL_QID and TRAN_MSG.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mqlake.errors import FormatError
from mqlake.message import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_WAIT_STORE_MSG_OK,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Host,
    MessageExt,
    MessageExtBrokerInner,
    MessageSysFlag,
)

REMOVE_TAG = "d"
OFFSET_SEPARATOR = ","

_TRANSACTION_BITS = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE


def _with_transaction(sys_flag: int, value: int) -> int:
    return sys_flag & ~_TRANSACTION_BITS | value


def to_half(message: MessageExtBrokerInner) -> None:
    """Sends a message to the half topic; where it belongs is in its properties then. Its flag says nothing of a
    transaction, so that the half queue has it as any other message."""
    properties = message.properties
    if message.uniq_key:
        properties[PROPERTY_TRANSACTION_ID] = message.uniq_key
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.sys_flag = _with_transaction(message.sys_flag, MessageSysFlag.TRANSACTION_NOT_TYPE)
    message.topic = TRANS_HALF_TOPIC
    message.queue_id = 0


def real_place(half: MessageExt) -> tuple[str, int]:
    """(topic, queue id) where a half message belongs. FormatError."""
    topic = half.properties.get(PROPERTY_REAL_TOPIC)
    queue_id = half.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not _is_number(queue_id, digits=9):
        raise FormatError(0, f"REAL_TOPIC {topic!r} and REAL_QID {queue_id!r} do not say where it belongs")
    return topic, int(queue_id)


def prepared_queue_offset(half: MessageExt) -> int:
    """The half message's first place in the half queue: its own, or that of which it is a copy."""
    text = half.properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
    return int(text) if text and _is_number(text) else half.queue_offset


def check_times(half: MessageExt) -> int:
    """In how many rounds it was open, whether there was a producer to ask or not."""
    text = half.properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
    return int(text) if _is_number(text) else 0


def check_immunity_ms(half: MessageExt) -> int | None:
    """How long after its birth the producer wants not to be asked, None when it does not say."""
    text = half.properties.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS)
    return int(text) * 1000 if text and _is_number(text) else None


def put_back(half: MessageExt, *, asked: bool) -> MessageExtBrokerInner:
    """The half message for the end of the half queue, so that the queue can be dealt with in its order. `asked`:
    its producer is asked now, which counts."""
    copy = _stored_anew(half, half.topic, half.queue_id)
    copy.properties[PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET] = str(prepared_queue_offset(half))
    if asked:
        copy.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(check_times(half) + 1)
    return copy


def final(half: MessageExt) -> MessageExtBrokerInner:
    """The message for consumers when the transaction is committed. FormatError when the half message does not say where
    it belongs."""
    message = _stored_anew(half, *real_place(half))
    message.sys_flag = _with_transaction(message.sys_flag, MessageSysFlag.TRANSACTION_COMMIT_TYPE)
    message.prepared_transaction_offset = half.physical_offset
    return message


def discarded(half: MessageExt) -> MessageExtBrokerInner:
    """The half message that nobody would decide on, for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _stored_anew(half, TRANS_CHECK_MAX_TIME_TOPIC, 0)


def _stored_anew(half: MessageExt, topic: str, queue_id: int) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(
        topic,
        half.body,
        flag=half.flag,
        properties=dict(half.properties),
        queue_id=queue_id,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
    )


def op_message(body: bytes, queue_id: int, host: Host, now_ms: int) -> MessageExtBrokerInner:
    """The message that says which half messages of a queue have ended."""
    return MessageExtBrokerInner(
        TRANS_OP_HALF_TOPIC,
        body,
        properties={PROPERTY_WAIT_STORE_MSG_OK: "true", PROPERTY_TAGS: REMOVE_TAG},
        queue_id=queue_id,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
    )


def op_bodies(offsets: Iterable[int], size_max: int) -> Iterator[tuple[list[int], bytes]]:
    """Bodies of op messages for half queue offsets, and which are in each: a body is full at `size_max` bytes, with
    the offset that made it so."""
    batch: list[int] = []
    text = ""
    for offset in offsets:
        batch.append(offset)
        text += f"{offset}{OFFSET_SEPARATOR}"
        if len(text) >= size_max:
            yield batch, text.encode()
            batch, text = [], ""
    if batch:
        yield batch, text.encode()


def ended_in(op: MessageExt) -> list[int]:
    """The half queue offsets that an op message says have ended. What is no offset is left out."""
    if op.tags != REMOVE_TAG:
        return []
    return [
        int(text) for text in op.body.decode("utf-8", "replace").split(OFFSET_SEPARATOR) if _is_number(text)
    ]


def _is_number(text: str, digits: int = 19) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits
