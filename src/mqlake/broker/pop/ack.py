"""AckMessageProcessor: 200051 ACK_MESSAGE, 200151 BATCH_ACK_MESSAGE, 200053 CHANGE_MESSAGE_INVISIBLETIME.

    ACK ── in order? ─yes─▶ order info: the queue's offset moves
              └no─▶ acknowledgement in the log, which meets the checkpoint when its time is over

    CHANGE ──▶ a new checkpoint for the one message, then an acknowledgement of the old one

A request is answered when its record is in the log (under SYNC_FLUSH: on the disk), and with an error if it is not:
RocketMQ's broker answers SUCCESS then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from mqlake.broker.pop.checkpoint import Acknowledgement, Checkpoint, CheckpointKey
from mqlake.broker.pop.order import IGNORED, NOT_POPPED
from mqlake.broker.pop.state import PopState
from mqlake.broker.services.error_responses import DEFAULT_REMARK, with_default_header
from mqlake.errors import FormatError, MessageError, ResponseError
from mqlake.message import ORDER_REVIVE_QUEUE_ID, ReceiptHandle, retry_flag
from mqlake.remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from mqlake.remoting.processors import answers
from mqlake.store.results import STORED, PutMessageFuture

BATCH_MAX = 10_000
"""Checkpoints in one BATCH_ACK_MESSAGE."""


class AckMessageProcessor:
    def __init__(self, state: PopState) -> None:
        self._state = state
        self._broker = state.broker

    # --- one message

    @answers(RequestCode.ACK_MESSAGE)
    def ack_message(self, header: AckMessageRequestHeader) -> Answer | Awaitable[Answer]:
        topic, group, queue_id, offset = header.topic, header.consumer_group, header.queue_id, header.offset
        self._refuse_on_slave()
        low, high = self.range_of(topic, queue_id)
        if not low <= offset <= high:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{group}, queue {queue_id}, offset:{offset}, the queue has {low} "
                f"to {high}",
            )
        handle = self._handle(header.extra_info, topic, queue_id)
        if handle.is_order:
            self._ack_in_order(topic, group, queue_id, offset, handle.pop_time)
            return RemotingCommand.create_response()
        key = self._key(handle, topic, group)
        future = self.acknowledge(key, [offset], handle.revive_queue_id, handle.visible_at)
        if not future.done():
            return self._answer_later([future])
        _check(future)
        return RemotingCommand.create_response()

    def acknowledge(
        self, key: CheckpointKey, offsets: Sequence[int], revive_queue_id: int, revive_time: int
    ) -> PutMessageFuture:
        """Acknowledges messages of one checkpoint."""
        state = self._state
        future = state.revive_log.put_acknowledgement(
            Acknowledgement(key, list(offsets)), revive_queue_id, revive_time
        )
        if key.pop_time >= state.started_at:
            state.queues.done(key.topic, key.group, key.queue_id, len(offsets))
        return future

    async def _answer_later(self, futures: Sequence[PutMessageFuture]) -> Answer:
        for future in futures:
            await future
            _check(future)
        return RemotingCommand.create_response()

    # --- many messages

    @answers(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack_message(self, request: RemotingCommand) -> Answer | Awaitable[Answer]:
        """200151 BATCH_ACK_MESSAGE. What does not belong to a queue here is ignored."""
        body = BatchAckMessageRequestBody.from_json(request.body_bytes()) if request.body else None
        if body is None or not body.acks:
            raise ResponseError(ResponseCode.NO_MESSAGE, "batch ack message has no acknowledgements")
        if len(body.acks) > BATCH_MAX:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.acks)} checkpoints; at most {BATCH_MAX} are allowed",
            )
        self._refuse_on_slave()
        try:
            offsets = [ack.offsets for ack in body.acks]
        except FormatError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, error.reason) from None
        futures = [
            future
            for ack, of in zip(body.acks, offsets, strict=True)
            if (future := self._ack_batch(ack, of)) is not None
        ]
        waiting = []
        for future in futures:
            if future.done():
                _check(future)
            else:
                waiting.append(future)
        return self._answer_later(waiting) if waiting else RemotingCommand.create_response()

    def _ack_batch(self, ack: BatchAck, offsets: Sequence[int]) -> PutMessageFuture | None:
        topic, queue_id = ack.real_topic, ack.queue_id
        try:
            low, high = self.range_of(topic, queue_id)
        except ResponseError:
            return None
        known = [offset for offset in offsets if low <= offset <= high]
        if not known:
            return None
        if ack.revive_queue_id == ORDER_REVIVE_QUEUE_ID:
            for offset in known:
                self._ack_in_order(topic, ack.consumer_group, queue_id, offset, ack.pop_time)
            return None
        self.check_revive_queue(ack.revive_queue_id)
        key = CheckpointKey(
            topic,
            ack.consumer_group,
            queue_id,
            ack.start_offset,
            ack.pop_time,
            self._broker.config.broker_name,
        )
        return self.acknowledge(key, known, ack.revive_queue_id, ack.pop_time + ack.invisible_time)

    # --- in order

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> None:
        state = self._state
        offsets = self._broker.consumer_offset_manager
        if offset < offsets.query_offset(group, topic, queue_id):
            return
        following = state.order_info_manager.commit_and_next(topic, group, queue_id, offset, pop_time)
        if following == NOT_POPPED:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}, queue {queue_id}, offset:{offset} was not popped at "
                f"{pop_time}",
            )
        if following == IGNORED:
            return
        queue = state.queues.get(topic, group, queue_id)
        queue.in_flight = max(queue.in_flight - 1, 0)
        if not offsets.has_offset_reset(topic, group, queue_id):
            state.queues.commit(queue, following)
        if not state.order_info_manager.blocked_until(topic, group, queue_id, None):
            state.wake(topic, group)

    # --- another time

    @answers(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        with_default_header(
            lambda: ChangeInvisibleTimeResponseHeader(pop_time=0, invisible_time=0, revive_qid=0)
        ),
    )
    def change_invisible_time(self, header: ChangeInvisibleTimeRequestHeader) -> Answer | Awaitable[Answer]:
        """200053 CHANGE_MESSAGE_INVISIBLETIME."""
        state, broker = self._state, self._broker
        topic, group, queue_id, offset = header.topic, header.consumer_group, header.queue_id, header.offset
        self._refuse_on_slave()
        state.check_invisible_time(header.invisible_time)
        low, high = self.range_of(topic, queue_id)
        if not low <= offset < high:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{group}, queue {queue_id}, offset:{offset}, the queue has {low} "
                f"to {high}",
            )
        handle = self._handle(header.extra_info, topic, queue_id)
        now = broker.clock_ms()
        if handle.is_order:
            return self._change_in_order(header, handle, now)
        # in the millisecond of the pop itself the new checkpoint would be the old one
        now = max(now, handle.pop_time + 1)
        changed = ChangeInvisibleTimeResponseHeader(
            pop_time=now, invisible_time=header.invisible_time, revive_qid=handle.revive_queue_id
        )
        old = self._key(handle, topic, group)
        key = CheckpointKey(topic, group, queue_id, offset, now, broker.config.broker_name)
        checkpoint = Checkpoint(key, header.invisible_time, [0], suspend=header.suspend)
        put = state.revive_log.put_checkpoint(checkpoint, handle.revive_queue_id)
        if put.done():
            _check(put)
        state.queues.get(topic, group, queue_id).in_flight += 1
        ack = self.acknowledge(old, [offset], handle.revive_queue_id, handle.visible_at)
        response = RemotingCommand.create_response(remark=DEFAULT_REMARK, header=changed)
        if put.done() and ack.done():
            return response
        return self._changed_later(put, ack, response)

    @staticmethod
    async def _changed_later(
        put: PutMessageFuture, ack: PutMessageFuture, response: RemotingCommand
    ) -> Answer:
        await put
        _check(put)
        await ack
        return response

    def _change_in_order(
        self, header: ChangeInvisibleTimeRequestHeader, handle: ReceiptHandle, now: int
    ) -> RemotingCommand:
        state = self._state
        topic, group, queue_id, offset = header.topic, header.consumer_group, header.queue_id, header.offset
        visible_at = now + header.invisible_time
        if offset >= self._broker.consumer_offset_manager.query_offset(group, topic, queue_id):
            changed = state.order_info_manager.update_next_visible_time(
                topic, group, queue_id, offset, handle.pop_time, visible_at
            )
            if changed:
                state.wake_at(topic, group, visible_at)
        return RemotingCommand.create_response(
            remark=DEFAULT_REMARK,
            header=ChangeInvisibleTimeResponseHeader(
                pop_time=handle.pop_time,
                invisible_time=visible_at - handle.pop_time,
                revive_qid=ORDER_REVIVE_QUEUE_ID,
            ),
        )

    # --- what requests have in common

    def _refuse_on_slave(self) -> None:
        if self._broker.is_slave:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave",
            )

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) offset of a queue. ResponseError if there is no such queue."""
        config = self._broker.topic_config_manager.existing_topic(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        store = self._broker.store
        return max(store.min_offset_in_queue(topic, queue_id), 0), store.max_offset_in_queue(topic, queue_id)

    def _handle(self, text: str, topic: str, queue_id: int) -> ReceiptHandle:
        """ResponseError if the text is no handle of this queue."""
        try:
            handle = ReceiptHandle.parse(text)
        except MessageError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if handle.queue_id != queue_id or handle.flag != retry_flag(topic):
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the receipt handle {text[:200]!r} does not belong to queue {queue_id} of {topic}",
            )
        if not handle.is_order:
            self.check_revive_queue(handle.revive_queue_id)
        return handle

    def check_revive_queue(self, revive_queue_id: int) -> None:
        """ResponseError if there is no such queue."""
        revive_topic = self._state.revive_log.topic
        config = self._broker.topic_config_manager.select_topic_config(revive_topic)
        count = config.read_queue_nums if config is not None else self._broker.config.revive_queue_num
        if not 0 <= revive_queue_id < count:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the receipt handle names revive queue {revive_queue_id}; {revive_topic} has {count} queues",
            )

    def _key(self, handle: ReceiptHandle, topic: str, group: str) -> CheckpointKey:
        return CheckpointKey(
            topic, group, handle.queue_id, handle.start_offset, handle.pop_time, handle.broker_name
        )


def _check(future: PutMessageFuture) -> None:
    """ResponseError if the record is not in the log."""
    result = future.result()
    if result.status not in STORED:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"{result.status.name}: {result.reason or 'the acknowledgement could not be stored'}; try again",
        )
