"""Producer: sends messages, in every way RocketMQ's DefaultMQProducer does.

    async with Producer("group", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("T", b"body", tags="a", keys="k"))

Any number of sends may be made at the same time. They share a connection for each broker; some are in flight and the
others wait for their turn (`turns`), and those that come while others are in flight travel in batches where that makes
no difference (`accumulate`). They may be stored in any order: what must come after something is sent when that is
acknowledged. The time of a send begins when it is its turn, however many there are.

A send that fails is tried on another broker, three times in all; since a broker may have stored a message although
its answer got lost, a message may then be stored twice, under the same UNIQ_KEY. A queue that the caller chooses is
tried once: only the caller knows what may come before what.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mqlake.base.arguments import checked, checked_function
from mqlake.base.clock import now_ms
from mqlake.base.single_flight import SingleFlight
from mqlake.client.client_base import ClientBase, Where
from mqlake.client.hooks import MessageCreatedHook, SendMessageContext, SendMessageHook, call_hooks
from mqlake.client.namespace import with_namespace
from mqlake.client.produce.accumulate import ProduceAccumulator
from mqlake.client.produce.backpressure import Turns
from mqlake.client.produce.fault_strategy import MQFaultStrategy
from mqlake.client.produce.request_reply import Requests, is_reply
from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult, SendStatus
from mqlake.client.routes import TopicPublishInfo, writable_queues
from mqlake.errors import (
    BrokerNotFoundError,
    ConfigError,
    IllegalTopicError,
    MessageError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    RemotingError,
    ResponseError,
    SendError,
    TopicNotFoundError,
)
from mqlake.formats.batch import encode_messages
from mqlake.formats.compression import COMPRESSION_NAMES, DEFAULT_LEVEL, compress_body
from mqlake.formats.record import PROPERTIES_LENGTH_MAX
from mqlake.message import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    NOT_ALLOWED_SEND_TOPICS,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    RETRY_GROUP_TOPIC_PREFIX,
    Message,
    MessageExt,
    MessageSysFlag,
    check_types,
    create_uniq_id,
    java_hash,
    properties_to_string,
    validate_topic,
)
from mqlake.message.recall import decode_recall_handle
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import (
    CheckTransactionStateRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS

logger = logging.getLogger(__name__)

MessageQueueSelector = Callable[[list[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""

RETRY_RESPONSE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which another broker may say yes."""
COMPRESS_IN_THREAD_FROM = 256 * 1024
"""Bytes; a longer body is compressed beside the event loop."""
WAITED_WORTH_SAYING_S = 0.1
NEVER_IN_BATCHES = frozenset(
    {
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_INNER_MULTI_DISPATCH,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TRANSACTION_PREPARED,
    }
)
"""Properties of messages that brokers take one by one."""
_SEND_STATUS = {status.value: status for status in SendStatus}


@checked
@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """How a producer sends. Names and values are those of RocketMQ's DefaultMQProducer.

    send_msg_timeout_s: seconds for a send with all its tries, from its turn on.
    retry_times_when_send_failed: tries after the first; for sends with `queue=` or `selector=` there are none.
    retry_another_broker_when_not_store_ok: another broker is tried also when the message is stored but not SEND_OK.
    send_latency_fault_enable: brokers that were slow or failed are left out for a while (RocketMQ's MQFaultStrategy).
    compress_msg_body_over_howmuch: bytes; shorter bodies are sent as they are, and so are those that do not shrink.
    compress_type: ZLIB, LZ4 or ZSTD.
    compress_level: 1 (fast) to 9 (small), of ZLIB and ZSTD.
    max_message_size: bytes of a body, or of a whole batch; brokers have such a limit as well.
    allow_empty_body: messages without a body are sent, as what deletes a key in a table of latest rows. mqlake's
        brokers take them, RocketMQ's only within `send_batch`.
    auto_batch: single sends that come at the same time travel as batches. (RocketMQ has it off.)
    batch_max_bytes: bytes of such a batch.
    back_pressure_for_async_send_num: sends in flight; more wait for their turn. (RocketMQ's default is 1024.)
    back_pressure_for_async_send_size: bytes of the bodies in flight, likewise. (RocketMQ's default is 100 MiB.)
    create_topic_key: the topic that a new one is made like, where brokers make topics by themselves.
    default_topic_queue_nums: queues of a topic that is made so.
    send_message_hooks: called around each try, see `mqlake.client.hooks`.
    """

    send_msg_timeout_s: float = field(default_factory=lambda: DEFAULT_TIMEOUTS.request_s)
    retry_times_when_send_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    send_latency_fault_enable: bool = False
    compress_msg_body_over_howmuch: int = 4096
    compress_type: str = "ZLIB"
    compress_level: int = DEFAULT_LEVEL
    max_message_size: int = 4 << 20
    allow_empty_body: bool = False
    auto_batch: bool = True
    batch_max_bytes: int = 32 * 1024
    back_pressure_for_async_send_num: int = 256
    back_pressure_for_async_send_size: int = 32 << 20
    create_topic_key: str = AUTO_CREATE_TOPIC_KEY_TOPIC
    default_topic_queue_nums: int = 4
    send_message_hooks: Sequence[SendMessageHook] = ()

    def __post_init__(self) -> None:
        if self.compress_type not in COMPRESSION_NAMES:
            raise ConfigError(
                f"compress_type is {self.compress_type!r}: it can be {', '.join(sorted(COMPRESSION_NAMES))}"
            )


@checked_function
def select_by_hash(key: str) -> MessageQueueSelector:
    """Messages with equal keys go to the same queue, as with RocketMQ's SelectMessageQueueByHash."""
    hashed = java_hash(key)

    def select(queues: list[MessageQueue], _: Message) -> MessageQueue:
        return queues[abs(hashed) % len(queues)]

    return select


def is_busy(error: SendError) -> bool:
    """True if the broker that was asked last was too busy: it has stored nothing, so the send may be made again.

    A send with a selector is tried once, so nothing of it is stored then, and what follows keeps its order.
    """
    return error.code == ResponseCode.SYSTEM_BUSY


@checked
class Producer(ClientBase):
    """Sends messages. `where`: a name server's host:port (several with `;` between), a ClientConfig, or a client that
    is shared with others. Use it in an `async with`."""

    def __init__(self, group: str, where: Where, config: ProducerConfig | None = None) -> None:
        super().__init__(group, where)
        self.config = config or ProducerConfig()
        self._published: dict[str, tuple[object, TopicPublishInfo]] = {}
        """Topic → its route and what was made of it."""
        self._faults = MQFaultStrategy() if self.config.send_latency_fault_enable else None
        self._requests = Requests()
        self._found_route = SingleFlight(self._find_route)
        self._message_created = [
            hook.message_created
            for hook in self.config.send_message_hooks
            if isinstance(hook, MessageCreatedHook)
        ]
        self._turns = Turns(
            self.config.back_pressure_for_async_send_num, self.config.back_pressure_for_async_send_size
        )
        self._accumulator = (
            ProduceAccumulator(self._send_accumulated, self.config.batch_max_bytes)
            if self.config.auto_batch
            else None
        )

    async def _start(self) -> None:
        self.client.register_producer(self)

    async def _stop(self) -> None:
        if self.client.producer_table.get(self.group) is self:
            await self.client.unregister(producer_group=self.group)

    def topics(self) -> set[str]:
        return set(self._published)

    # --- sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends one message; it gets a UNIQ_KEY when it has none.

        It goes to `queue`, or to the one that `selector` chooses, or to the next in turn. `timeout_s` (of
        `send_msg_timeout_s` without it) begins when it is its turn. Raises MessageError
        subclasses for a message that cannot be sent, SendError when it was not stored, TopicNotFoundError and
        NoNameServerError if there is nowhere to send it.
        """
        self._check_running()
        self._check(message)
        if (
            self._accumulator is not None
            and selector is None
            and timeout_s is None
            and self._fits_batch(message)
        ):
            if queue is not None:
                return await self._accumulator.send(message, queue, fixed=True)
            info = await self.fetch_publish_info(self._full_topic(message))
            first = self._select(info, None, message, frozenset())
            return await self._accumulator.send(message, first, fixed=False)
        return await self._send_one(message, 0, queue, selector, timeout_s)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> None:
        """Sends one message without waiting for an answer. It may be lost."""
        self._check_running()
        self._check(message)
        topic = self._full_topic(message)
        body, sys_flag = await self._compressed(message.body)
        outgoing = _Outgoing(topic, message, body, sys_flag, batch=None)
        info = await self.fetch_publish_info(topic)
        chosen = queue or self._select(info, selector, message, frozenset())
        address = self.client.find_broker_address_in_publish(self.client.broker_name_of(chosen))
        try:
            with self._hooked(outgoing, chosen, address):
                await self.client.remoting.invoke_oneway(address, self._request(outgoing, chosen))
        except RemotingError as error:
            self.client.refresh_soon(topic)
            raise SendError(message.topic, None, [(chosen.broker_name, str(error))]) from error

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends messages of one topic as one: all of them are stored, in order in one queue, or none.

        Not with a delay, not to a retry topic, not more bytes than `max_message_size`.
        """
        self._check_running()
        if not messages:
            raise MessageError("the batch is empty")
        first = messages[0]
        for message in messages:
            self._check(message)
            if message.topic != first.topic:
                raise MessageError(f"a batch has one topic, not {first.topic} and {message.topic}")
            if message.wait_store_msg_ok != first.wait_store_msg_ok:
                raise MessageError("a batch waits for the store (WAIT) with all its messages or with none")
            if PROPERTY_DELAY_TIME_LEVEL in message.properties:
                raise MessageError("messages with a delay cannot be sent in a batch")
        if first.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise MessageError("messages for a retry topic cannot be sent in a batch")
        return await self._send(self._batch(messages), queue, selector, timeout_s)

    def _batch(self, messages: Sequence[Message]) -> _Outgoing:
        """Messages that were checked, as one."""
        first = messages[0]
        for message in messages:
            _check_separators(properties_to_string(message.properties), message)
        blob = encode_messages(messages)
        self._check_size(len(blob), "the batch")
        whole = Message(first.topic, blob)
        if not first.wait_store_msg_ok:
            whole.wait_store_msg_ok = False
        return _Outgoing(self._full_topic(first), whole, blob, 0, batch=messages)

    async def _send_accumulated(
        self, messages: Sequence[Message], queue: MessageQueue, fixed: bool
    ) -> SendResult:
        if len(messages) > 1:
            outgoing = self._batch(messages)
        else:
            (message,) = messages
            outgoing = _Outgoing(self._full_topic(message), message, message.body, 0, batch=None)
        return await (
            self._send(outgoing, queue, None, None)
            if fixed
            else self._send(outgoing, None, None, None, first=queue)
        )

    def _fits_batch(self, message: Message) -> bool:
        return (
            0
            < len(message.body)
            < min(self.config.compress_msg_body_over_howmuch, self.config.batch_max_bytes)
            and NEVER_IN_BATCHES.isdisjoint(message.properties)
            and not message.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            and not is_reply(message)
        )

    async def request(
        self,
        message: Message,
        *,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> MessageExt:
        """Sends a request and waits for the reply of the consumer that gets it. NoReplyError, or as `send`."""
        self._check_running()
        timeout_s = DEFAULT_TIMEOUTS.of(timeout_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        known = with_namespace(self.namespace, message.topic) in self._published
        if not known:
            # a broker pushes replies only to clients that it knows
            await self.fetch_publish_info(with_namespace(self.namespace, message.topic))
            await self.client.send_heartbeat_to_all_brokers()
        correlation_id = self._requests.prepare(message, self.client.client_id, timeout_s)
        try:
            await self.send(message, selector=selector, timeout_s=deadline - loop.time())
            remaining = max(0.0, deadline - loop.time())
            return await self._requests.wait(correlation_id, message.topic, remaining, total_s=timeout_s)
        finally:
            self._requests.forget(correlation_id)

    def reply_arrived(self, header: ReplyMessageRequestHeader, body: bytes) -> bool:
        return self._requests.arrived(header, body)

    async def check_transaction_state(
        self, address: str, header: CheckTransactionStateRequestHeader, message: MessageClientExt
    ) -> None:
        logger.warning(
            "%s asks for transaction %s of group %s; this producer makes none: see TransactionMQProducer",
            address,
            header.transaction_id,
            self.group,
        )

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Cancels a timer message that is not due yet, by the handle in its SendResult; the message's id.

        The broker has then stored that it is cancelled. MessageError for what is no handle; BrokerNotFoundError;
        ResponseError if the broker refuses: its recallMessageEnable is false, or it is too late.
        """
        self._check_running()
        full_topic = with_namespace(self.namespace, topic)
        handle = decode_recall_handle(recall_handle)
        await self.fetch_publish_info(full_topic)
        address = self.client.find_broker_address_in_publish(handle.broker_name)
        header = RecallMessageRequestHeader(
            producer_group=self.group, topic=full_topic, recall_handle=recall_handle, bname=handle.broker_name
        )
        request = RemotingCommand.create_request(RequestCode.RECALL_MESSAGE, header)
        answer = await self.client.remoting.call(address, request, self.config.send_msg_timeout_s)
        return answer.decode_header(RecallMessageResponseHeader).msg_id

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues that may be written. TopicNotFoundError."""
        self._check_running()
        info = await self.fetch_publish_info(with_namespace(self.namespace, topic))
        return list(info.queues)

    # --- the message

    def _check(self, message: Message) -> None:
        check_types(message)
        validate_topic(message.topic)
        if message.topic in NOT_ALLOWED_SEND_TOPICS:
            raise IllegalTopicError(f"topic {message.topic} is the broker's own; clients may not send to it")
        if not message.body and not self.config.allow_empty_body:
            raise MessageError(
                f"topic {message.topic}: the message has no body: RocketMQ's brokers refuse such, mqlake's take them "
                "(ProducerConfig.allow_empty_body, --allow-empty-body)"
            )
        self._check_size(len(message.body), "the body")
        properties = message.properties
        if PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX not in properties:
            properties[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = create_uniq_id()
        if self.namespace:
            properties[PROPERTY_INSTANCE_ID] = self.namespace
        if self._message_created:
            call_hooks(self._message_created, message)

    def _full_topic(self, message: Message) -> str:
        # topics for replies belong to clusters
        return message.topic if is_reply(message) else with_namespace(self.namespace, message.topic)

    def _check_size(self, size: int, what: str) -> None:
        limit = self.config.max_message_size
        if size > limit:
            raise MessageTooLargeError(f"{what} has {size} bytes; max_message_size is {limit}")

    async def _compressed(self, body: bytes) -> tuple[bytes, int]:
        """The body to send, and its system flag."""
        config = self.config
        if len(body) < config.compress_msg_body_over_howmuch:
            return body, 0
        flag = MessageSysFlag.COMPRESSED_FLAG | COMPRESSION_NAMES[config.compress_type]
        if len(body) < COMPRESS_IN_THREAD_FROM:
            packed = compress_body(body, flag, config.compress_level)
        else:
            packed = await asyncio.to_thread(compress_body, body, flag, config.compress_level)
        return (packed, flag) if len(packed) < len(body) else (body, 0)

    # --- the queue

    async def fetch_publish_info(self, topic: str) -> TopicPublishInfo:
        """Returns the queues for messages of the topic (in full). TopicNotFoundError, NoNameServerError."""
        route = self.client.topic_route_table.get(topic)
        published = self._published.get(topic)
        if published is not None and published[0] is route:
            return published[1]
        if route is None:
            route = await self._found_route(topic)
        queues = writable_queues(route, topic)
        if not queues:
            self.client.refresh_soon(topic)
            raise TopicNotFoundError(
                topic, "none of its queues may be written, or its brokers have no master"
            )
        first = topic not in self._published
        info = TopicPublishInfo(queues)
        self._published[topic] = (route, info)
        if first:
            self.client.in_background(self.client.send_heartbeat_to_all_brokers())
        return info

    async def _find_route(self, topic: str) -> TopicRouteData:
        try:
            return await self.client.topic_route(topic)
        except TopicNotFoundError:
            default = await self.client.default_topic_route(
                topic, self.config.create_topic_key, self.config.default_topic_queue_nums
            )
            if default is None:
                raise TopicNotFoundError(
                    topic,
                    "no broker has it, and none makes topics by itself; create it, "
                    "or set autoCreateTopicEnable=true on a broker (code 17)",
                ) from None
            return default

    def _select(
        self,
        info: TopicPublishInfo,
        selector: MessageQueueSelector | None,
        message: Message,
        avoid: frozenset[str],
    ) -> MessageQueue:
        if selector is not None:
            return selector(info.queues, message)
        if self._faults is not None:
            avoid |= self._faults.not_available()
        return info.select_one_message_queue(avoid)

    # --- the request

    async def _send_one(
        self,
        message: Message,
        sys_flag: int,
        queue: MessageQueue | None,
        selector: MessageQueueSelector | None,
        timeout_s: float | None,
    ) -> SendResult:
        """Sends a message that was checked."""
        topic = self._full_topic(message)
        body, compressed = await self._compressed(message.body)
        outgoing = _Outgoing(topic, message, body, sys_flag | compressed, batch=None)
        return await self._send(outgoing, queue, selector, timeout_s)

    async def _send(
        self,
        outgoing: _Outgoing,
        queue: MessageQueue | None,
        selector: MessageQueueSelector | None,
        timeout_s: float | None,
        *,
        first: MessageQueue | None = None,
    ) -> SendResult:
        """`first`: the queue for the first try, where all may be tried."""
        loop = asyncio.get_running_loop()
        called = loop.time()
        await self.fetch_publish_info(outgoing.topic)
        size = len(outgoing.body)
        await self._turns.take(size)
        waited_s, others = loop.time() - called, self._turns.in_flight - 1
        try:
            return await self._send_with_retries(outgoing, queue, selector, timeout_s, first)
        except SendError as error:
            if waited_s >= WAITED_WORTH_SAYING_S or others:
                error.add_wait(waited_s, others)
            raise
        finally:
            self._turns.give_back(size)

    async def _send_with_retries(
        self,
        outgoing: _Outgoing,
        queue: MessageQueue | None,
        selector: MessageQueueSelector | None,
        timeout_s: float | None,
        first: MessageQueue | None,
    ) -> SendResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.config.send_msg_timeout_s if timeout_s is None else timeout_s)
        fixed = queue is not None or selector is not None
        tries = 1 if fixed else 1 + self.config.retry_times_when_send_failed
        tried: list[tuple[str, str]] = []
        last_code: int | None = None
        last_broker: frozenset[str] = frozenset()
        stored: SendResult | None = None
        for _ in range(tries):
            info = await self.fetch_publish_info(outgoing.topic)
            chosen = queue or first or self._select(info, selector, outgoing.message, last_broker)
            first = None
            last_broker = frozenset((chosen.broker_name,))
            remaining = deadline - loop.time()
            if remaining <= 0:
                break
            begun = loop.time()
            try:
                result = await self._send_kernel(outgoing, chosen, remaining)
            except (RemotingError, BrokerNotFoundError) as error:
                if self._faults is not None:
                    self._faults.failed(chosen.broker_name)
                last_code = error.code if isinstance(error, ResponseError) else None
                tried.append((chosen.broker_name, str(error)))
                if last_code is not None and last_code not in RETRY_RESPONSE_CODES:
                    break
                self.client.refresh_soon(outgoing.topic)
                continue
            if self._faults is not None:
                self._faults.succeeded(chosen.broker_name, loop.time() - begun)
            if (
                result.send_status is not SendStatus.SEND_OK
                and self.config.retry_another_broker_when_not_store_ok
            ):
                stored = result
                continue
            return result
        if stored is not None:
            return stored
        if not tried:
            tried.append((next(iter(last_broker), "-"), "the time was over before anything was sent"))
        raise SendError(outgoing.message.topic, last_code, tried)

    async def _send_kernel(self, outgoing: _Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult:
        client = self.client
        leader = client.broker_name_of(queue)
        try:
            return await self._send_to(leader, outgoing, queue, timeout_s)
        except ResponseError as error:
            if error.code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                raise
            await client.update_topic_route(queue.topic)
            if client.broker_name_of(queue) == leader:
                raise
            return await self._send_to(client.broker_name_of(queue), outgoing, queue, timeout_s)

    async def _send_to(
        self, broker_name: str, outgoing: _Outgoing, queue: MessageQueue, timeout_s: float
    ) -> SendResult:
        address = self.client.find_broker_address_in_publish(broker_name)
        if not self.config.send_message_hooks:
            return await self._exchange(outgoing, queue, address, timeout_s)
        with self._hooked(outgoing, queue, address) as context:
            context.send_result = await self._exchange(outgoing, queue, address, timeout_s)
            return context.send_result

    @contextlib.contextmanager
    def _hooked(self, outgoing: _Outgoing, queue: MessageQueue, address: str) -> Iterator[SendMessageContext]:
        """Calls the hooks before and after what is done inside."""
        hooks = self.config.send_message_hooks
        context = SendMessageContext(
            producer_group=self.group,
            message=outgoing.message,
            batch=outgoing.batch,
            message_queue=queue,
            broker_addr=address,
        )
        call_hooks([hook.send_message_before for hook in hooks], context)
        try:
            yield context
        except Exception as error:
            context.exception = error
            raise
        finally:
            call_hooks([hook.send_message_after for hook in hooks], context)

    async def _exchange(
        self, outgoing: _Outgoing, queue: MessageQueue, address: str, timeout_s: float
    ) -> SendResult:
        answer = await self.client.remoting.invoke(address, self._request(outgoing, queue), timeout_s)
        status = _SEND_STATUS.get(answer.code)
        if status is None:
            raise ResponseError(answer.code, answer.remark or "")
        header = answer.decode_header(SendMessageResponseHeader)
        return SendResult(
            status,
            outgoing.msg_id(),
            header.msg_id,
            MessageQueue(
                topic=outgoing.message.topic, broker_name=queue.broker_name, queue_id=header.queue_id
            ),
            header.queue_offset,
            header.transaction_id,
            answer.ext_fields.get("MSG_REGION"),
            header.recall_handle,
        )

    def _request(self, outgoing: _Outgoing, queue: MessageQueue) -> RemotingCommand:
        message, topic = outgoing.message, outgoing.topic
        properties = message.properties
        reconsume_times = max_reconsume_times = None
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            # these two travel in the header
            properties = dict(properties)
            reconsume_times = int(properties.pop(PROPERTY_RECONSUME_TIME, 0))
            text = properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None)
            max_reconsume_times = None if text is None else int(text)
        text = properties_to_string(properties)
        if len(text) > PROPERTIES_LENGTH_MAX or (
            4 * len(text) > PROPERTIES_LENGTH_MAX
            and len(text.encode(errors="replace")) > PROPERTIES_LENGTH_MAX
        ):
            raise PropertiesTooLargeError(
                f"topic {message.topic}: the properties have more than {PROPERTIES_LENGTH_MAX} bytes"
            )
        _check_separators(text, message)
        header = SendMessageRequestHeaderV2(
            producer_group=self.group,
            topic=topic,
            default_topic=self.config.create_topic_key,
            default_topic_queue_nums=self.config.default_topic_queue_nums,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=text,
            reconsume_times=reconsume_times or 0,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            batch=outgoing.batch is not None,
            broker_name=queue.broker_name,
        )
        if outgoing.batch is not None:
            code = RequestCode.SEND_BATCH_MESSAGE
        elif is_reply(message):
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        else:
            code = RequestCode.SEND_MESSAGE_V2
        return RemotingCommand.create_request(code, header, outgoing.body)


def _check_separators(text: str, message: Message) -> None:
    """`text` is the message's properties as they are stored."""
    count = len(message.properties)
    if text.count("\x01") > count or text.count("\x02") > count:
        raise MessageError(
            f"topic {message.topic}: a property holds \\x01 or \\x02, which separate properties from one another"
        )


@dataclass(slots=True)
class _Outgoing:
    """A message to send: `body` is what goes over the wire."""

    topic: str
    """In full, with its namespace."""
    message: Message
    body: bytes
    sys_flag: int
    batch: Sequence[Message] | None

    def msg_id(self) -> str:
        if self.batch is None:
            return self.message.uniq_key or ""
        return ",".join(message.uniq_key or "" for message in self.batch)
