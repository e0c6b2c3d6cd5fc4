"""Operators' requests on consuming: the progress of groups, connections, the state of a consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from mqlake.broker.broker import Broker
from mqlake.broker.services.after_dispatch import after_dispatch
from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.broker.state.clients import ClientChannelInfo
from mqlake.errors import (
    MessageError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchError,
    ResponseError,
)
from mqlake.message import decode_message_id
from mqlake.remoting.bodies import admin as bodies
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig, TopicList
from mqlake.remoting.codes import RequestCode, ResponseCode, Version, version_name
from mqlake.remoting.command import Body, RemotingCommand
from mqlake.remoting.headers import admin as headers
from mqlake.remoting.headers.consume import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from mqlake.remoting.processors import answers
from mqlake.remoting.yielding import in_turns

logger = logging.getLogger(__name__)

TOPIC_NAME_SEPARATOR = ";"
QUEUES_AT_ONCE = 500
"""A body with more queues is encoded on a thread: it takes longer than one turn of the event loop."""


class ConsumeAdmin:
    def __init__(self, broker: Broker, broker_to_client: Broker2Client) -> None:
        self._broker = broker
        self._broker_to_client = broker_to_client

    # --- progress

    @answers(RequestCode.GET_CONSUME_STATS, after_dispatch)
    async def get_consume_stats(self, header: headers.GetConsumeStatsRequestHeader) -> RemotingCommand:
        stats = bodies.ConsumeStats()

        def each_topic() -> Iterator[None]:
            for topic in self._topics_of(header.consumer_group, header.topic, header.topic_list):
                config = self._broker.topic_config_manager.select_topic_config(topic)
                if config is not None:
                    self._add_stats(stats, header.consumer_group, config, config.read_queue_nums)
                yield

        await in_turns(each_topic())
        many = len(stats.offset_table) > QUEUES_AT_ONCE
        body = await asyncio.to_thread(stats.to_json) if many else stats.to_json()
        return RemotingCommand.create_response(body=body)

    def _topics_of(self, group: str, topic: str | None, topic_list: str | None) -> list[str]:
        """The topics of a list as they are; else the one given, or all that the group consumes."""
        named = [name for name in (topic_list or "").split(TOPIC_NAME_SEPARATOR) if name]
        if named:
            return named
        topics: Iterable[str] = (
            {topic} if topic else self._broker.consumer_offset_manager.which_topic_by_consumer(group)
        )
        return [name for name in topics if not self._broker.consumer_manager.is_left_out(group, name)]

    def _add_stats(
        self, stats: bodies.ConsumeStats, group: str, config: TopicConfig, queue_nums: int
    ) -> None:
        broker, topic = self._broker, config.topic_name
        store, offsets = broker.store, broker.consumer_offset_manager
        broker_name = broker.config.broker_name
        # a part of a logical queue in which the group has no offset says so: the offset is in another part
        lowest = -1 if topic in broker.topic_queue_mapping_manager.table else 0
        for queue_id in range(queue_nums):
            consumer_offset = max(offsets.query_offset(group, topic, queue_id), lowest)
            wrapper = bodies.OffsetWrapper(
                broker_offset=max(store.max_offset_in_queue(topic, queue_id), 0),
                consumer_offset=consumer_offset,
                pull_offset=max(consumer_offset, offsets.query_pull_offset(group, topic, queue_id)),
            )
            if consumer_offset > 0:
                consumed = store.message_store_timestamp(topic, queue_id, consumer_offset - 1)
                wrapper.last_timestamp = max(consumed, 0)
            queue = MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
            stats.offset_table[queue] = wrapper
        stats.consume_tps += broker.broker_stats_manager.tps_group_get_nums(group, topic)

    @answers(RequestCode.GET_BROKER_CONSUME_STATS, after_dispatch)
    async def fetch_all_consume_stats_in_broker(
        self, header: headers.GetConsumeStatsInBrokerHeader
    ) -> RemotingCommand:
        """317 GET_BROKER_CONSUME_STATS."""
        broker, is_order = self._broker, header.is_order
        consumers = broker.consumer_manager
        answer = bodies.ConsumeStatsList(broker_addr=broker.broker_addr)
        topics_of = broker.consumer_offset_manager.group_topic_map()  # once, since it reads all offsets

        def each_group() -> Iterator[None]:
            for group in list(broker.subscription_group_manager.subscription_group_table):
                found = []
                for topic in sorted(topics_of.get(group, ())):
                    config = broker.topic_config_manager.select_topic_config(topic)
                    if (
                        config is None
                        or (is_order and not config.order)
                        or consumers.is_left_out(group, topic)
                    ):
                        continue
                    stats = bodies.ConsumeStats()
                    self._add_stats(stats, group, config, config.write_queue_nums)
                    for each in stats.offset_table.values():
                        answer.total_diff += each.behind
                        answer.total_inflight_diff += each.in_flight
                    found.append(stats)
                answer.consume_stats_list.append({group: found})
                yield

        await in_turns(each_group())
        return RemotingCommand.create_response(body=answer.to_json())

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN, after_dispatch)
    def query_consume_time_span(self, header: headers.QueryConsumeTimeSpanRequestHeader) -> RemotingCommand:
        broker, topic = self._broker, header.topic
        config = broker.topic_config_manager.existing_topic(topic)
        spans = [
            self._time_span(header.group, topic, queue_id) for queue_id in range(config.write_queue_nums)
        ]
        body = bodies.QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return RemotingCommand.create_response(body=body.to_json())

    def _time_span(self, group: str, topic: str, queue_id: int) -> bodies.QueueTimeSpan:
        broker = self._broker
        store = broker.store
        first = store.earliest_message_time(topic, queue_id)
        high = store.max_offset_in_queue(topic, queue_id)
        consumed = broker.consumer_offset_manager.query_offset(group, topic, queue_id)
        span = bodies.QueueTimeSpan(
            message_queue=MessageQueue(topic=topic, broker_name=broker.config.broker_name, queue_id=queue_id),
            min_time_stamp=first,
            max_time_stamp=store.message_store_timestamp(topic, queue_id, high - 1),
            consume_time_stamp=(
                store.message_store_timestamp(topic, queue_id, consumed - 1) if consumed > 0 else first
            ),
        )
        if consumed < high:
            following = store.message_store_timestamp(topic, queue_id, max(consumed, 0))
            span.delay_time = broker.clock_ms() - following if following > 0 else 0
        return span

    # --- who consumes what

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def query_topic_consume_by_who(
        self, header: headers.QueryTopicConsumeByWhoRequestHeader
    ) -> RemotingCommand:
        """300 QUERY_TOPIC_CONSUME_BY_WHO: groups that are connected, or have offsets."""
        broker = self._broker
        groups = broker.consumer_manager.query_topic_consume_by_who(header.topic)
        groups = groups | broker.consumer_offset_manager.which_group_by_topic(header.topic)
        return RemotingCommand.create_response(body=bodies.GroupList(group_list=groups).to_json())

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def query_topics_by_consumer(self, header: headers.QueryTopicsByConsumerRequestHeader) -> RemotingCommand:
        topics = self._broker.consumer_offset_manager.which_topic_by_consumer(header.group)
        body = TopicList(topic_list=topics, broker_addr=self._broker.broker_addr)
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def query_subscription_by_consumer(
        self, header: headers.QuerySubscriptionByConsumerRequestHeader
    ) -> RemotingCommand:
        subscription = self._broker.consumer_manager.find_subscription_data(header.group, header.topic or "")
        body = bodies.QuerySubscriptionResponseBody(
            subscription_data=subscription, group=header.group, topic=header.topic
        )
        return RemotingCommand.create_response(body=body.to_json())

    # --- who is connected

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def get_consumer_connection_list(
        self, header: headers.GetConsumerConnectionListRequestHeader
    ) -> RemotingCommand:
        group = header.consumer_group
        info = self._broker.consumer_manager.get_consumer_group_info(group)
        if info is None:
            raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        body = bodies.ConsumerConnection(
            connection_set=_connections(info.channel_info_table.values()),
            subscription_table=dict(info.subscription_table),
            consume_type=info.consume_type,
            message_model=info.message_model,
            consume_from_where=info.consume_from_where,
        )
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def get_producer_connection_list(
        self, header: headers.GetProducerConnectionListRequestHeader
    ) -> RemotingCommand:
        group = header.producer_group
        channels = self._broker.producer_manager.group_channel_table.get(group)
        if channels is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        body = bodies.ProducerConnection(connection_set=_connections(channels.values()))
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def get_all_producer_info(self) -> RemotingCommand:
        table = self._broker.producer_manager.get_producer_table()
        return RemotingCommand.create_response(body=table.to_json())

    # --- what a consumer is asked

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def get_consumer_running_info(
        self, request: RemotingCommand, header: GetConsumerRunningInfoRequestHeader
    ) -> RemotingCommand:
        """307 GET_CONSUMER_RUNNING_INFO: the consumer's own answer."""
        return await self._call_consumer(
            request, header.consumer_group, header.client_id, request.ext_fields, request.body
        )

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume_message_directly(
        self, request: RemotingCommand, header: ConsumeMessageDirectlyResultRequestHeader
    ) -> RemotingCommand:
        """309 CONSUME_MESSAGE_DIRECTLY: the message out of this broker's log, to one consumer."""
        broker = self._broker
        try:
            _, offset = decode_message_id(header.msg_id or "")
        except MessageError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        record = broker.store.select_one_message_by_offset(offset)
        if record is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}, of {header.msg_id}"
            )
        fields = dict(request.ext_fields)
        fields["brokerName"] = broker.config.broker_name
        topic = broker.topic_config_manager.select_topic_config(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = broker.subscription_group_manager.find_subscription_group_config(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        return await self._call_consumer(
            request, header.consumer_group, header.client_id or "", fields, bytes(record)
        )

    async def _call_consumer(
        self, request: RemotingCommand, group: str, client_id: str, fields: dict[str, str], body: Body
    ) -> RemotingCommand:
        """Forwards a request to one consumer, and its answer back."""
        info = self._broker.consumer_manager.find_channel(group, client_id)
        if info is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if info.version < Version.V3_1_8_SNAPSHOT:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_name(info.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        question = RemotingCommand.create_request(request.code, body=body)
        question.ext_fields = dict(fields)
        try:
            answer = await self._broker_to_client.call_client(info.connection, question)
        except RemotingTimeoutError as error:
            raise ResponseError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from error
        except (RemotingConnectError, RemotingTooMuchError) as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            ) from error
        passed_on = RemotingCommand.create_response(answer.code, answer.remark, body=answer.body)
        passed_on.ext_fields = answer.ext_fields
        return passed_on

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def get_consumer_status(self, header: headers.GetConsumerStatusRequestHeader) -> RemotingCommand:
        return await self._broker_to_client.get_consume_status(header.topic, header.group, header.client_addr)


def _connections(channels: Iterable[ClientChannelInfo]) -> list[bodies.Connection]:
    return [
        bodies.Connection(
            client_id=info.client_id,
            client_addr=info.connection.remote_address,
            language=info.language.name,
            version=info.version,
        )
        for info in channels
    ]
