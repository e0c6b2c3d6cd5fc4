"""SendMessageProcessor: 10 SEND_MESSAGE, 310 SEND_MESSAGE_V2, 320 SEND_BATCH_MESSAGE.

    request ─▶ accepted? ─▶ its topic ─▶ retry or dead letter? ─▶ store ─▶ answer

Under ASYNC_FLUSH the answer is ready when the store returns, so all sends of one read are answered by one write.
Under SYNC_FLUSH the answers of all messages that one flush covers follow together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from mqlake.base.disk import DiskSpace
from mqlake.base.net import parse_address
from mqlake.broker.broker import Broker
from mqlake.broker.config import BrokerConfig
from mqlake.broker.flow_control import PC_SYNCHRONIZED, SendFlowControl
from mqlake.broker.mqtrace.contexts import note_result, send_context
from mqlake.broker.mqtrace.hooks import SendMessageContext
from mqlake.broker.requests.send_back import handle_retry_and_dlq
from mqlake.broker.services.error_responses import refusal
from mqlake.broker.state.topic_config import CLEANUP_POLICY, PERM_READ_WRITE
from mqlake.broker.transaction.service import TransactionalMessageService
from mqlake.errors import FormatError, HeaderError, IllegalTopicError, MessageError, ResponseError
from mqlake.formats.batch import ITEM_SIZE_MIN, decode_messages
from mqlake.message import (
    LMQ_PREFIX,
    NOT_ALLOWED_SEND_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    RETRY_GROUP_TOPIC_PREFIX,
    TIMER_TOPIC,
    TOPIC_LENGTH_MAX,
    Host,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
    bytes_to_properties,
    create_message_id,
    ids,
    string_to_properties,
    validate_topic,
)
from mqlake.message.policy import Policy, names_with
from mqlake.message.recall import RecallHandle
from mqlake.remoting.bodies.topic import (
    PERM_WRITE,
    TOPIC_SYS_FLAG_UNIT,
    TOPIC_SYS_FLAG_UNIT_SUB,
    TopicConfig,
    TopicFilterType,
)
from mqlake.remoting.codec import FRAME_SIZE_MAX
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.produce import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqlake.remoting.processors import answers
from mqlake.store.results import PutMessageFuture, PutMessageResult, PutMessageStatus

logger = logging.getLogger(__name__)

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2
_TIMER_PROPERTIES = names_with(Policy.TIMER)
_NO_PRIORITY = frozenset(names_with(Policy.NO_PRIORITY))
_LIGHT_QUEUE_PROPERTIES = names_with(Policy.LIGHT_QUEUE)

ANSWER_REST_MAX = 1 << 20
"""Bytes of an answer apart from the ids of a batch; the longest is a unique key (32 KiB), escaped."""
_HOST = "host"  # the key of the peer's (ip, port) in a connection's attributes
_TRUE = "true"


def born_host(connection: Connection) -> Host:
    """The client's address."""
    host = connection.attributes.get(_HOST)
    if host is None:
        host = connection.attributes[_HOST] = parse_address(connection.remote_address)
    return host  # type: ignore[return-value]


def region_fields(config: BrokerConfig) -> dict[str, str]:
    """The broker's properties in each message and each answer."""
    return {
        PROPERTY_MSG_REGION: config.region_id,
        PROPERTY_TRACE_SWITCH: _TRUE if config.trace_on else "false",
    }


def refused(error: ResponseError, config: BrokerConfig) -> RemotingCommand:
    """The answer to a send that a check has refused. One that has failed, as for a header or a batch that cannot be
    read, is answered without the broker's properties."""
    return refusal(error, region_fields(config))


class SendMessageChecks:
    """RocketMQ's checks of every send, in its order."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic_config(self, connection: Connection, header: SendHeader) -> TopicConfig:
        """The topic of the message, created if that is allowed. ResponseError if the send is refused."""
        broker = self._broker
        config = broker.config
        if config.start_accept_send_request_time_stamp > broker.clock_ms():
            until = time.strftime(
                "%Y-%m-%d %H:%M:%S", time.localtime(config.start_accept_send_request_time_stamp / 1000)
            )
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        topic = header.topic
        topics = broker.topic_config_manager
        topic_config = topics.select_topic_config(topic)
        if not config.broker_permission & PERM_WRITE and topic_config is not None and topic_config.order:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] sending message is forbidden "
                f"(brokerPermission is {config.broker_permission})",
            )
        if topic_config is None or topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(LMQ_PREFIX):
            topic_config = self._find_topic(connection, header)
        queue_nums = max(topic_config.write_queue_nums, topic_config.read_queue_nums)
        if header.queue_id >= queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic {topic} has {queue_nums} queues. "
                f"Producer: {connection.remote_address}",
            )
        return topic_config

    def _find_topic(self, connection: Connection, header: SendHeader) -> TopicConfig:
        topic = header.topic
        try:
            validate_topic(topic)
        except IllegalTopicError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if topic.startswith(LMQ_PREFIX):
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {topic} is a light queue: there are no light queues"
            )
        retry = topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = TOPIC_SYS_FLAG_UNIT_SUB if retry else TOPIC_SYS_FLAG_UNIT
        default_topic, queue_nums = header.default_topic, header.default_topic_queue_nums
        if default_topic is None or queue_nums is None:
            raise HeaderError(
                f"the topic {topic} is new: its send needs defaultTopic and defaultTopicQueueNums"
            )
        topics = self._broker.topic_config_manager
        topic_config = topics.create_topic_in_send_message_method(
            topic, default_topic, connection.remote_address, queue_nums, sys_flag
        )
        if topic_config is None and retry:
            topic_config = topics.create_topic_in_send_message_back_method(
                topic, 1, PERM_READ_WRITE, sys_flag
            )
        if topic_config is None:
            hint = (
                "create it (mqlake admin topic create)"
                if self._broker.config.auto_create_topic_enable
                else "create it (mqlake admin topic create), or set autoCreateTopicEnable=true"
            )
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {hint}"
            )
        return topic_config

    def properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """ResponseError if the message would have to go to light queues. A consumer's retry may have been in some, and
        goes to its group only."""
        for name in _LIGHT_QUEUE_PROPERTIES:
            if name in properties and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                raise ResponseError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message has the property {name}={properties[name][:100]}: there are no light queues and no "
                    "lite topics here, so that it would reach nobody. Send it without the property",
                )

    def properties_in_batch(self, body: bytes | bytearray | memoryview) -> None:
        """As properties(), for those that the messages of a batch have of their own."""
        data = bytes(body)
        if not any(name.encode() in data for name in _LIGHT_QUEUE_PROPERTIES):
            return
        try:
            items = decode_messages(data)
        except FormatError:  # the store refuses it
            return
        for item in items:
            self.properties("", bytes_to_properties(item.properties))

    def queue_id(self, header: SendHeader, topic_config: TopicConfig) -> int:
        """The queue that the client chose, or any if it leaves that to the broker."""
        if header.queue_id >= 0:
            return header.queue_id
        return random.randrange(max(topic_config.write_queue_nums, 1))


class SendMessageProcessor:
    def __init__(self, broker: Broker, transactional_message_service: TransactionalMessageService) -> None:
        self._broker = broker
        self._transactional_message_service = transactional_message_service
        self._checks = SendMessageChecks(broker)
        self.flow_control = SendFlowControl(broker)

    @answers(RequestCode.SEND_MESSAGE)
    def send_message(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        return self._process(connection, request, header)

    @answers((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
    def send_message_v2(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeaderV2
    ) -> Answer | Awaitable[Answer]:
        return self._process(connection, request, header)

    def _process(
        self, connection: Connection, request: RemotingCommand, header: SendHeader
    ) -> Answer | Awaitable[Answer]:
        refusal = self.flow_control.refusal()
        if refusal is not None:
            return refusal
        if self._broker.hooks.send:
            return self._process_with_hooks(connection, request, header)
        try:
            return self._store_message(connection, request, header, None)
        except ResponseError as error:
            return refused(error, self._broker.config)

    def _process_with_hooks(
        self, connection: Connection, request: RemotingCommand, header: SendHeader
    ) -> Answer | Awaitable[Answer]:
        hooks = self._broker.hooks
        context = send_context(self._broker, connection, request, header)
        try:
            hooks.execute_send_message_hook_before(context)
        except ResponseError as error:
            context.code, context.error_msg = error.code, error.remark
            hooks.execute_send_message_hook_after(context)
            raise
        answer: Answer | Awaitable[Answer]
        try:
            answer = self._store_message(connection, request, header, context)
        except ResponseError as error:
            context.code, context.error_msg = error.code, error.remark
            answer = refused(error, self._broker.config)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda _: hooks.execute_send_message_hook_after(context))
        else:
            hooks.execute_send_message_hook_after(context)
        return answer

    def _store_message(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        context: SendMessageContext | None,
    ) -> Answer | Awaitable[Answer]:
        broker = self._broker
        config = broker.config
        topic_config = self._checks.topic_config(connection, header)
        topic = header.topic
        queue_id = self._checks.queue_id(header, topic_config)
        properties = string_to_properties(header.properties or "")
        self._checks.properties(topic, properties)
        properties.pop(PROPERTY_POP_CK, None)
        batch = bool(header.batch)
        if not batch and not properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX):
            properties[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = ids.create_uniq_id()
        properties.update(region_fields(config))
        sys_flag = header.sys_flag
        if topic_config.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= MessageSysFlag.MULTI_TAGS_FLAG
        prepared = False
        if not batch:
            prepared = self._check_kind(header, topic_config, properties)
        properties[PROPERTY_CLUSTER] = config.broker_cluster_name
        if not batch and PROPERTY_PRIORITY in properties and topic_config.attributes:
            queue_id = _queue_by_priority(topic_config, properties, queue_id)
        body = request.body
        message = (MessageExtBatch if batch else MessageExtBrokerInner)(
            topic,
            body if body is not None else b"",  # type: ignore[arg-type]  # a slice: the store copies it
            flag=header.flag,
            properties=properties,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(connection),
            store_host=broker.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
        batch_uniq_id = None
        if PROPERTY_DELAY_TIME_LEVEL in properties:
            _ = message.delay_time_level  # SYSTEM_ERROR if it is no number, as from RocketMQ
        if batch:
            assert isinstance(message, MessageExtBatch)
            batch_uniq_id, future = self._put_batch(message, topic_config)
        else:
            if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                handle_retry_and_dlq(broker, message, header.max_reconsume_times, request.version)
                topic = message.topic
            future = (
                self._transactional_message_service.async_prepare_message(message)
                if prepared
                else broker.store.async_put_message(message)
            )
        uniq_key = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

        def answer() -> RemotingCommand:
            result = future.result()
            if batch and batch_uniq_id is None and _is_unreadable(message, result):
                command = RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, result.reason)
            else:
                command = self.answer(result, queue_id, uniq_key, batch_uniq_id)
            if message.topic == TIMER_TOPIC and result.status in STORED and not batch:
                self._add_recall_handle(command, message)
            if context is not None:
                context.code, context.error_msg = command.code, command.remark or ""
                note_result(context, result, queue_id)
            return command

        unsettled = broker.topic_config_manager.unsettled
        if future.done() and not (unsettled and topic in unsettled):
            return answer()
        return self._answer_later(future, topic, answer)

    def _add_recall_handle(self, answer: RemotingCommand, message: MessageExtBrokerInner) -> None:
        """Adds the handle by which the sender of a timer message can cancel it."""
        properties = message.properties
        topic, out = properties.get(PROPERTY_REAL_TOPIC), properties.get(PROPERTY_TIMER_OUT_MS)
        if topic and out and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            uniq_key = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
            name = self._broker.config.broker_name
            answer.ext_fields["recallHandle"] = RecallHandle(topic, name, int(out) + 1, uniq_key).encode()

    # --- before the store

    def _check_kind(self, header: SendHeader, topic_config: TopicConfig, properties: dict[str, str]) -> bool:
        """Refuses messages that need what this topic, or this broker, does not have. Returns True for a half
        message of a transaction."""
        config = self._broker.config
        if (
            topic_config.attributes
            and topic_config.attributes.get(CLEANUP_POLICY) == "COMPACTION"
            and not properties.get(PROPERTY_KEYS, "").strip()
        ):
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
        delayed = PROPERTY_DELAY_TIME_LEVEL in properties
        # a consumer's retry of a committed message still has the property
        retried = delayed and (header.reconsume_times or 0) > 0
        prepared = not retried and properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == _TRUE
        flagged = (
            MessageSysFlag.transaction_value(header.sys_flag) == MessageSysFlag.TRANSACTION_PREPARED_TYPE
        )
        if flagged and not prepared and not retried:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                "sysFlag says that the message is prepared, and the property TRAN_MSG=true is missing",
            )
        if prepared:
            if config.reject_transaction_message:
                raise ResponseError(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{config.broker_ip1}] sending transaction message is forbidden "
                    "(rejectTransactionMessage=true)",
                )
            if delayed:
                raise ResponseError(
                    ResponseCode.MESSAGE_ILLEGAL, "a transactional message cannot be delayed (DELAY)"
                )
            if not properties.keys().isdisjoint(_TIMER_PROPERTIES):
                raise ResponseError(
                    ResponseCode.MESSAGE_ILLEGAL, "a transactional message cannot be delayed (TIMER_*)"
                )
        return prepared

    def _put_batch(
        self, batch: MessageExtBatch, topic_config: TopicConfig
    ) -> tuple[str | None, PutMessageFuture]:
        """Many messages as records of their own, or as one record if the topic keeps inner batches. Also returns the
        inner batch's unique key."""
        topic = batch.topic
        if len(topic) > TOPIC_LENGTH_MAX:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic)}")
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
            )
        if not batch.body:
            raise MessageError("the batch is empty")
        self._checks.properties_in_batch(batch.body)
        store = self._broker.store
        uniq_key = batch.uniq_key
        if uniq_key is None or not self._broker.topic_config_manager.is_batch_topic(topic):
            self._check_answer_fits(batch)
            return None, store.async_put_messages(batch)
        count = _count(batch)
        batch.sys_flag |= MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
        batch.properties[PROPERTY_INNER_NUM] = str(count)
        return uniq_key, store.async_put_message(batch)

    def _check_answer_fits(self, batch: MessageExtBatch) -> None:
        """Refuses a batch whose answer, an id for each message, would not fit into a frame: its sender would get
        no answer and send the stored batch again."""
        id_size = 1 + len(create_message_id(batch.store_host, 0))
        count_max = (FRAME_SIZE_MAX - ANSWER_REST_MAX) // id_size
        if len(batch.body) // ITEM_SIZE_MIN <= count_max:
            return
        count = _count(batch)
        if count > count_max:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch of {count} messages: an answer has room for the ids of {count_max}",
            )

    # --- after the store

    def _answer_later(
        self,
        put: PutMessageFuture,
        topic: str,
        answer: Callable[[], RemotingCommand],
    ) -> asyncio.Future[Answer]:
        """The answer when the message is on disk, and also its topic if this send created it."""
        loop = asyncio.get_running_loop()
        later: asyncio.Future[Answer] = loop.create_future()

        def settled(_: object = None) -> None:
            if not later.done():
                later.set_result(answer())

        def stored() -> None:
            unsettled = self._broker.topic_config_manager.unsettled.get(topic)
            if unsettled is None:
                settled()
            else:
                unsettled.add_done_callback(settled)

        put.add_loop_callback(loop, stored)
        return later

    def answer(
        self,
        result: PutMessageResult,
        queue_id: int,
        uniq_key: str | None,
        batch_uniq_id: str | None = None,
    ) -> RemotingCommand:
        fields = region_fields(self._broker.config)
        if batch_uniq_id is not None:
            fields["batchUniqId"] = batch_uniq_id
        appended = result.append_result
        code = STORED.get(result.status)
        if code is None or appended is None:
            code, remark = self._failure(result)
            return RemotingCommand(code, flag=RESPONSE_FLAG, remark=remark, ext_fields=fields)
        fields["msgId"] = appended.msg_id or ""
        fields["queueId"] = str(queue_id)
        fields["queueOffset"] = str(appended.logics_offset)
        if uniq_key is not None:
            fields["transactionId"] = uniq_key
        return RemotingCommand(code, flag=RESPONSE_FLAG, remark=result.reason or None, ext_fields=fields)

    def _failure(self, result: PutMessageResult) -> tuple[ResponseCode, str]:
        """Code and remark for a message that was not stored: RocketMQ's words, then the measured figures."""
        store_config = self._broker.store_config
        status, reason = result.status, result.reason
        if status is PutMessageStatus.OS_PAGECACHE_BUSY:
            return ResponseCode.SYSTEM_BUSY, f"{PC_SYNCHRONIZED}: page cache: {reason}"
        if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now: {reason} [{disk_text(store_config.commit_log_dir)}]",
            )
        if status is PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL:
            return ResponseCode.MESSAGE_ILLEGAL, reason
        if status in (PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL, PutMessageStatus.WHEEL_TIMER_NOT_ENABLE):
            return ResponseCode.SYSTEM_ERROR, reason
        if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
            return ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {reason}"
        if status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED:
            return (
                ResponseCode.SYSTEM_ERROR,
                (
                    f"create mapped file failed, server is busy or broken: {reason} "
                    f"[{disk_text(store_config.commit_log_dir)}]"
                ),
            )
        return ResponseCode.SYSTEM_ERROR, f"{status.name}: {reason}"


def _count(batch: MessageExtBatch) -> int:
    """Returns the number of messages in a batch. FormatError if it is damaged."""
    return len(decode_messages(batch.body))


def _is_unreadable(batch: MessageExtBrokerInner, result: PutMessageResult) -> bool:
    """True if the records of a batch could not be made of it: RocketMQ fails there, it does not refuse."""
    return (
        result.status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
        and not batch.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
        and batch.delay_time_level <= 0
    )


STORED: dict[PutMessageStatus, ResponseCode] = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""Statuses of messages that are in the log, and the response codes."""


def disk_text(path: str) -> str:
    """How full the disk of a directory is, for a remark."""
    try:
        return f"disk: {DiskSpace.of(path)}"
    except OSError as error:
        return f"disk: {error.strerror}"


def _queue_by_priority(topic_config: TopicConfig, properties: dict[str, str], queue_id: int) -> int:
    """In a topic with message.type=PRIORITY the queue is the message's priority; pop begins with the highest. A message
    that is delayed, ordered or in a transaction has none (RocketMQ 5.4)."""
    if (topic_config.attributes or {}).get("message.type") != "PRIORITY":
        return queue_id
    if not _NO_PRIORITY.isdisjoint(properties) or not properties[PROPERTY_PRIORITY].isdecimal():
        del properties[PROPERTY_PRIORITY]
        return queue_id
    return min(int(properties[PROPERTY_PRIORITY][:9]), max(topic_config.write_queue_nums - 1, 0))
