"""Taskiq over RocketMQ: RocketBroker, whose tasks workers share and acknowledge one by one, and a result backend.

    broker = RocketBroker("127.0.0.1:9876").with_result_backend(RocketResultBackend("127.0.0.1:9876"))

    kick   ─▶ topic taskiq, key = the task's id          label `delay` (seconds): waits in the broker's timer
    listen ◀─ popped by the group taskiq, kept from others while it runs, acknowledged when Taskiq says so
    result ─▶ topic taskiq-results, key = the task's id  found by its key

Guide: docs/taskiq.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.result import TaskiqResult
from taskiq.serializers import ORJSONSerializer

from mqlake.adapters.held import Held, HeldMessages
from mqlake.adapters.patience import STARTUP_TIMEOUT_S, until_there
from mqlake.adapters.trace_context import trace_properties
from mqlake.base.clock import now_ms
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.produce.producer import Producer
from mqlake.errors import MessageError, MqlakeError
from mqlake.message import Message
from mqlake.remoting.bodies.client import ConsumeFromWhere

logger = logging.getLogger(__name__)

T = TypeVar("T")
AWAIT_S = 15.0
RETRY_S = 1.0


class RocketBroker(AsyncBroker):
    """Tasks of one topic, shared by all workers of one group."""

    def __init__(
        self,
        where: ClientConfig | str = "127.0.0.1:9876",
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        queues: int = 8,
        at_once: int = 1,
        visibility_timeout_s: float = 60.0,
        startup_timeout_s: float | None = STARTUP_TIMEOUT_S,
    ) -> None:
        """`where`: the name servers' address, or a ClientConfig.

        queues: of the topic on each broker, if it is made here.
        at_once: tasks that one request may bring (at most 32). Taskiq's own `--max-prefetch` bounds what a worker has.
        visibility_timeout_s: seconds after which others get the tasks of a worker that died.
        startup_timeout_s: how long `startup` waits for a cluster that is away; None: for ever.
        """
        super().__init__()
        self._where = ClientConfig(namesrv_addr=where) if isinstance(where, str) else where
        self._topic, self._group, self._queues, self._at_once = topic, group, queues, at_once
        self._startup_timeout_s = startup_timeout_s
        self._held = HeldMessages(visibility_timeout_s)
        self._producer = Producer(group, self._where)
        config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        self._consumer = SimpleConsumer(group, self._where, config)

    async def startup(self) -> None:
        """MqlakeError when no cluster is there in time, or the topic is not there and may not be made."""
        await super().startup()
        await make_topic(self._where, self._topic, self._queues, self._startup_timeout_s)
        await self._producer.start()
        if self.is_worker_process:
            self._consumer.subscribe(self._topic)
            await self._consumer.start()
            self._held.start()

    async def shutdown(self) -> None:
        await super().shutdown()
        if self.is_worker_process:
            await self._held.close()
            await self._consumer.close()
        await self._producer.close()

    async def kick(self, message: BrokerMessage) -> None:
        """SendError, NoNameServerError; MessageError for a `delay` that is no number."""
        sent = Message(
            self._topic,
            message.message,
            keys=message.task_id,
            properties={"task": message.task_name, **trace_properties(message.labels)},
        )
        if delay := message.labels.get("delay"):
            try:
                sent.deliver_time_ms = now_ms() + round(float(delay) * 1000)
            except (TypeError, ValueError):
                raise MessageError(
                    f"task {message.task_name}: delay is {delay!r}, not a number of seconds"
                ) from None
        await self._producer.send(sent)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        if not self.is_worker_process:  # in a test, say: InMemoryBroker's way
            self._consumer.subscribe(self._topic)
            await self._consumer.start()
            self._held.start()
            self.is_worker_process = True
        while True:
            try:
                found = await self._held.kept(self._receive())
            except MqlakeError as error:
                logger.warning("%s", error)
                await asyncio.sleep(RETRY_S)
                continue
            while found:
                held = found.pop(0)
                try:
                    yield AckableMessage(data=held.message.body, ack=functools.partial(self._held.ack, held))
                except BaseException:  # who listens ends: others get what it has not got
                    for rest in found:
                        await self._held.back(rest)
                    raise

    async def _receive(self) -> list[Held]:
        invisible_s = self._held.invisible_s
        messages = await self._consumer.receive(self._at_once, invisible_s=invisible_s, await_s=AWAIT_S)
        return self._held.hold(self._consumer, messages)


class RocketResultBackend(AsyncResultBackend[T]):
    """Results and progress as messages whose key is the task's id. They last as long as the broker keeps messages."""

    def __init__(
        self,
        where: ClientConfig | str = "127.0.0.1:9876",
        *,
        topic: str = "taskiq-results",
        queues: int = 4,
        serializer: TaskiqSerializer | None = None,
        startup_timeout_s: float | None = STARTUP_TIMEOUT_S,
    ) -> None:
        self._where = ClientConfig(namesrv_addr=where) if isinstance(where, str) else where
        self._topic, self._queues, self._startup_timeout_s = topic, queues, startup_timeout_s
        self._serializer = serializer or ORJSONSerializer()
        self._producer = Producer("taskiq-results", self._where)
        self._admin = Admin(self._where)

    async def startup(self) -> None:
        await make_topic(self._where, self._topic, self._queues, self._startup_timeout_s)
        await self._producer.start()

    async def shutdown(self) -> None:
        await self._producer.close()
        await self._admin.close()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        await self._send(task_id, "result", result.model_dump())

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._newest(task_id, "result") is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """ResultGetError when there is none."""
        found = await self._newest(task_id, "result")
        if found is None:
            raise ResultGetError
        result: TaskiqResult[T] = TaskiqResult[T].model_validate(found)
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        await self._send(task_id, "progress", progress.model_dump())

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        found = await self._newest(task_id, "progress")
        return None if found is None else TaskProgress[Any].model_validate(found)

    async def _send(self, task_id: str, kind: str, value: dict[str, Any]) -> None:
        body = self._serializer.dumpb(value)
        await self._producer.send(Message(self._topic, body, kind, f"{kind}/{task_id}"))

    async def _newest(self, task_id: str, kind: str) -> Any:
        found = await self._admin.query_message(self._topic, f"{kind}/{task_id}", 1)
        return self._serializer.loadb(found[-1].body) if found else None


async def make_topic(where: ClientConfig, topic: str, queues: int, timeout_s: float | None) -> None:
    """If it is not there. MqlakeError when it may not be made, or the cluster is away for longer than that."""

    async def make() -> None:
        async with Admin(where) as admin:
            if not await admin.topic_exists(topic):
                await admin.create_topic(topic, queues=queues)

    await until_there(make, timeout_s, logger.warning)
