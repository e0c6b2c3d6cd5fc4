"""ConsumerManageProcessor: the members of a group, its offsets, and locks of queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from mqlake.broker.broker import Broker
from mqlake.broker.services.after_dispatch import when_dispatched
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.client import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqlake.remoting.processors import answers

logger = logging.getLogger(__name__)

LOCK_BODY_MAX = 1024 * 1024
"""About 10,000 queues, which take some 50 ms."""


class ConsumerManageProcessor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def get_consumer_list_by_group(self, header: GetConsumerListByGroupRequestHeader) -> RemotingCommand:
        info = self._broker.consumer_manager.get_consumer_group_info(header.consumer_group)
        if info is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {header.consumer_group}: none has sent this broker a heartbeat",
            )
        body = GetConsumerListByGroupResponseBody(consumer_id_list=info.all_client_ids())
        return RemotingCommand.create_response(body=body.to_json())

    # --- offsets

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_consumer_offset(
        self, connection: Connection, header: UpdateConsumerOffsetRequestHeader
    ) -> RemotingCommand:
        """15 UPDATE_CONSUMER_OFFSET. While an operator's reset waits for the group's next pull, commits are from
        before the reset and ignored."""
        broker = self._broker
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if not broker.subscription_group_manager.contains_subscription_group(group):
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {group} not exist! Send a heartbeat or pull first, or create the group",
            )
        topic_config = broker.topic_config_manager.select_topic_config(topic)
        if topic_config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist! Create it first")
        manager = broker.consumer_offset_manager
        queue_nums = max(topic_config.read_queue_nums, topic_config.write_queue_nums)
        # a topic may have had more queues: offsets known for them may still be updated
        known = manager.query_offsets(group, topic) or ()
        if queue_id < 0 or (queue_id >= queue_nums and queue_id not in known):
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not one of the {queue_nums} queues of topic {topic}",
            )
        if header.commit_offset < 0:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"commitOffset {header.commit_offset} is negative, topic is {topic}",
            )
        if manager.has_offset_reset(topic, group, queue_id):
            logger.info(
                "%s@%s, queue %d was reset: %d is ignored", topic, group, queue_id, header.commit_offset
            )
            return RemotingCommand.create_response(remark="Offset has been previously reset")
        manager.commit_offset(connection.remote_address, group, topic, queue_id, header.commit_offset)
        return RemotingCommand.create_response()

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, header: QueryConsumerOffsetRequestHeader) -> Answer | Awaitable[Answer]:
        """14 QUERY_CONSUMER_OFFSET. A group without an offset begins at 0 if the queue's first message is still there
        and in memory: then it misses no message. Else the client decides."""
        topic, queue_id = header.topic, header.queue_id
        offsets = self._broker.consumer_offset_manager
        offset = offsets.query_offset(header.consumer_group, topic, queue_id)
        if offset >= 0:
            return _offset_response(offset)
        if header.set_zero_if_not_found is False:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
            )
        store = self._broker.store

        def first() -> RemotingCommand:
            begins = max(store.min_offset_in_queue(topic, queue_id), 0)
            if begins or not store.check_in_mem_by_consume_offset(topic, queue_id, 0):
                raise ResponseError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            return _offset_response(0)

        if store.dispatch_behind_bytes:
            # else its first message may look as if it were not there, and the client would begin after it
            return asyncio.ensure_future(when_dispatched(store, first))
        return first()

    # --- locks

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock_batch_mq(self, request: RemotingCommand) -> RemotingCommand:
        """41 LOCK_BATCH_MQ: answers the queues that the client holds now."""
        body = _lock_batch(request)
        locked = self._broker.rebalance_lock_manager.try_lock_batch(
            body.consumer_group, body.mq_set, body.client_id
        )
        return RemotingCommand.create_response(body=LockBatchResponseBody(lock_ok_mq_set=locked).to_json())

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock_batch_mq(self, request: RemotingCommand) -> RemotingCommand:
        body = _lock_batch(request)
        self._broker.rebalance_lock_manager.unlock_batch(body.consumer_group, body.mq_set, body.client_id)
        return RemotingCommand.create_response()


def _offset_response(offset: int) -> RemotingCommand:
    return RemotingCommand.create_response(header=QueryConsumerOffsetResponseHeader(offset=offset))


def _lock_batch(request: RemotingCommand) -> LockBatchRequestBody:
    """Raises ResponseError INVALID_PARAMETER for a request with too many queues to lock in one turn."""
    body = request.body_bytes()
    if len(body) > LOCK_BODY_MAX:
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER,
            f"the request has {len(body)} bytes, {LOCK_BODY_MAX} are allowed: lock the queues in several requests",
        )
    return LockBatchRequestBody.from_json(body)
