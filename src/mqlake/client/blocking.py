"""The client for programs without an event loop: the same classes, whose methods wait.

    with Producer("group", "127.0.0.1:9876") as producer:
        result = producer.send(Message("T", b"body"))
        futures = [producer.send_async(Message("T", b"%d" % i)) for i in range(1000)]

One event loop in a background thread serves all of them in a process; they may be used from any thread. What the
asyncio classes say of a method holds here too. Listeners of a PushConsumer are plain functions, called in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from mqlake.client import admin as _admin
from mqlake.client.api.broker_api import TIME_MAX
from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.client_base import ClientBase
from mqlake.client.config import ClientConfig
from mqlake.client.consume import pull_consumer as _pull
from mqlake.client.consume import push_consumer as _push
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult
from mqlake.client.consume.pull_consumer import POLL_MAX
from mqlake.client.consume.subscription import SUB_ALL, MessageSelector
from mqlake.client.produce import producer as _producer
from mqlake.client.produce import transaction_producer as _transaction
from mqlake.client.produce.producer import MessageQueueSelector, ProducerConfig
from mqlake.client.produce.transaction_producer import (
    LocalTransactionState,
    TransactionListener,
    TransactionSendResult,
)
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullResult, SendResult
from mqlake.message import Message, MessageExt
from mqlake.remoting.bodies.admin import (
    ConsumerConnection,
    ConsumeStats,
    SubscriptionGroupConfig,
    TopicStatsTable,
)
from mqlake.remoting.bodies.route import ClusterInfo, TopicRouteData
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.loop import loop_factory

T = TypeVar("T")
Part = TypeVar("Part", bound=ClientBase)

BlockingListener = Callable[[list[MessageClientExt], ConsumeContext], ConsumeResult | None]


class _LoopThread:
    """The event loop, running in its thread from the first use to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = (loop_factory() or asyncio.new_event_loop)()
                threading.Thread(target=self._loop.run_forever, name="mqlake-client", daemon=True).start()
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits for it any more
            raise

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """A plain function, on the loop's thread."""

        async def work() -> T:
            return function(*args, **options)

        return self.run(work())


_thread = _LoopThread()


class _Blocking(Generic[Part]):
    def __init__(self, make: Callable[[], Part]) -> None:
        self._part = _thread.call(make)

    @property
    def group(self) -> str:
        return self._part.group

    def start(self) -> None:
        """Has to come before anything else; `with` does it."""
        _thread.run(self._part.start())

    def close(self) -> None:
        """Stops and tells the brokers. A second close does nothing."""
        _thread.run(self._part.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Producer(_Blocking[_producer.Producer]):
    def __init__(self, group: str, where: ClientConfig | str, config: ProducerConfig | None = None) -> None:
        super().__init__(lambda: _producer.Producer(group, where, config))

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return _thread.run(self._part.send(message, queue=queue, selector=selector, timeout_s=timeout_s))

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Does not wait: the future has the result. Any number may be under way."""
        return _thread.submit(self._part.send(message, queue=queue, selector=selector, timeout_s=timeout_s))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> None:
        _thread.run(self._part.send_oneway(message, queue=queue, selector=selector))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return _thread.run(
            self._part.send_batch(messages, queue=queue, selector=selector, timeout_s=timeout_s)
        )

    def request(
        self,
        message: Message,
        *,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> MessageExt:
        return _thread.run(self._part.request(message, selector=selector, timeout_s=timeout_s))

    def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        return _thread.run(self._part.fetch_publish_message_queues(topic))


class TransactionMQProducer(_Blocking[_transaction.TransactionMQProducer]):
    def __init__(
        self,
        group: str,
        where: ClientConfig | str,
        listener: TransactionListener,
        config: ProducerConfig | None = None,
        *,
        topics: Iterable[str] = (),
    ) -> None:
        super().__init__(
            lambda: _transaction.TransactionMQProducer(group, where, listener, config, topics=topics)
        )

    def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> TransactionSendResult:
        return _thread.run(
            self._part.send_message_in_transaction(
                message, arg, queue=queue, selector=selector, timeout_s=timeout_s
            )
        )

    def send_half_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return _thread.run(
            self._part.send_half_message(message, queue=queue, selector=selector, timeout_s=timeout_s)
        )

    def end_transaction(
        self, sent: SendResult, state: LocalTransactionState, *, timeout_s: float | None = None
    ) -> None:
        _thread.run(self._part.end_transaction(sent, state, timeout_s=timeout_s))


class PushConsumer(_Blocking[_push.PushConsumer]):
    def __init__(
        self,
        group: str,
        where: ClientConfig | str,
        listener: BlockingListener,
        config: ConsumerConfig | None = None,
        *,
        orderly: bool = False,
    ) -> None:
        super().__init__(lambda: _push.PushConsumer(group, where, listener, config, orderly=orderly))

    def subscribe(self, topic: str, selector: MessageSelector | str = SUB_ALL) -> None:
        _thread.call(self._part.subscribe, topic, selector)

    def unsubscribe(self, topic: str) -> None:
        _thread.call(self._part.unsubscribe, topic)

    def suspend(self) -> None:
        _thread.call(self._part.suspend)

    def resume(self) -> None:
        _thread.call(self._part.resume)


class PullConsumer(_Blocking[_pull.PullConsumer]):
    def __init__(self, group: str, where: ClientConfig | str, config: ConsumerConfig | None = None) -> None:
        super().__init__(lambda: _pull.PullConsumer(group, where, config))

    def subscribe(self, topic: str, selector: MessageSelector | str = SUB_ALL) -> None:
        _thread.call(self._part.subscribe, topic, selector)

    def unsubscribe(self, topic: str) -> None:
        _thread.call(self._part.unsubscribe, topic)

    def assign(
        self,
        queues: Iterable[MessageQueue],
        selector: MessageSelector | str | None = None,
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        _thread.run(self._part.assign(queues, selector, offsets=offsets))

    def assignment(self) -> set[MessageQueue]:
        return _thread.call(self._part.assignment)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        return _thread.run(self._part.fetch_message_queues(topic))

    def poll(self, timeout_s: float = 5.0, max_messages: int = POLL_MAX) -> list[MessageClientExt]:
        return _thread.run(self._part.poll(timeout_s, max_messages))

    def __iter__(self) -> Self:
        """One message after the other, until the consumer is closed."""
        return self

    def __next__(self) -> MessageClientExt:
        message = _thread.run(self._part.next_message())
        if message is None:
            raise StopIteration
        return message

    def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, suspend_s: float = 0.0
    ) -> PullResult:
        return _thread.run(self._part.pull(queue, offset, max_messages, suspend_s=suspend_s))

    def position(self, queue: MessageQueue) -> int:
        return _thread.call(self._part.position, queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        _thread.run(self._part.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        _thread.run(self._part.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        _thread.run(self._part.seek_to_end(queue))

    def begin_offset(self, queue: MessageQueue) -> int:
        return _thread.run(self._part.begin_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return _thread.run(self._part.max_offset(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: int) -> int:
        return _thread.run(self._part.offset_for_timestamp(queue, timestamp))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        _thread.call(self._part.pause, list(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        _thread.call(self._part.resume, list(queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        _thread.run(self._part.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        return _thread.run(self._part.committed(queue))


class Admin:
    def __init__(self, where: ClientConfig | str = DEFAULT_ADDRESS) -> None:
        self._admin = _thread.call(_admin.Admin, where)

    def close(self) -> None:
        _thread.run(self._admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, question: Callable[[_admin.Admin], Awaitable[T]]) -> T:
        """Whatever has no method here: `admin.ask(lambda a: a.brokers.get_broker_config(address))`."""

        async def work() -> T:
            return await question(self._admin)

        return _thread.run(work())

    def examine_broker_cluster_info(self) -> ClusterInfo:
        return _thread.run(self._admin.examine_broker_cluster_info())

    def fetch_all_topic_list(self) -> set[str]:
        return _thread.run(self._admin.fetch_all_topic_list())

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        cluster: str | None = None,
        perm: int = 6,
        order: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> list[_admin.Broker]:
        return _thread.run(
            self._admin.create_topic(
                topic, queues=queues, cluster=cluster, perm=perm, order=order, attributes=attributes
            )
        )

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        _thread.run(self._admin.delete_topic(topic, cluster))

    def topic_exists(self, topic: str) -> bool:
        return _thread.run(self._admin.topic_exists(topic))

    def examine_topic_route_info(self, topic: str) -> TopicRouteData:
        return _thread.run(self._admin.examine_topic_route_info(topic))

    def examine_topic_stats(self, topic: str) -> TopicStatsTable:
        return _thread.run(self._admin.examine_topic_stats(topic))

    def create_subscription_group(
        self, config: SubscriptionGroupConfig, cluster: str | None = None
    ) -> list[_admin.Broker]:
        return _thread.run(self._admin.create_subscription_group(config, cluster))

    def delete_subscription_group(
        self, group: str, cluster: str | None = None, *, clean_offset: bool = False
    ) -> None:
        _thread.run(self._admin.delete_subscription_group(group, cluster, clean_offset=clean_offset))

    def examine_consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        return _thread.run(self._admin.examine_consume_stats(group, topic))

    def examine_consumer_connection_info(self, group: str) -> ConsumerConnection:
        return _thread.run(self._admin.examine_consumer_connection_info(group))

    def reset_offset_by_timestamp(
        self, topic: str, group: str, timestamp: int, *, is_force: bool = True
    ) -> dict[MessageQueue, int]:
        return _thread.run(self._admin.reset_offset_by_timestamp(topic, group, timestamp, is_force=is_force))

    def query_message(
        self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = TIME_MAX
    ) -> list[MessageExt]:
        return _thread.run(self._admin.query_message(topic, key, max_num, begin, end))

    def view_message(self, topic: str | None, message_id: str) -> MessageExt:
        return _thread.run(self._admin.view_message(topic, message_id))
