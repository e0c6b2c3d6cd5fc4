"""Operators' requests on offsets: the ends of queues, and resets of groups.

The broker remembers a reset (useServerSideResetOffset): the group's next pull is answered PULL_OFFSET_MOVED with the
new offset, whether its consumers are connected now or later. A held pull is answered at once; RocketMQ holds it to its
end. Without that setting the connected consumers are notified, and those that are not connected cannot be reset.
"""

from __future__ import annotations

import logging

from mqlake.base import json_config
from mqlake.base.settings import LONG_MAX
from mqlake.broker.broker import Broker
from mqlake.broker.services.after_dispatch import after_dispatch
from mqlake.broker.services.archived import with_archive
from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.broker.services.pull_request_hold import PullRequestHoldService
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.broker.state.topic_config import NO_BATCH
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.admin import QueryCorrectionOffsetBody
from mqlake.remoting.bodies.client import ResetOffsetBody
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import LanguageCode, RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from mqlake.remoting.headers.consume import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from mqlake.remoting.processors import answers
from mqlake.store.config import BrokerRole
from mqlake.store.results import BoundaryType

logger = logging.getLogger(__name__)

END_OF_QUEUE = -1


class OffsetAdmin:
    def __init__(
        self,
        broker: Broker,
        broker_to_client: Broker2Client,
        pull_request_hold_service: PullRequestHoldService,
        schedule_message_service: ScheduleMessageService,
    ) -> None:
        self._broker = broker
        self._broker_to_client = broker_to_client
        self._pull_request_hold_service = pull_request_hold_service
        self._schedule_message_service = schedule_message_service

    # --- queues

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, with_archive, after_dispatch)
    def search_offset_by_timestamp(self, header: SearchOffsetRequestHeader) -> RemotingCommand:
        try:
            boundary = BoundaryType[(header.boundary_type or "LOWER").upper()]
        except KeyError:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"boundaryType is {str(header.boundary_type)[:80]!r}: it can be lower or upper",
            ) from None
        offset = self._broker.store.get_offset_in_queue_by_time(
            header.topic, header.queue_id, header.timestamp, boundary
        )
        return RemotingCommand.create_response(header=SearchOffsetResponseHeader(offset=offset))

    @answers(RequestCode.GET_MAX_OFFSET, after_dispatch)
    def get_max_offset(self, header: GetMaxOffsetRequestHeader) -> RemotingCommand:
        offset = self._broker.store.max_offset_in_queue(header.topic, header.queue_id)
        return RemotingCommand.create_response(header=GetMaxOffsetResponseHeader(offset=offset))

    @answers(RequestCode.GET_MIN_OFFSET)
    def get_min_offset(self, header: GetMinOffsetRequestHeader) -> RemotingCommand:
        store = self._broker.store
        # a queue without messages begins at 0: clients go there
        offset = max(store.min_offset_in_queue(header.topic, header.queue_id), 0)
        is_batch = self._broker.topic_config_manager.is_batch_topic(header.topic)
        if is_batch and store.max_offset_in_queue(header.topic, header.queue_id) == 0:
            offset = NO_BATCH
        return RemotingCommand.create_response(remark="", header=GetMinOffsetResponseHeader(offset=offset))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def get_earliest_msg_storetime(self, header: GetEarliestMsgStoretimeRequestHeader) -> RemotingCommand:
        timestamp = self._broker.store.earliest_message_time(header.topic, header.queue_id)
        return RemotingCommand.create_response(
            header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp)
        )

    # --- groups

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, with_archive, after_dispatch)
    async def reset_offset(
        self, connection: Connection, request: RemotingCommand, header: ResetOffsetRequestHeader
    ) -> RemotingCommand:
        """222 INVOKE_BROKER_TO_RESET_OFFSET: answered when the new offsets are on disk."""
        logger.info("%s: reset-offset %s", connection.remote_address, header.encode())
        broker = self._broker
        if broker.config.use_server_side_reset_offset:
            offsets = self._reset_offset(header)
            await broker.consumer_offset_manager.persist_in_background()
            for queue in offsets:
                self._pull_request_hold_service.release(queue.topic, queue.queue_id, header.group)
            return RemotingCommand.create_response(body=ResetOffsetBody(offset_table=offsets).to_json())
        return self._broker_to_client.reset_offset(
            header.topic,
            header.group,
            header.timestamp,
            header.is_force,
            request.language is LanguageCode.CPP,
        )

    def _reset_offset(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        broker = self._broker
        topic, group = header.topic, header.group
        if broker.store_config.broker_role is BrokerRole.SLAVE:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        config = broker.topic_config_manager.select_topic_config(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if not broker.subscription_group_manager.contains_subscription_group(group):
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        if header.queue_id >= 0:
            where = {header.queue_id: self._target(header)}
        else:
            queues = range(config.read_queue_nums)
            where = {queue_id: self._at_time(topic, queue_id, header.timestamp) for queue_id in queues}
        if not where:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"No queues to reset: {topic} has readQueueNums=0")
        broker_name = broker.config.broker_name
        offsets = {}
        for queue_id, offset in where.items():
            broker.consumer_offset_manager.assign_reset_offset(topic, group, queue_id, offset)
            offsets[MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)] = offset
        return offsets

    def _target(self, header: ResetOffsetRequestHeader) -> int:
        """The new offset of one queue. ResponseError if the queue does not have it."""
        if header.offset is None or header.offset == END_OF_QUEUE:
            return self._at_time(header.topic, header.queue_id, header.timestamp)
        store = self._broker.store
        low = store.min_offset_in_queue(header.topic, header.queue_id)
        high = store.max_offset_in_queue(header.topic, header.queue_id)
        if header.offset < max(low, 0) or header.offset > high + 1:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
            )
        return header.offset

    def _at_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._broker.store
        if timestamp < 0:
            return store.max_offset_in_queue(topic, queue_id)
        return store.get_offset_in_queue_by_time(topic, queue_id, timestamp)

    @answers(RequestCode.CLONE_GROUP_OFFSET)
    def clone_group_offset(self, header: CloneGroupOffsetRequestHeader) -> RemotingCommand:
        """314 CLONE_GROUP_OFFSET: of one topic, or of all that the group has consumed."""
        broker = self._broker
        offsets = broker.consumer_offset_manager
        topics = {header.topic} if header.topic else offsets.which_topic_by_consumer(header.src_group)
        for topic in topics:
            if broker.topic_config_manager.select_topic_config(topic) is None:
                logger.warning("clone-offset: topic %s does not exist", topic)
                continue
            if not header.offline and broker.consumer_manager.is_left_out(header.src_group, topic):
                logger.warning("clone-offset: %s does not subscribe to %s", header.src_group, topic)
                continue
            offsets.clone_offset(header.src_group, header.dest_group, topic)
        return RemotingCommand.create_response()

    @answers(RequestCode.QUERY_CORRECTION_OFFSET)
    def query_correction_offset(self, header: QueryCorrectionOffsetHeader) -> RemotingCommand:
        """308 QUERY_CORRECTION_OFFSET: the least offset of all groups, unless the compared group has a smaller one."""
        manager = self._broker.consumer_offset_manager
        least = manager.query_min_offset_in_all_group(
            header.topic, header.filter_groups, self._broker.store.min_offset_in_queue
        )
        compared = manager.query_offsets(header.compare_group, header.topic) or {}
        for queue_id, offset in compared.items():
            if least.get(queue_id, LONG_MAX) > offset:
                least[queue_id] = LONG_MAX
        body = QueryCorrectionOffsetBody(correction_offsets=least)
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def get_all_consumer_offset(self) -> RemotingCommand:
        """43 GET_ALL_CONSUMER_OFFSET: copied by slaves."""
        content = self._broker.consumer_offset_manager.encode()
        return RemotingCommand.create_response(body=json_config.dumps(content, pretty=False).encode())

    @answers(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_all_delay_offset(self) -> RemotingCommand:
        """45 GET_ALL_DELAY_OFFSET: copied by slaves."""
        content = self._schedule_message_service.encode()
        return RemotingCommand.create_response(body=json_config.dumps(content, pretty=False).encode())
