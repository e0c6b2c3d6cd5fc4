"""ClientManageProcessor: heartbeats of clients, and their unregistration.

A heartbeat names the client's groups. A consumer group's first one makes the group and its %RETRY% topic; it is
answered when the name servers know that topic, so that the consumer finds it at once.

A heartbeat may name 10,000 groups, with 20,000 subscriptions in all, in 4 MiB. A long one is parsed on a thread and
handled group by group, in turns with the requests of others.

A client that supports heartbeats of the second version sends its subscriptions once and then only their fingerprint
(`withoutSub`). IS_SUB_CHANGE=true asks for all of them again: members of the group disagree, or this broker does not
know the subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field

from mqlake.broker.broker import Broker
from mqlake.broker.filter import compile_expression, is_tag_type
from mqlake.broker.state.clients import ClientChannelInfo
from mqlake.broker.state.topic_config import PERM_READ_WRITE
from mqlake.errors import FilterExpressionError, ResponseError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.client import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
)
from mqlake.remoting.bodies.topic import TOPIC_SYS_FLAG_UNIT_SUB
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.consume import UnregisterClientRequestHeader
from mqlake.remoting.processors import answers
from mqlake.remoting.yielding import at_once, in_turns

IS_SUPPORT_HEART_BEAT_V2 = "IS_SUPPORT_HEART_BEAT_V2"
IS_SUB_CHANGE = "IS_SUB_CHANGE"
BODY_AT_ONCE = 32 * 1024
"""Heartbeats of up to this many bytes, about 100 groups, are handled in one turn."""
BODY_MAX = 4 * 1024 * 1024
GROUPS_MAX = 10_000
SUBSCRIPTIONS_MAX = 20_000


@dataclass(slots=True)
class _HeartbeatResult:
    """The result of a heartbeat so far."""

    disagree: bool = False
    """True if the client is to be asked for all its subscriptions."""
    retry_topics: list[str] = field(default_factory=list)


class ClientManageProcessor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @answers(RequestCode.HEART_BEAT)
    def heart_beat(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        body = request.body_bytes()
        if len(body) > BODY_AT_ONCE:
            return self._heart_beat_in_turns(connection, request, body)
        heartbeat, result = _checked(HeartbeatData.from_json(body)), _HeartbeatResult()
        at_once(self._register_groups(connection, request, heartbeat, result))
        return self._answer(heartbeat, result)

    async def _heart_beat_in_turns(
        self, connection: Connection, request: RemotingCommand, body: bytes
    ) -> RemotingCommand:
        if len(body) > BODY_MAX:
            raise _too_long(f"has {len(body)} bytes", f"{BODY_MAX} bytes")
        heartbeat, result = (
            _checked(await asyncio.to_thread(HeartbeatData.from_json, body)),
            _HeartbeatResult(),
        )
        await in_turns(self._register_groups(connection, request, heartbeat, result))
        answer = self._answer(heartbeat, result)
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _register_groups(
        self,
        connection: Connection,
        request: RemotingCommand,
        heartbeat: HeartbeatData,
        result: _HeartbeatResult,
    ) -> Iterator[None]:
        """Handles one group a step, until the connection is closed."""
        info = ClientChannelInfo(connection, heartbeat.client_id, request.language, request.version)
        for consumer in heartbeat.consumer_data_set:
            if connection.closed:
                return
            if (
                consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
                and self._broker.config.reject_pull_consumer_enable
            ):
                continue
            retry_topic = self._create_retry_topic(consumer)
            if retry_topic is not None:
                result.retry_topics.append(retry_topic)
                result.disagree |= self._register(info, consumer, heartbeat)
            yield
        for producer in heartbeat.producer_data_set:
            if connection.closed:
                return
            self._broker.producer_manager.register_producer(producer.group_name, info)
            yield

    def _answer(
        self, heartbeat: HeartbeatData, result: _HeartbeatResult
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Waits until the new retry topics are settled."""
        response = RemotingCommand.create_response()
        response.ext_fields = {
            IS_SUPPORT_HEART_BEAT_V2: "true",
            IS_SUB_CHANGE: "true" if result.disagree or not heartbeat.heartbeat_fingerprint else "false",
        }
        unsettled = self._broker.topic_config_manager.unsettled
        waited_for = {unsettled[topic] for topic in result.retry_topics if topic in unsettled}
        return _after(waited_for, response) if waited_for else response

    def _create_retry_topic(self, consumer: ConsumerData) -> str | None:
        """The name of the retry topic, created if it does not exist; None if the group may not exist."""
        broker = self._broker
        config = broker.subscription_group_manager.find_subscription_group_config(consumer.group_name)
        if config is None:
            return None
        topics = broker.topic_config_manager
        topic = RETRY_GROUP_TOPIC_PREFIX + consumer.group_name
        topics.create_topic_in_send_message_back_method(
            topic,
            config.retry_queue_nums,
            PERM_READ_WRITE,
            TOPIC_SYS_FLAG_UNIT_SUB if consumer.unit_mode else 0,
            is_order=any(topics.is_order_topic(data.topic) for data in consumer.subscription_data_set),
        )
        return topic

    def _register(self, info: ClientChannelInfo, consumer: ConsumerData, heartbeat: HeartbeatData) -> bool:
        """Handles one group of a heartbeat; returns True if its subscriptions are needed again."""
        manager = self._broker.consumer_manager
        group = consumer.group_name
        config = self._broker.subscription_group_manager.subscription_group_table[group]
        without_sub = heartbeat.without_sub and heartbeat.heartbeat_fingerprint != 0
        known = manager.get_consumer_group_info(group)
        known_fingerprint = None if known is None else known.heartbeat_fingerprint
        manager.register_consumer(
            group,
            info,
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            None if without_sub else consumer.subscription_data_set,
            config.notify_consumer_ids_changed_enable,
        )
        group_info = manager.consumer_table[group]
        if without_sub and known_fingerprint is None:
            return True
        group_info.heartbeat_fingerprint = heartbeat.heartbeat_fingerprint
        return known_fingerprint is not None and known_fingerprint != heartbeat.heartbeat_fingerprint

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister_client(
        self, connection: Connection, header: UnregisterClientRequestHeader
    ) -> RemotingCommand:
        broker = self._broker
        if header.producer_group is not None:
            broker.producer_manager.unregister_producer(header.producer_group, connection)
        if (group := header.consumer_group) is not None:
            config = broker.subscription_group_manager.subscription_group_table.get(group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            broker.consumer_manager.unregister_consumer(group, connection, notify)
        return RemotingCommand.create_response()

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client_config(self, request: RemotingCommand) -> RemotingCommand:
        """46 CHECK_CLIENT_CONFIG: checks that this broker can filter as a consumer wants."""
        subscription = CheckClientRequestBody.from_json(request.body_bytes()).subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return RemotingCommand.create_response()
        if not self._broker.config.enable_property_filter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}: "
                f"set enablePropertyFilter=true in its configuration",
            )
        try:
            compile_expression(subscription.expression_type, subscription.sub_string)
        except FilterExpressionError as error:
            raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return RemotingCommand.create_response()


def _checked(heartbeat: HeartbeatData) -> HeartbeatData:
    """ResponseError INVALID_PARAMETER."""
    if not heartbeat.client_id:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
    groups = len(heartbeat.consumer_data_set) + len(heartbeat.producer_data_set)
    if groups > GROUPS_MAX:
        raise _too_long(f"names {groups} groups", f"{GROUPS_MAX} groups")
    subscriptions = sum(len(consumer.subscription_data_set) for consumer in heartbeat.consumer_data_set)
    if subscriptions > SUBSCRIPTIONS_MAX:
        raise _too_long(f"names {subscriptions} subscriptions", f"{SUBSCRIPTIONS_MAX} subscriptions")
    return heartbeat


def _too_long(what: str, most: str) -> ResponseError:
    return ResponseError(
        ResponseCode.INVALID_PARAMETER,
        f"the heartbeat {what}, {most} are allowed: spread the groups over several client instances",
    )


async def _after(waited_for: set[asyncio.Future[None]], response: RemotingCommand) -> RemotingCommand:
    await asyncio.wait(waited_for)
    return response
