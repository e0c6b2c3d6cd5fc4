"""Broker2Client: requests from the broker to its clients, over the connections that they opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mqlake.broker.broker import Broker
from mqlake.broker.services.error_responses import DEFAULT_REMARK
from mqlake.broker.state.clients import ClientChannelInfo
from mqlake.errors import FormatError, RemotingError
from mqlake.remoting.bodies.client import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode, Version, version_name
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from mqlake.remoting.headers.consume import NotifyConsumerIdsChangedRequestHeader

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0


class Broker2Client:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def call_client(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The client's answer. RemotingTimeoutError after 10 s, RemotingConnectError."""
        return await connection.invoke(request, CALL_TIMEOUT_S)

    def notify_consumer_ids_changed(self, connections: Iterable[Connection], consumer_group: str) -> None:
        """Tells members of a group to rebalance."""
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=consumer_group)
        request = RemotingCommand.create_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
        for connection in connections:
            self._tell(connection, request)

    def reset_offset(
        self, topic: str, group: str, timestamp: int, is_force: bool, is_c: bool = False
    ) -> RemotingCommand:
        """Sends every member of the group the offsets to consume from: of the messages stored at `timestamp` (ms, -1:
        the end) or later, unless the group is before that already and `is_force` is false. Answers the same offsets.

        For groups whose offsets the broker cannot reset by itself. `is_c`: the body in the form for clients without
        maps of objects.
        """
        broker = self._broker
        topic_config = broker.topic_config_manager.select_topic_config(topic)
        if topic_config is None:
            return RemotingCommand.create_response(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        offsets: dict[MessageQueue, int] = {}
        for queue_id in range(topic_config.write_queue_nums):
            known = broker.consumer_offset_manager.query_offset(group, topic, queue_id)
            if known == -1:
                return RemotingCommand.create_response(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group}> not exist: it has committed no offset in {topic}, "
                    f"queue {queue_id}; let it consume first, or reset by the broker (without a client)",
                )
            if timestamp == -1:
                wanted = broker.store.max_offset_in_queue(topic, queue_id)
            else:
                wanted = max(broker.store.get_offset_in_queue_by_time(topic, queue_id, timestamp), 0)
            queue = MessageQueue(topic=topic, broker_name=broker.config.broker_name, queue_id=queue_id)
            offsets[queue] = wanted if is_force or wanted < known else known

        members = self._members(group)
        if not members:
            return RemotingCommand.create_response(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {timestamp}",
            )
        if (too_old := _too_old(members)) is not None:
            return too_old
        body = ResetOffsetBody(offset_table=offsets).to_json()
        request = RemotingCommand.create_request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp, is_force=is_force),
            _for_c(offsets).to_json() if is_c else body,
        )
        for member in members:
            logger.info("reset-offset: topic=%s group=%s client=%s", topic, group, member)
            self._tell(member.connection, request)
        return RemotingCommand.create_response(body=body)

    async def get_consume_status(
        self, topic: str, group: str, origin_client_id: str | None
    ) -> RemotingCommand:
        """Asks the members of the group (or one of them) for their progress in the topic; members that do not
        answer within 5 s are left out."""
        members = self._members(group)
        if not members:
            return RemotingCommand.create_response(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]"
            )
        if (too_old := _too_old(members)) is not None:
            return too_old
        if origin_client_id:
            members = [member for member in members if member.client_id == origin_client_id]
        tables = await asyncio.gather(*(self._status_of(member, topic, group) for member in members))
        status = GetConsumerStatusBody(
            consumer_table={
                member.client_id: table
                for member, table in zip(members, tables, strict=True)
                if table is not None
            }
        )
        return RemotingCommand.create_response(remark=DEFAULT_REMARK, body=status.to_json())

    async def _status_of(
        self, member: ClientChannelInfo, topic: str, group: str
    ) -> dict[MessageQueue, int] | None:
        header = GetConsumerStatusRequestHeader(topic=topic, group=group)
        request = RemotingCommand.create_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
        try:
            answer = await member.connection.invoke(request, STATUS_TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS and answer.body is not None:
                return GetConsumerStatusBody.from_json(answer.body_bytes()).message_queue_table
        except (RemotingError, FormatError) as error:
            logger.error("get-consumer-status: topic=%s group=%s %s: %s", topic, group, member, error)
        return None

    def _members(self, group: str) -> list[ClientChannelInfo]:
        info = self._broker.consumer_manager.get_consumer_group_info(group)
        return list(info.channel_info_table.values()) if info is not None else []

    def _tell(self, connection: Connection, request: RemotingCommand) -> None:
        try:
            connection.invoke_oneway(request)
        except RemotingError as error:
            logger.info("%s cannot be notified of %d: %s", connection.remote_address, request.code, error)


def _too_old(members: list[ClientChannelInfo]) -> RemotingCommand | None:
    for member in members:
        if member.version < Version.V3_0_7:
            return RemotingCommand.create_response(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={version_name(member.version)}: "
                f"{member.client_id} must be at least V3_0_7",
            )
    return None


def _for_c(offsets: dict[MessageQueue, int]) -> ResetOffsetBodyForC:
    return ResetOffsetBodyForC(
        offset_table=[
            MessageQueueForC(
                topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset
            )
            for queue, offset in offsets.items()
        ]
    )
