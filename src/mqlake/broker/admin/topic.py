"""Operators' requests on topics: create, change, delete, list, statistics.

The checks and their answers are those of RocketMQ's AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator

from mqlake.broker.broker import Broker
from mqlake.broker.metrics.execution_times import ExecutionTimes
from mqlake.broker.services.after_dispatch import DISPATCH_WAIT_S, after_dispatch
from mqlake.broker.services.error_responses import DEFAULT_REMARK
from mqlake.errors import ConfigError, IllegalTopicError, MappingError, ResponseError
from mqlake.message import LMQ_PREFIX, SYSTEM_TOPICS, is_system_topic, validate_topic
from mqlake.remoting.bodies.admin import TopicOffset, TopicStatsTable
from mqlake.remoting.bodies.topic import (
    QUEUES_MAX,
    CreateTopicListRequestBody,
    MessageQueue,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicFilterType,
    TopicList,
    TopicQueueMappingDetail,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from mqlake.remoting.processors import answers
from mqlake.remoting.yielding import in_turns

logger = logging.getLogger(__name__)

QUEUES_AT_ONCE = 500
"""A body with more queues is encoded on a thread: it takes longer than one turn of the event loop."""
PERM_MAX = 7
TOPICS_ENCODED_AT_ONCE = 500
"""More topics than this are encoded on a thread: that takes longer than the other clients should wait."""


class TopicAdmin:
    def __init__(self, broker: Broker, create_times: ExecutionTimes) -> None:
        self._broker = broker
        self._create_times = create_times

    # --- make and change

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC)
    async def update_and_create_topic(
        self, connection: Connection, header: CreateTopicRequestHeader
    ) -> RemotingCommand:
        """17 UPDATE_AND_CREATE_TOPIC: answered when the topic is on disk and the name servers know it."""
        config = _config_of(header)
        with self._create_times.measured():
            await self._update([config], connection)
        return RemotingCommand.create_response(remark=DEFAULT_REMARK)

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    async def update_and_create_topic_list(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """18 UPDATE_AND_CREATE_TOPIC_LIST: all of them, or none."""
        body = CreateTopicListRequestBody.from_json(request.body_bytes())
        with self._create_times.measured():
            await self._update(body.topic_config_list, connection)
        return RemotingCommand.create_response()

    @answers(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
    async def update_and_create_static_topic(
        self, connection: Connection, request: RemotingCommand, header: CreateTopicRequestHeader
    ) -> RemotingCommand:
        """513 UPDATE_AND_CREATE_STATIC_TOPIC: this broker's part of a mapping, answered when it is on disk and the name
        servers know it."""
        config = _config_of(header)
        self._check(config)
        detail = TopicQueueMappingDetail.from_json(request.body_bytes())
        if detail.topic != config.topic_name:
            raise _invalid(f"the mapping is of topic {detail.topic!r}, the request of {config.topic_name!r}")
        mappings = self._broker.topic_queue_mapping_manager
        try:
            mappings.update(detail, force=header.force)
        except MappingError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{detail.topic}: {error}") from error
        # first: a topic without its mapping would be taken for an ordinary one
        await mappings.persist_in_background()
        await self._update([config], connection, unchanged_too=True)
        return RemotingCommand.create_response()

    async def _update(
        self, configs: list[TopicConfig], connection: Connection, *, unchanged_too: bool = False
    ) -> None:
        """`unchanged_too`: topics that are as they were are registered as well."""
        manager = self._broker.topic_config_manager
        for config in configs:
            self._check(config)
        changed = [
            config
            for config in configs
            if unchanged_too or config != manager.topic_config_table.get(config.topic_name)
        ]
        if changed:
            names = [config.topic_name for config in changed]
            logger.info("%s: topics are made or changed: %s", connection.remote_address, names)
            try:
                manager.update_topic_config_list(changed)
            except ConfigError as error:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        await manager.wait_settled(config.topic_name for config in changed)
        await manager.persist_in_background()  # if that write failed, its error is the answer

    def _check(self, config: TopicConfig) -> None:
        """Raises ResponseError INVALID_PARAMETER for a configuration that is not allowed."""
        self._check_name(config.topic_name)
        if config.topic_name.startswith(LMQ_PREFIX):
            raise _invalid(f"topic {config.topic_name} would be a light queue: there are no light queues")
        for key, count in (
            ("readQueueNums", config.read_queue_nums),
            ("writeQueueNums", config.write_queue_nums),
        ):
            if not 0 <= count <= QUEUES_MAX:
                raise _invalid(f"{key} is {count}: 0 to {QUEUES_MAX} queues are possible")
        if not 0 <= config.perm <= PERM_MAX:
            raise _invalid(f"perm is {config.perm}: it can be 6 read and write, 4 read only, 2 write only")
        mixed = (config.attributes or {}).get("+message.type") == "MIXED"
        if mixed and not self._broker.config.enable_mixed_message_type:
            raise _invalid("MIXED message type is not supported. (enableMixedMessageType is false)")

    def _check_name(self, topic: str) -> None:
        try:
            validate_topic(topic)
        except IllegalTopicError as error:
            raise _invalid(str(error)) from error
        if self._broker.config.validate_system_topic_when_update_topic and self._is_system(topic):
            raise _invalid(f"The topic[{topic}] is conflict with system topic.")

    def _is_system(self, topic: str) -> bool:
        return is_system_topic(topic) or topic in self._broker.topic_config_manager.system_topics

    # --- delete

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER)
    async def delete_topic(self, connection: Connection, header: DeleteTopicRequestHeader) -> RemotingCommand:
        """215 DELETE_TOPIC_IN_BROKER: with its queues, its consumers' offsets and its pop retry topics; answered
        when they are deleted on disk."""
        topic = header.topic
        if not topic or topic.isspace():
            raise _invalid("The specified topic is blank.")
        self._check_name(topic)
        broker = self._broker
        topics = [topic]
        if broker.config.clear_retry_topic_when_delete_topic:
            for group in broker.consumer_offset_manager.which_group_by_topic(topic):
                for name in (f"%RETRY%{group}+{topic}", f"%RETRY%{group}_{topic}"):
                    if broker.topic_config_manager.select_topic_config(name) is not None:
                        topics.append(name)
        for name in topics:
            logger.info("%s: topic %s is deleted", connection.remote_address, name)
            await self._delete(name)
        return RemotingCommand.create_response()

    async def _delete(self, topic: str) -> None:
        broker = self._broker
        broker.topic_config_manager.delete_topic_config(topic)
        broker.topic_queue_mapping_manager.delete(topic)
        await broker.topic_config_manager.persist_in_background()
        await broker.topic_queue_mapping_manager.persist_in_background()
        broker.consumer_offset_manager.clean_offset_by_topic(topic)
        await asyncio.to_thread(self._delete_queues, topic)
        broker.store.store_stats_service.remove_topic(topic)
        broker.broker_stats_manager.on_topic_deleted(topic)

    def _delete_queues(self, topic: str) -> None:
        store = self._broker.store
        store.wait_until_dispatched(DISPATCH_WAIT_S)  # or puts just before create its queues again
        store.consume_queues.delete_topic(topic)

    # --- tell

    @answers(RequestCode.GET_ALL_TOPIC_CONFIG)
    async def get_all_topic_config(self) -> RemotingCommand:
        """21 GET_ALL_TOPIC_CONFIG: copied by slaves. A thread encodes thousands of topics."""
        wrapper = self._broker.topic_config_manager.build_serialize_wrapper()
        mappings = self._broker.topic_queue_mapping_manager
        wrapper.topic_queue_mapping_detail_map = dict(mappings.table)
        wrapper.mapping_data_version = dataclasses.replace(mappings.data_version)
        if len(wrapper.topic_config_table) < TOPICS_ENCODED_AT_ONCE:
            return RemotingCommand.create_response(body=wrapper.to_json())
        return RemotingCommand.create_response(body=await asyncio.to_thread(wrapper.to_json))

    @answers(RequestCode.GET_TOPIC_CONFIG)
    def get_topic_config(self, header: GetTopicConfigRequestHeader) -> RemotingCommand:
        """351 GET_TOPIC_CONFIG: with lo=true also the mapping, if the topic is static."""
        config = self._broker.topic_config_manager.select_topic_config(header.topic)
        if config is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}"
            )
        mapping = self._broker.topic_queue_mapping_manager.table.get(header.topic) if header.lo else None
        answer = TopicConfigAndQueueMapping.from_value(config.to_value())
        answer.mapping_detail = mapping
        return RemotingCommand.create_response(body=answer.to_json())

    @answers(RequestCode.GET_TOPIC_STATS_INFO, after_dispatch)
    async def get_topic_stats_info(self, header: GetTopicStatsInfoRequestHeader) -> RemotingCommand:
        broker = self._broker
        topic = header.topic
        config = broker.topic_config_manager.existing_topic(topic)
        store = broker.store
        stats = TopicStatsTable(topic_put_tps=broker.broker_stats_manager.tps_topic_put_nums(topic))

        def each_queue() -> Iterator[None]:
            for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
                high = store.max_offset_in_queue(topic, queue_id)
                last = store.message_store_timestamp(topic, queue_id, high - 1) if high else 0
                queue = MessageQueue(topic=topic, broker_name=broker.config.broker_name, queue_id=queue_id)
                stats.offset_table[queue] = TopicOffset(
                    min_offset=max(store.min_offset_in_queue(topic, queue_id), 0),
                    max_offset=high,
                    last_update_timestamp=last,
                )
                yield

        await in_turns(each_queue())
        many = len(stats.offset_table) > QUEUES_AT_ONCE
        body = await asyncio.to_thread(stats.to_json) if many else stats.to_json()
        return RemotingCommand.create_response(body=body)

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def get_system_topic_list_from_broker(self) -> RemotingCommand:
        topics = set(SYSTEM_TOPICS) | self._broker.topic_config_manager.system_topics
        return RemotingCommand.create_response(body=TopicList(topic_list=topics).to_json())


def _config_of(header: CreateTopicRequestHeader) -> TopicConfig:
    if header.topic_filter_type not in TopicFilterType.__members__:
        kinds = " or ".join(TopicFilterType.__members__)
        raise _invalid(f"topicFilterType is {header.topic_filter_type[:80]!r}: it can be {kinds}")
    return TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=TopicFilterType[header.topic_filter_type],
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=parse_attributes(header.attributes or ""),
    )


def parse_attributes(text: str) -> dict[str, str]:
    """`+message.type=FIFO,-queue.type` → {"+message.type": "FIFO", "-queue.type": ""}. ResponseError."""
    attributes: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not (name.startswith("+") and equals) and not (name.startswith("-") and not equals):
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"topic attribute {item!r}: +name=value or -name is needed"
            )
        if name in attributes:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"topic attribute {name}: given twice")
        attributes[name] = value
    return attributes


def _invalid(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.INVALID_PARAMETER, remark)
