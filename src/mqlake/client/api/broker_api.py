"""BrokerAPI: an operator's requests to one broker, one method for each request code.

Every method takes the broker's address (host:port) first. Method names are those of RocketMQ's MQClientAPIImpl.
`Admin` chooses the brokers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from mqlake.base import json_config
from mqlake.base.clock import now_ms
from mqlake.base.java_properties import format_properties, parse_properties
from mqlake.client.api.calls import BrokerCalls
from mqlake.errors import BadCrcError, FormatError, ResponseError
from mqlake.formats.compression import decompress_body
from mqlake.formats.record import decode_record
from mqlake.message import Message, MessageExt, MessageSysFlag, create_uniq_id, properties_to_string
from mqlake.remoting.bodies.admin import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    HARuntimeInfo,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    TopicStatsTable,
)
from mqlake.remoting.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageRequestModes,
    ResetOffsetBody,
    SetMessageRequestModeRequestBody,
)
from mqlake.remoting.bodies.topic import (
    KVTable,
    MessageQueue,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicList,
)
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import admin as headers
from mqlake.remoting.headers import consume
from mqlake.remoting.headers.produce import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqlake.remoting.metadata_pages import all_groups, all_topics

UNIQUE_MSG_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
"""The field that says: the key of a QUERY_MESSAGE is a client's message id."""
DEFAULT_TOPIC = "TBW102"
TIME_MAX = 2**63 - 1
PULL_SUBSCRIPTION_FLAG = 4
TOOLS_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's group for tools that read; it may read every topic and leaves no offsets."""

PROMOTE_TIMEOUT_S = 90.0
"""A slave dispatches what it has first."""

logger = logging.getLogger(__name__)


class BrokerAPI(BrokerCalls):
    """Without `unpack` the bodies of messages stay as they are stored, and their flags say whether compressed."""

    def __init__(
        self, client: RemotingClient, *, timeout_s: float | None = None, unpack: bool = True
    ) -> None:
        super().__init__(client, timeout_s=timeout_s)
        self._unpack = unpack

    # --- topics

    async def create_topic(self, address: str, config: TopicConfig) -> None:
        """Creates the topic, or changes it to `config`. Attributes are changes: `+name` sets, `-name` drops."""
        await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, _create_header(config))

    async def create_static_topic(
        self, address: str, config: TopicConfigAndQueueMapping, *, force: bool = False
    ) -> None:
        """The broker's part of a static topic. `force`: even if it contradicts what the broker knows."""
        mapping = config.mapping_detail
        assert mapping is not None
        header = _create_header(config)
        header.attributes, header.force = None, force
        await self._call(address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, mapping.to_json())

    async def delete_topic_in_broker(self, address: str, topic: str) -> None:
        await self._call(
            address, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequestHeader(topic=topic)
        )

    async def get_topic_config(self, address: str, topic: str) -> TopicConfig:
        """ResponseError 17 when the broker does not have it."""
        header = headers.GetTopicConfigRequestHeader(topic=topic)
        return await self._body(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, header)

    async def get_topic_config_and_mapping(self, address: str, topic: str) -> TopicConfigAndQueueMapping:
        """As get_topic_config, with the mapping if the topic is static."""
        header = headers.GetTopicConfigRequestHeader(topic=topic, lo=True)
        return await self._body(TopicConfigAndQueueMapping, address, RequestCode.GET_TOPIC_CONFIG, header)

    async def get_all_topic_config(self, address: str) -> dict[str, TopicConfig]:
        return (await all_topics(functools.partial(self._call, address))).topic_config_table

    async def get_topic_stats_info(self, address: str, topic: str) -> TopicStatsTable:
        header = headers.GetTopicStatsInfoRequestHeader(topic=topic)
        return await self._body(TopicStatsTable, address, RequestCode.GET_TOPIC_STATS_INFO, header)

    async def get_system_topic_list(self, address: str) -> set[str]:
        found = await self._body(TopicList, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return found.topic_list

    # --- groups

    async def create_subscription_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Creates the group, or changes it to `config`."""
        await self._call(
            address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json(strict=True)
        )

    async def delete_subscription_group(self, address: str, group: str, *, clean_offset: bool) -> None:
        header = headers.DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=clean_offset)
        await self._call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def get_subscription_group_config(self, address: str, group: str) -> SubscriptionGroupConfig:
        """ResponseError 26 when the broker does not have it (and does not create groups by itself)."""
        header = headers.GetSubscriptionGroupConfigRequestHeader(group=group)
        return await self._body(
            SubscriptionGroupConfig, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header
        )

    async def get_all_subscription_group_config(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        return (await all_groups(functools.partial(self._call, address))).subscription_group_table

    # --- consuming

    async def get_consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of the group in `topic`, or in every topic it has offsets of."""
        header = headers.GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        return await self._body(ConsumeStats, address, RequestCode.GET_CONSUME_STATS, header)

    async def fetch_consume_stats_in_broker(
        self, address: str, *, is_order: bool = False
    ) -> ConsumeStatsList:
        header = headers.GetConsumeStatsInBrokerHeader(is_order=is_order)
        return await self._body(ConsumeStatsList, address, RequestCode.GET_BROKER_CONSUME_STATS, header)

    async def get_consumer_connection_list(self, address: str, group: str) -> ConsumerConnection:
        """ResponseError 206 when no consumer of the group is connected."""
        header = headers.GetConsumerConnectionListRequestHeader(consumer_group=group)
        return await self._body(ConsumerConnection, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)

    async def get_consumer_running_info(
        self, address: str, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """The state that a consumer reports through the broker. `jstack`: with stack traces, if it has threads."""
        header = consume.GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=jstack
        )
        return await self._body(ConsumerRunningInfo, address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)

    async def consume_message_directly(
        self, address: str, group: str, client_id: str, topic: str, msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Hands a stored message (by its offset message id) to one consumer, and returns the result."""
        header = consume.ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, topic=topic, msg_id=msg_id
        )
        return await self._body(
            ConsumeMessageDirectlyResult, address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header
        )

    async def invoke_broker_to_get_consumer_status(
        self, address: str, topic: str, group: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Client id → the offsets of its consumers."""
        header = headers.GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        found = await self._body(
            GetConsumerStatusBody, address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header
        )
        return found.consumer_table

    async def query_topic_consume_by_who(self, address: str, topic: str) -> set[str]:
        header = headers.QueryTopicConsumeByWhoRequestHeader(topic=topic)
        found = await self._body(GroupList, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return found.group_list

    async def query_topics_by_consumer(self, address: str, group: str) -> set[str]:
        header = headers.QueryTopicsByConsumerRequestHeader(group=group)
        found = await self._body(TopicList, address, RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
        return found.topic_list

    async def query_consume_time_span(self, address: str, topic: str, group: str) -> list[QueueTimeSpan]:
        header = headers.QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        found = await self._body(
            QueryConsumeTimeSpanBody, address, RequestCode.QUERY_CONSUME_TIME_SPAN, header
        )
        return found.consume_time_span_set

    async def get_producer_connection_list(self, address: str, group: str) -> ProducerConnection:
        header = headers.GetProducerConnectionListRequestHeader(producer_group=group)
        return await self._body(ProducerConnection, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)

    async def get_all_producer_info(self, address: str) -> ProducerTableInfo:
        return await self._body(
            ProducerTableInfo,
            address,
            RequestCode.GET_ALL_PRODUCER_INFO,
            headers.GetAllProducerInfoRequestHeader(),
        )

    # --- offsets

    async def update_consumer_offset(
        self, address: str, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        header = consume.UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        await self._call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def invoke_broker_to_reset_offset(
        self,
        address: str,
        topic: str,
        group: str,
        timestamp: int,
        *,
        is_force: bool = True,
        queue_id: int = -1,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Moves the group to `timestamp` (ms; -1: the end), or one queue to `offset`; returns queue → offset."""
        header = headers.ResetOffsetRequestHeader(
            topic=topic,
            group=group,
            timestamp=timestamp,
            is_force=is_force,
            queue_id=queue_id,
            offset=offset,
        )
        found = await self._body(ResetOffsetBody, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return found.offset_table

    async def clone_group_offset(
        self, address: str, source: str, target: str, topic: str | None = None, *, is_offline: bool = False
    ) -> None:
        header = headers.CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=target, topic=topic, offline=is_offline
        )
        await self._call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def set_message_request_mode(self, address: str, body: SetMessageRequestModeRequestBody) -> None:
        await self._call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.to_json())

    async def get_all_message_request_mode(
        self, address: str
    ) -> dict[str, dict[str, SetMessageRequestModeRequestBody]]:
        """Topic → group → its mode, as far as operators have set it."""
        answer = await self._call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        return MessageRequestModes.from_json(answer.body_bytes()).message_request_mode_map

    async def polling_num(self, address: str, topic: str, group: str, queue_id: int) -> int:
        """Pops that wait at a queue."""
        header = consume.PollingInfoRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id)
        answer = await self._call(address, RequestCode.POLLING_INFO, header)
        return answer.decode_header(consume.PollingInfoResponseHeader).polling_num

    async def query_consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        header = headers.QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        return await self._body(
            QueryConsumeQueueResponseBody, address, RequestCode.QUERY_CONSUME_QUEUE, header
        )

    # --- messages

    async def query_message(
        self,
        address: str,
        topic: str,
        key: str,
        max_num: int,
        begin: int = 0,
        end: int = TIME_MAX,
        *,
        is_unique_key: bool = False,
    ) -> list[MessageExt]:
        """Messages of the topic with `key`, stored in [begin, end] (ms), the newest `max_num`. May be none."""
        header = consume.QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_num, begin_timestamp=begin, end_timestamp=end
        )
        request = RemotingCommand.create_request(RequestCode.QUERY_MESSAGE, header)
        if is_unique_key:
            request.ext_fields[UNIQUE_MSG_QUERY_FLAG] = "true"
        answer = await self._client.invoke(address, request, self._timeout_s)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        _check(answer)
        return _messages(answer.body_bytes(), unpack=self._unpack)

    async def view_message(self, address: str, offset: int, topic: str | None = None) -> MessageExt:
        """The message whose record begins at a physical offset of the broker's log."""
        header = consume.ViewMessageRequestHeader(topic=topic, offset=offset)
        answer = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return _messages(answer.body_bytes(), unpack=self._unpack)[0]

    async def pull_message(
        self, address: str, topic: str, queue_id: int, offset: int, max_num: int
    ) -> tuple[list[MessageExt], consume.PullMessageResponseHeader]:
        """Up to `max_num` messages of a queue from `offset` on (none at its end), and where it begins and ends."""
        header = consume.PullMessageRequestHeader(
            consumer_group=TOOLS_GROUP,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=max_num,
            sys_flag=PULL_SUBSCRIPTION_FLAG,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        request = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, header)
        answer = await self._client.invoke(address, request, self._timeout_s)
        nothing = {
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        }
        place = answer.decode_header(consume.PullMessageResponseHeader) if answer.ext_fields else None
        if place is None or answer.code not in nothing:
            _check(answer)
        assert place is not None
        if answer.code in nothing:
            return [], place
        messages = _messages(answer.body_bytes(), unpack=self._unpack)
        for message in messages:  # a record of a static topic has the place in its physical queue
            message.queue_id = queue_id
            message.queue_offset += place.offset_delta or 0
        return messages, place

    async def send_message(
        self, address: str, message: Message, queue_id: int, group: str, sys_flag: int = 0
    ) -> SendMessageResponseHeader:
        """Stores one message; `group` need not exist. The message gets a unique id if it has none.

        `sys_flag` says how the body is compressed, if it is.
        """
        if message.uniq_key is None:
            message.uniq_key = create_uniq_id()
        header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=message.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=properties_to_string(message.properties),
        )
        return await self._header(
            SendMessageResponseHeader, address, RequestCode.SEND_MESSAGE_V2, header, message.body
        )

    # --- the broker itself

    async def get_broker_runtime_info(self, address: str) -> dict[str, str]:
        """The keys of RocketMQ's getBrokerRuntimeInfo."""
        found = await self._body(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return found.table

    async def get_timer_check_point(self, address: str) -> bytes:
        """56 bytes: how far the timers are (formats.timer.TimerCheckpointData)."""
        return (await self._call(address, RequestCode.GET_TIMER_CHECK_POINT)).body_bytes()

    async def get_timer_metrics(self, address: str) -> dict[str, int]:
        """Topic → how many timer messages wait for it. FormatError for an answer that is none."""
        content = json_config.loads((await self._call(address, RequestCode.GET_TIMER_METRICS)).body_bytes())
        try:
            return {str(topic): int(entry["count"]) for topic, entry in content["timingCount"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(0, f"these are no timer metrics: {error!r}") from None

    async def recall_message(self, address: str, header: RecallMessageRequestHeader) -> str:
        """Cancels a timer message; its id."""
        return (
            await self._header(RecallMessageResponseHeader, address, RequestCode.RECALL_MESSAGE, header)
        ).msg_id

    async def get_broker_config(self, address: str) -> dict[str, str]:
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body_bytes().decode())

    async def get_pending_settings(self, address: str) -> dict[str, str]:
        """Returns the changed settings that take effect at the broker's next start; mqlake's brokers say it,
        RocketMQ's do not."""
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.ext_fields.get("pendingRestart") or "")

    async def update_broker_config(self, address: str, settings: Mapping[str, str]) -> str:
        """Changes settings; returns the broker's remark, such as which of them wait for its next start.
        ResponseError."""
        body = format_properties(settings).encode()
        return (await self._call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)).remark or ""

    async def get_broker_ha_status(self, address: str) -> HARuntimeInfo:
        """The slaves that follow a broker, or how far it follows its master."""
        return await self._body(HARuntimeInfo, address, RequestCode.GET_BROKER_HA_STATUS)

    async def promote(self, address: str, role: str, *, force: bool = False) -> None:
        """Makes a slave of mqlake's the master, as `role`; `force`: also while its master answers. ResponseError."""
        request = RemotingCommand.create_request(
            RequestCode.UPDATE_BROKER_CONFIG, body=format_properties({"brokerRole": role}).encode()
        )
        if force:
            request.ext_fields["force"] = "true"
        await self._client.call(address, request, PROMOTE_TIMEOUT_S)

    async def view_broker_stats_data(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Sums and rates of one counter. ResponseError 1 when nothing was counted yet."""
        header = headers.ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        return await self._body(BrokerStatsData, address, RequestCode.VIEW_BROKER_STATS_DATA, header)

    async def delete_expired_commit_log(self, address: str) -> None:
        """Makes the broker delete expired files now, regardless of deleteWhen."""
        await self._call(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def clean_expired_consume_queue(self, address: str) -> None:
        """Deletes files of queues whose messages are gone."""
        await self._call(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topic(self, address: str) -> None:
        """Deletes the queues of topics that the broker no longer knows."""
        await self._call(address, RequestCode.CLEAN_UNUSED_TOPIC)


def _check(answer: RemotingCommand) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(answer.code, answer.remark or "")


def _create_header(config: TopicConfig) -> headers.CreateTopicRequestHeader:
    attributes = ",".join(
        f"{name}={value}" if value else name for name, value in (config.attributes or {}).items()
    )
    return headers.CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type.name,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes or None,
    )


def _messages(data: bytes, *, unpack: bool) -> list[MessageExt]:
    """The records in `data`. Raises FormatError for bytes that are not a record.

    With `unpack` bodies are decompressed; one that cannot be stays as it is stored, flagged as compressed: an
    operator who looks for a message wants to see it.
    """
    messages, position = [], 0
    while position < len(data):
        try:
            message = decode_record(data, position)
        except BadCrcError as error:
            message = decode_record(data, position, check_crc=False)
            logger.warning("message %s is damaged: %s", message.msg_id, error.reason)
        position += message.store_size
        messages.append(message)
        if not unpack:
            continue
        try:
            message.body = decompress_body(message.body, message.sys_flag)
            message.sys_flag &= ~MessageSysFlag.COMPRESSED_FLAG
        except FormatError as error:
            logger.warning(
                "the body of message %s is shown as it is stored: %s", message.msg_id, error.reason
            )
    return messages
