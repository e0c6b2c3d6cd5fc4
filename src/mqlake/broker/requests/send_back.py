"""ConsumerSendMsgBackProcessor: messages that a consumer could not handle, and dead letters.

    consumer ── CONSUMER_SEND_MSG_BACK (where the record is) ──▶ %RETRY%group, delayed    up to retryMaxTimes
    orderly consumer ── SEND_MESSAGE to %RETRY%group ─────────▶   or %DLQ%group           from then on

The message is stored again: its properties hold its topic (RETRY_TOPIC) and the id of the original
(ORIGIN_MESSAGE_ID), and RECONSUMETIMES counts the tries. A dead letter waits for an operator.

Under SYNC_FLUSH the answer waits for the disk as with any other message: the consumer moves on when it has the answer,
so this may be the only copy that is still to be consumed. (RocketMQ does not wait.)
"""

from __future__ import annotations

import random

from mqlake.broker.broker import Broker
from mqlake.broker.mqtrace.contexts import send_back_context
from mqlake.broker.services.archived import with_archive
from mqlake.broker.state.topic_config import PERM_READ_WRITE
from mqlake.errors import FormatError, OffsetOutOfRangeError, ResponseError
from mqlake.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORE_MSG_OK,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageExt,
    MessageExtBrokerInner,
)
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import PERM_WRITE, TOPIC_SYS_FLAG_UNIT_SUB
from mqlake.remoting.codes import RequestCode, ResponseCode, Version
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader
from mqlake.remoting.processors import answers
from mqlake.store.broker_stats import DLQ_PUT_NUMS, SNDBCK_PUT_NUMS
from mqlake.store.results import PutMessageStatus

DLQ_NUMS_PER_GROUP = 1
FIRST_RETRY_DELAY_LEVEL = 3


class ConsumerSendMsgBackProcessor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK, with_archive)
    async def consumer_send_msg_back(
        self, connection: Connection, request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader
    ) -> RemotingCommand:
        broker = self._broker
        group_config = broker.subscription_group_manager.existing_group(header.group)
        if not broker.config.broker_permission & PERM_WRITE:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.config.broker_name}] sending message is forbidden: brokerPermission "
                f"is {broker.config.broker_permission}; set 6, or consume from another broker",
            )
        if group_config.retry_queue_nums <= 0:  # the group wants no retries
            return RemotingCommand.create_response()
        topic = self._retry_topic(header, group_config.retry_queue_nums)
        message = self._look_message(header.offset)
        origin_topic = message.properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
        retry_max_times = _retry_max_times(group_config, header.max_reconsume_times, request.version)
        is_dlq = header.delay_level < 0 or message.reconsume_times >= retry_max_times
        if is_dlq:
            queue_id = 0
            topic = _create_dlq_topic(broker, header.group)
            message.delay_time_level = 0
        else:
            queue_id = random.randrange(group_config.retry_queue_nums)
            message.delay_time_level = header.delay_level or FIRST_RETRY_DELAY_LEVEL + message.reconsume_times
        result = await broker.store.async_put_message(
            _stored_again(message, topic, queue_id, broker.store_host)
        )
        if broker.hooks.consume:
            broker.hooks.execute_consume_message_hook_after(
                send_back_context(
                    broker, connection, header.group, origin_topic, message, result, is_dlq=is_dlq
                )
            )
        if result.status is not PutMessageStatus.PUT_OK:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"{result.status.name}: {result.reason or 'the message could not be stored'}; "
                f"the consumer should try again",
            )
        # name servers know a new topic before its sender hears of it, as RocketMQ's do
        await broker.topic_config_manager.wait_settled([topic])
        stats = broker.broker_stats_manager
        stats.add(SNDBCK_PUT_NUMS, f"{origin_topic}@{header.group}", 1)
        if is_dlq:
            stats.add(DLQ_PUT_NUMS, f"{origin_topic}@{header.group}", 1)
        return RemotingCommand.create_response()

    def _retry_topic(self, header: ConsumerSendMsgBackRequestHeader, queue_nums: int) -> str:
        """The group's, created if it is missing. ResponseError if it may not be written."""
        topic = RETRY_GROUP_TOPIC_PREFIX + header.group
        topic_config = self._broker.topic_config_manager.create_topic_in_send_message_back_method(
            topic, queue_nums, PERM_READ_WRITE, TOPIC_SYS_FLAG_UNIT_SUB if header.unit_mode else 0
        )
        if not topic_config.perm & PERM_WRITE:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic}] sending message is forbidden: its perm is {topic_config.perm}",
            )
        return topic

    def _look_message(self, physical_offset: int) -> MessageExt:
        try:
            return self._broker.store.look_message_by_offset(physical_offset)
        except (OffsetOutOfRangeError, FormatError) as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical_offset}: {error}"
            ) from None


def handle_retry_and_dlq(
    broker: Broker,
    message: MessageExtBrokerInner,
    max_reconsume_times: int | None,
    version: int,
) -> None:
    """Turns a message that is sent to %RETRY%group into a dead letter if it has been tried too often.

    Orderly consumers send their retries like this. While the group holds the lock of any queue it is a dead letter at
    once, as such a consumer has retried in place before. ResponseError if the group may not exist.
    """
    group = message.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    group_config = broker.subscription_group_manager.existing_group(group)
    retry_max_times = _retry_max_times(group_config, max_reconsume_times, version)
    is_ordered = not broker.rebalance_lock_manager.is_lock_all_expired(group)
    if message.reconsume_times > retry_max_times or is_ordered:
        message.topic = _create_dlq_topic(broker, group)
        message.queue_id = 0
        message.properties[PROPERTY_DELAY_TIME_LEVEL] = "-1"
        broker.broker_stats_manager.add(
            DLQ_PUT_NUMS, f"{message.properties.get(PROPERTY_RETRY_TOPIC, '')}@{group}", 1
        )


def _retry_max_times(config: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """The maximum of tries: the consumer's, if its version sends one, else the group's."""
    return asked if asked is not None and version >= Version.V3_4_9 else config.retry_max_times


def _create_dlq_topic(broker: Broker, group: str) -> str:
    topic = DLQ_GROUP_TOPIC_PREFIX + group
    broker.topic_config_manager.create_topic_in_send_message_back_method(
        topic, DLQ_NUMS_PER_GROUP, PERM_READ_WRITE, 0
    )
    return topic


def _stored_again(
    message: MessageExt, topic: str, queue_id: int, store_host: tuple[str, int]
) -> MessageExtBrokerInner:
    properties = message.properties
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
    properties.pop(PROPERTY_WAIT_STORE_MSG_OK, None)
    return MessageExtBrokerInner(
        topic,
        message.body,
        flag=message.flag,
        properties=properties,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=store_host,
        reconsume_times=message.reconsume_times + 1,
    )
