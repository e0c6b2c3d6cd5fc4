"""Results of a send and a pull: SendResult and PullResult, with RocketMQ's status names.

Producers return the one, pull consumers the other; both are made of a broker's answer (`client.api`). A send that was
stored with a remark (FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE) is a result, one that was refused an error.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mqlake.client.records import MAX_BODY_SIZE, MessageClientExt, decode_messages
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.static_topic import is_mock_broker


class SendStatus(enum.Enum):
    """Each but SEND_OK means: stored, but not as safe as the broker is configured to make it in time."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class SendResult:
    send_status: SendStatus
    msg_id: str
    """The id its producer gave the message (UNIQ_KEY); of a batch all, with commas between."""
    offset_msg_id: str
    """The message's place: store host and physical offset; of a batch all, with commas between."""
    message_queue: MessageQueue
    queue_offset: int
    """The message's queue offset; of a batch the first one's."""
    transaction_id: str | None = None
    region_id: str | None = None
    recall_handle: str | None = None
    """The handle by which Producer.recall_message() cancels a timer message."""


class PullStatus(enum.Enum):
    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW_MSG = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MSG = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
    """The queue does not have the offset; `next_begin_offset` is one it has."""


@dataclass(frozen=True, slots=True)
class PullResult:
    pull_status: PullStatus
    message_queue: MessageQueue
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    offset_delta: int
    """Added to the queue offsets of records (static topics)."""
    records: bytes
    """Commit log records one after another, as the broker stores them."""

    def messages(self, *, read_body: bool = True) -> list[MessageClientExt]:
        """The records decoded, bodies unpacked. UndecodableMessageError for the first that cannot be."""
        found = self.decode(read_body=read_body)
        for message in found:
            if message.undecodable:
                raise message.undecodable_error()
        return found

    def decode(self, *, read_body: bool = True, max_body_size: int = MAX_BODY_SIZE) -> list[MessageClientExt]:
        """As messages(), but for those that cannot be decoded, which are there with their bodies as they are stored
        and say so in `undecodable`. A body may unpack to `max_body_size` bytes."""
        found = decode_messages(
            self.records,
            self.message_queue.broker_name,
            read_body=read_body,
            max_body_size=max_body_size,
            queue=self.message_queue,
            following=self.next_begin_offset - self.offset_delta,
        )
        if self.offset_delta:
            for message in found:
                message.queue_offset += self.offset_delta
        if is_mock_broker(self.message_queue.broker_name):
            for message in found:  # each has the number of its physical queue
                message.queue_id = self.message_queue.queue_id
        return found
