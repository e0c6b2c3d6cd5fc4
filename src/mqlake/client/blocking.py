"""The client for programs without an event loop: the same classes, whose methods wait.

    with Producer("group", "127.0.0.1:9876") as producer:
        result = producer.send(Message("T", b"body"))
        futures = [producer.send_async(Message("T", b"%d" % i)) for i in range(1000)]

One event loop in a background thread serves all of them in a process; they may be used from any thread. Methods have
the signatures and docstrings of the asyncio classes. Listeners of a PushConsumer are functions, called in threads.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from mqlake.client import admin as _admin
from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.client_base import ClientBase
from mqlake.client.config import ClientConfig
from mqlake.client.consume import pull_consumer as _pull
from mqlake.client.consume import push_consumer as _push
from mqlake.client.consume import simple_consumer as _simple
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult
from mqlake.client.loop_thread import LOOP_THREAD
from mqlake.client.produce import producer as _producer
from mqlake.client.produce import transaction_producer as _transaction
from mqlake.client.produce.producer import MessageQueueSelector, ProducerConfig
from mqlake.client.produce.transaction_producer import (
    TransactionListener,
)
from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult
from mqlake.message import Message
from mqlake.remoting.bodies.topic import MessageQueue

T = TypeVar("T")
P = ParamSpec("P")
Inner = TypeVar("Inner")
AnyClient = TypeVar("AnyClient", bound=ClientBase)

BlockingListener = Callable[[list[MessageClientExt], ConsumeContext], ConsumeResult | None]
"""A listener of a PushConsumer: see there."""


def _waiting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Inner], P], T]:
    """A coroutine method of the asyncio class, as one that waits for the result."""

    @functools.wraps(method)
    def call(self: Blocking[Inner], /, *args: P.args, **options: P.kwargs) -> T:
        return LOOP_THREAD.run(method(self._inner, *args, **options))

    return call


def _called(method: Callable[Concatenate[Inner, P], T]) -> Callable[Concatenate[Blocking[Inner], P], T]:
    """A method of the asyncio class that does not wait, called on the loop's thread."""

    @functools.wraps(method)
    def call(self: Blocking[Inner], /, *args: P.args, **options: P.kwargs) -> T:
        return LOOP_THREAD.call(method, self._inner, *args, **options)

    return call


class Blocking(Generic[Inner]):
    """An object of an asyncio class, made and used on the loop's thread."""

    def __init__(self, make: Callable[[], Inner]) -> None:
        self._inner = LOOP_THREAD.call(make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """`with` does it at its end."""
        raise NotImplementedError


class _Client(Blocking[AnyClient]):
    @property
    def group(self) -> str:
        """Without the namespace."""
        return self._inner.group

    def start(self) -> None:
        """Has to come before anything else; `with` does it."""
        LOOP_THREAD.run(self._inner.start())

    def close(self) -> None:
        """Stops and unregisters from the brokers. A second close does nothing."""
        LOOP_THREAD.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self


class Producer(_Client[_producer.Producer]):
    """Sends messages; `send` waits for the broker's answer, `send_async` returns a future of it.

    `where`: a name server's host:port (several with `;` between) or a ClientConfig. Use it in a `with`.
    """

    def __init__(self, group: str, where: ClientConfig | str, config: ProducerConfig | None = None) -> None:
        super().__init__(lambda: _producer.Producer(group, where, config))

    send = _waiting(_producer.Producer.send)
    send_oneway = _waiting(_producer.Producer.send_oneway)
    send_batch = _waiting(_producer.Producer.send_batch)
    request = _waiting(_producer.Producer.request)
    recall_message = _waiting(_producer.Producer.recall_message)
    fetch_publish_message_queues = _waiting(_producer.Producer.fetch_publish_message_queues)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Does not wait: the future has the result. Any number may be in flight."""
        return LOOP_THREAD.submit(
            self._inner.send(message, queue=queue, selector=selector, timeout_s=timeout_s)
        )


class TransactionMQProducer(_Client[_transaction.TransactionMQProducer]):
    """Sends messages that consumers get when the listener has said that the transaction is committed. The listener's
    methods are called in threads. `where` as for Producer. Use it in a `with`."""

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

    send_message_in_transaction = _waiting(_transaction.TransactionMQProducer.send_message_in_transaction)
    send_half_message = _waiting(_transaction.TransactionMQProducer.send_half_message)
    end_transaction = _waiting(_transaction.TransactionMQProducer.end_transaction)


class PushConsumer(_Client[_push.PushConsumer]):
    """Calls a listener, in threads, with the messages of its group's share of queues, while the `with` lasts.

    The listener gets a list of MessageClientExt and a ConsumeContext. None or ConsumeResult.SUCCESS means consumed;
    ConsumeResult.LATER or an exception means that the messages come again. `orderly`: one call at a time for each
    queue, in its order. `where` as for Producer.
    """

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

    subscribe = _called(_push.PushConsumer.subscribe)
    unsubscribe = _called(_push.PushConsumer.unsubscribe)
    suspend = _called(_push.PushConsumer.suspend)
    resume = _called(_push.PushConsumer.resume)


class PullConsumer(_Client[_pull.PullConsumer]):
    """Returns messages (MessageClientExt) when it is polled, or one after the other in a `for`; of queues of one's
    choice (`assign`) or of its group's share (`subscribe`). `where` as for Producer. Use it in a `with`."""

    def __init__(self, group: str, where: ClientConfig | str, config: ConsumerConfig | None = None) -> None:
        super().__init__(lambda: _pull.PullConsumer(group, where, config))

    subscribe = _called(_pull.PullConsumer.subscribe)
    unsubscribe = _called(_pull.PullConsumer.unsubscribe)
    assign = _waiting(_pull.PullConsumer.assign)
    assignment = _called(_pull.PullConsumer.assignment)
    fetch_message_queues = _waiting(_pull.PullConsumer.fetch_message_queues)
    poll = _waiting(_pull.PullConsumer.poll)
    pull = _waiting(_pull.PullConsumer.pull)
    position = _called(_pull.PullConsumer.position)
    seek = _waiting(_pull.PullConsumer.seek)
    seek_to_begin = _waiting(_pull.PullConsumer.seek_to_begin)
    seek_to_end = _waiting(_pull.PullConsumer.seek_to_end)
    begin_offset = _waiting(_pull.PullConsumer.begin_offset)
    max_offset = _waiting(_pull.PullConsumer.max_offset)
    offset_for_timestamp = _waiting(_pull.PullConsumer.offset_for_timestamp)
    commit = _waiting(_pull.PullConsumer.commit)
    committed = _waiting(_pull.PullConsumer.committed)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """poll() returns nothing of these queues until resume()."""
        LOOP_THREAD.call(self._inner.pause, list(queues))  # a generator runs in its own thread

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Ends pause()."""
        LOOP_THREAD.call(self._inner.resume, list(queues))

    def __iter__(self) -> Self:
        """One message after the other, until the consumer is closed."""
        return self

    def __next__(self) -> MessageClientExt:
        message = LOOP_THREAD.run(self._inner.next_message())
        if message is None:
            raise StopIteration
        return message


class SimpleConsumer(_Client[_simple.SimpleConsumer]):
    """Receives messages (MessageClientExt) that all members of a group share, and acknowledges them one by one; what is
    not acknowledged in time comes again. `where` as for Producer. Use it in a `with`."""

    def __init__(self, group: str, where: ClientConfig | str, config: ConsumerConfig | None = None) -> None:
        super().__init__(lambda: _simple.SimpleConsumer(group, where, config))

    subscribe = _called(_simple.SimpleConsumer.subscribe)
    unsubscribe = _called(_simple.SimpleConsumer.unsubscribe)
    receive = _waiting(_simple.SimpleConsumer.receive)
    ack = _waiting(_simple.SimpleConsumer.ack)
    change_invisible_duration = _waiting(_simple.SimpleConsumer.change_invisible_duration)
    forward_to_dead_letters = _waiting(_simple.SimpleConsumer.forward_to_dead_letters)

    def ack_all(self, messages: Iterable[MessageClientExt]) -> None:
        """Several at a time; the first error is raised when all were tried."""
        LOOP_THREAD.run(self._inner.ack_all(list(messages)))  # a generator runs in its own thread


class Admin(Blocking[_admin.Admin]):
    """Topics, groups, offsets and messages of a cluster; `ask` for all else that the asyncio Admin has. `where` as for
    Producer. Use it in a `with`, or `close()` it."""

    def __init__(self, where: ClientConfig | str = DEFAULT_ADDRESS) -> None:
        super().__init__(lambda: _admin.Admin(where))

    def ask(self, question: Callable[[_admin.Admin], Awaitable[T]]) -> T:
        """Whatever has no method here: `admin.ask(lambda a: a.brokers.get_broker_config(address))`."""

        async def work() -> T:
            return await question(self._inner)

        return LOOP_THREAD.run(work())

    close = _waiting(_admin.Admin.close)
    examine_broker_cluster_info = _waiting(_admin.Admin.examine_broker_cluster_info)
    fetch_all_topic_list = _waiting(_admin.Admin.fetch_all_topic_list)
    create_topic = _waiting(_admin.Admin.create_topic)
    delete_topic = _waiting(_admin.Admin.delete_topic)
    topic_exists = _waiting(_admin.Admin.topic_exists)
    examine_topic_route_info = _waiting(_admin.Admin.examine_topic_route_info)
    examine_topic_stats = _waiting(_admin.Admin.examine_topic_stats)
    create_subscription_group = _waiting(_admin.Admin.create_subscription_group)
    delete_subscription_group = _waiting(_admin.Admin.delete_subscription_group)
    examine_consume_stats = _waiting(_admin.Admin.examine_consume_stats)
    examine_consumer_connection_info = _waiting(_admin.Admin.examine_consumer_connection_info)
    reset_offset_by_timestamp = _waiting(_admin.Admin.reset_offset_by_timestamp)
    query_message = _waiting(_admin.Admin.query_message)
    view_message = _waiting(_admin.Admin.view_message)
