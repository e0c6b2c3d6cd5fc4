"""PopAPIWrapper: pops, acknowledgements and changes of invisible time of one group, and what a popped message needs.

    broker ─▶ records, startOffsetInfo, msgOffsetInfo ─▶ messages with receipt handles

A receipt handle names the checkpoint of its message. All messages of an inner batch, which is one record, share one:
it is acknowledged with the last of them.
"""

from __future__ import annotations

import logging
from collections import Counter

from mqlake.base.clock import now_ms
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.namespace import with_namespace, without_namespace
from mqlake.client.records import MessageClientExt, decode_messages
from mqlake.errors import MessageError, MqlakeError
from mqlake.message import (
    PROPERTY_POP_CK,
    RETRY_GROUP_TOPIC_PREFIX,
    ReceiptHandle,
    normal_topic,
    parse_msg_offset_info,
    parse_start_offset_info,
    real_topic,
    retry_flag,
)
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)

logger = logging.getLogger(__name__)

TIMEOUT_BEYOND_POLL_S = 15.0
"""Grace period: a broker answers at most this much after the time for which it may hold a pop."""
POP_MAX = 32
"""Messages of one pop, the broker's limit."""
FROM_FIRST, FROM_LAST = 0, 1
_Offsets = dict[tuple[int, int], list[int]]


class PopAPIWrapper:
    def __init__(self, client: MQClientInstance, group: str, max_body_size: int) -> None:
        self._client = client
        self._group = group
        self._max_body_size = max_body_size
        self._batches: Counter[str] = Counter()
        """Receipt handle → messages of an inner batch that are not acknowledged."""

    def address(self, broker_name: str) -> str:
        """BrokerNotFoundError."""
        return self._client.find_broker_address_in_subscribe(broker_name)

    # --- requests

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        max_num: int,
        invisible_s: float,
        poll_s: float,
        init_mode: int,
        order: bool = False,
        attempt_id: str | None = None,
    ) -> list[MessageClientExt]:
        """Up to `max_num` messages of a queue (id -1: of any of the broker's). Raises RemotingError,
        BrokerNotFoundError."""
        header = PopMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=min(max_num, POP_MAX),
            invisible_time=round(invisible_s * 1000),
            poll_time=round(poll_s * 1000),
            born_time=now_ms(),
            init_mode=init_mode,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=order,
            attempt_id=attempt_id,
            bname=queue.broker_name,
        )
        answer = await self._client.api.pop_message(
            self.address(queue.broker_name), header, poll_s + TIMEOUT_BEYOND_POLL_S
        )
        if answer is None:
            return []
        return await self._matching(subscription, self._messages(queue, answer))

    async def notified(self, queue: MessageQueue, poll_s: float) -> bool:
        """Waits until there is something to pop; False if there is nothing in time."""
        header = NotificationRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=round(poll_s * 1000),
            born_time=now_ms(),
            bname=queue.broker_name,
        )
        address = self.address(queue.broker_name)
        return await self._client.api.notification(address, header, poll_s + TIMEOUT_BEYOND_POLL_S)

    async def ack(self, message: MessageClientExt) -> None:
        """Raises RemotingError, BrokerNotFoundError, MessageError for a message that was not popped."""
        text = message.receipt_handle
        if text in self._batches:
            self._batches[text] -= 1
            if self._batches[text]:
                return
            del self._batches[text]
        handle = ReceiptHandle.parse(text)
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=self._stored_in(message, handle),
            queue_id=handle.queue_id,
            extra_info=text,
            offset=handle.queue_offset,
            bname=handle.broker_name,
        )
        await self._client.api.ack_message(self.address(message.broker_name), header)

    async def ack_range(self, broker_name: str, topic: str, handle_text: str, offsets: range) -> None:
        """Messages of one checkpoint, which `handle_text` names without an offset, in one request. `topic`: where they
        are stored. Raises as ack()."""
        handle = ReceiptHandle.parse(handle_text)
        body = BatchAckMessageRequestBody(
            broker_name=broker_name,
            acks=[
                BatchAck(
                    consumer_group=self._group,
                    topic=normal_topic(topic, self._group),
                    retry=str(handle.flag),
                    start_offset=handle.start_offset,
                    queue_id=handle.queue_id,
                    revive_queue_id=handle.revive_queue_id,
                    pop_time=handle.pop_time,
                    invisible_time=handle.invisible_time,
                    bit_set=encode_bit_set(handle.start_offset, offsets),
                )
            ],
        )
        await self._client.api.batch_ack_message(self.address(broker_name), body)

    async def change_invisible_time(self, message: MessageClientExt, invisible_s: float) -> None:
        """From now on. The message gets a new receipt handle. Raises as ack()."""
        handle = ReceiptHandle.parse(message.receipt_handle)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=self._stored_in(message, handle),
            queue_id=handle.queue_id,
            extra_info=message.receipt_handle,
            offset=handle.queue_offset,
            invisible_time=round(invisible_s * 1000),
            bname=handle.broker_name,
        )
        address = self.address(message.broker_name)
        changed = await self._client.api.change_invisible_time(address, header)
        old = message.receipt_handle
        message.receipt_handle = handle._replace(
            start_offset=handle.start_offset if handle.is_order else handle.queue_offset,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        ).text
        if old in self._batches:
            self._batches[message.receipt_handle] = self._batches.pop(old)

    def _stored_in(self, message: MessageClientExt, handle: ReceiptHandle) -> str:
        """The topic that holds a message: its own, or the group's retry topic of it."""
        topic = with_namespace(self._client.config.namespace, message.topic)
        return real_topic(topic, self._group, handle.flag)

    # --- messages

    def _messages(self, queue: MessageQueue, answer: RemotingCommand) -> list[MessageClientExt]:
        header = answer.decode_header(PopMessageResponseHeader)
        starts = parse_start_offset_info(header.start_offset_info)
        offsets = parse_msg_offset_info(header.msg_offset_info)
        messages = decode_messages(
            answer.body_bytes(), queue.broker_name, max_body_size=self._max_body_size, queue=queue
        )
        popped = []
        for message in messages:
            handle = self._handle(message, queue, header, starts, offsets)
            if handle is None:
                logger.error(
                    "group %s: %s has no receipt handle; it comes again", self._group, message.msg_id
                )
                continue
            message.receipt_handle = handle.text
            topic = normal_topic(message.topic, self._group)
            namespace = self._client.config.namespace
            message.show_topic(without_namespace(namespace, topic) if namespace else topic)
            popped.append(message)
        for text, count in Counter(message.receipt_handle for message in popped).items():
            if count > 1:
                self._batches[text] = count
        return popped

    def _handle(
        self,
        message: MessageClientExt,
        queue: MessageQueue,
        header: PopMessageResponseHeader,
        starts: dict[tuple[int, int], int],
        offsets: _Offsets,
    ) -> ReceiptHandle | None:
        brought = message.properties.get(PROPERTY_POP_CK)
        if brought is not None and not message.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            try:  # of a retry topic: the broker has put it in
                handle = ReceiptHandle.parse(brought)
            except MessageError:
                return None
            return handle
        flag = retry_flag(message.topic) if message.topic != queue.topic else 0
        key = flag, message.queue_id
        # an inner batch has the offset of its first message
        offset = max((one for one in offsets.get(key, ()) if one <= message.queue_offset), default=-1)
        if offset < 0 or key not in starts:
            return None
        return ReceiptHandle(
            starts[key],
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            flag,
            queue.broker_name,
            message.queue_id,
            offset,
        )

    async def _matching(
        self, subscription: SubscriptionData, messages: list[MessageClientExt]
    ) -> list[MessageClientExt]:
        """Without those whose tags only have the hash of a subscribed one, which are done."""
        tags = subscription.tags_set
        if not tags:
            return messages
        matching = []
        for message in messages:
            if message.tags in tags:
                matching.append(message)
                continue
            try:
                await self.ack(message)
            except MqlakeError as error:
                logger.info("group %s: a message of another tag comes again: %s", self._group, error)
        return matching
