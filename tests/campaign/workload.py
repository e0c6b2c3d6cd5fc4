"""The clients of a life: producers, delayed messages, transactions, a consumer. They write down what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Coroutine
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.client import (
    Admin,
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    MessageClientExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    SendStatus,
    TransactionMQProducer,
)
from mqlake.errors import MqlakeError, SendError
from mqlake.remoting.codes import ResponseCode
from tests.campaign.history import Kind, Operation, Outcome, body_of
from tests.waiting import PATIENCE_S

TOPICS = {"send": "Sent", "delayed": "Delayed", "transaction": "Transacted"}
QUEUES = 4
DELAYS_MS = {1: 1000, 2: 5000}
TIMEOUT_S = 4.0
PAUSE_S = 0.03
"""After each send; and ten times that after one that failed."""
REFUSED = {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
"""Answers after which nothing has been stored."""

SEND = ProducerConfig(send_msg_timeout_s=TIMEOUT_S, retry_times_when_send_failed=0, auto_batch=False)


def fate_of(key: str) -> tuple[bool, bool]:
    """Of a transaction: whether it is committed, and whether the producer says so at once (else it is asked)."""
    number = int(key.rpartition("-")[2])
    return number % 3 != 0, number % 5 != 0


class Workload:
    """`history` grows until stop()."""

    def __init__(self, namesrv: str, *, producers: int = 3, seed: int = 0) -> None:
        self.namesrv = namesrv
        self.history: list[Operation] = []
        self.consumed = 0
        self._seed = seed
        self._producers = producers
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._config = ClientConfig(
            namesrv_addr=namesrv,
            poll_name_server_interval_s=0.5,
            heartbeat_broker_interval_s=1.0,
            timeout_s=TIMEOUT_S,
        )
        self._clients = contextlib.AsyncExitStack()

    async def start(self) -> None:
        async with Admin(ClientConfig(namesrv_addr=self.namesrv, timeout_s=PATIENCE_S)) as admin:
            for topic in TOPICS.values():
                await admin.create_topic(topic, queues=QUEUES)
        consumer = PushConsumer(
            "GID_campaign",
            self._config,
            self._on_messages,
            ConsumerConfig(
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                broker_suspend_max_time_s=2.0,
                consume_message_batch_max_size=32,
            ),
        )
        for topic in TOPICS.values():
            consumer.subscribe(topic)
        await self._clients.enter_async_context(consumer)
        for number in range(self._producers):
            self._spawn(self._send(f"producer-{number}"))
        self._spawn(self._send_delayed("delayer"))
        self._spawn(self._transact("transactor"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """No message is sent any more; the consumer, and the answers about transactions, go on until close()."""
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        await self._clients.aclose()

    def check(self) -> None:
        """Raises what ended one of the senders too soon."""
        for task in self._tasks:
            if task.done() and (error := task.exception()) is not None:
                raise error

    def count(self, kind: Kind, outcome: Outcome | None = None) -> int:
        return sum(op.kind == kind and outcome in (None, op.outcome) for op in self.history)

    # --- senders

    async def _producer(self, process: str) -> Producer:
        return await self._clients.enter_async_context(Producer(f"PID_{process}", self._config, SEND))

    async def _send(self, process: str) -> None:
        producer, number = await self._producer(process), 0
        while not self._stopped:
            op = self._begin("send", process, number)
            number += 1
            await self._note(op, producer.send(_message(op), queue=_queue(op)))

    async def _send_delayed(self, process: str) -> None:
        producer, number = await self._producer(process), 0
        while not self._stopped:
            op = self._begin("delayed", process, number)
            level = 1 + number % 2
            number += 1
            op = dataclasses.replace(op, due=op.begin + DELAYS_MS[level])
            message = _message(op)
            message.delay_time_level = level
            await self._note(op, producer.send(message, queue=_queue(op)), told_offset=False)
            await asyncio.sleep(PAUSE_S * 3)

    async def _transact(self, process: str) -> None:
        producer = await self._clients.enter_async_context(
            TransactionMQProducer(
                f"PID_{process}", self._config, _Fate(), SEND, topics=[TOPICS["transaction"]]
            )
        )
        number = 0
        while not self._stopped:
            op = self._begin("transaction", process, number)
            number += 1
            op = dataclasses.replace(op, committed=fate_of(op.key)[0])
            sending = producer.send_message_in_transaction(_message(op), queue=_queue(op))
            await self._note(op, sending, told_offset=False)
            await asyncio.sleep(PAUSE_S * 3)

    def _begin(self, kind: Kind, process: str, number: int) -> Operation:
        now = now_ms()
        return Operation(
            kind=kind,
            process=process,
            key=f"{self._seed}-{process}-{number}",
            topic=TOPICS[kind],
            queue=(number // 3) % QUEUES,
            begin=now,
            end=now,
            outcome="unknown",
        )

    async def _note(self, op: Operation, send: Coroutine[Any, Any, Any], *, told_offset: bool = True) -> None:
        outcome: Outcome = "unknown"
        offset = -1
        try:
            result = await send
            if result.send_status is SendStatus.SEND_OK:
                outcome = "ok"
                offset = result.queue_offset if told_offset else -1
        except SendError as error:
            if error.code in REFUSED:
                outcome = "fail"
        except MqlakeError as error:
            logging.getLogger(__name__).info("%s: %s", op.key, error)
        self.history.append(dataclasses.replace(op, end=now_ms(), outcome=outcome, offset=offset))
        await asyncio.sleep(PAUSE_S if outcome == "ok" else 10 * PAUSE_S)

    # --- the consumer

    async def _on_messages(self, messages: list[MessageClientExt], context: ConsumeContext) -> None:
        now = now_ms()
        for message in messages:
            self.consumed += 1
            self.history.append(
                Operation(
                    kind="consume",
                    process="consumer",
                    key=message.keys or "",
                    topic=message.topic,
                    queue=message.queue_id,
                    begin=now,
                    end=now,
                    outcome="ok",
                    offset=message.queue_offset,
                )
            )


class _Fate:
    """What becomes of a transaction, which its key says."""

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        committed, at_once = fate_of(message.keys or "")
        if not at_once:
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE if committed else LocalTransactionState.ROLLBACK_MESSAGE

    async def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
        committed, _ = fate_of(message.keys or "")
        return LocalTransactionState.COMMIT_MESSAGE if committed else LocalTransactionState.ROLLBACK_MESSAGE


def _message(op: Operation) -> Message:
    message = Message(op.topic, body_of(op.key))
    message.keys = op.key
    return message


def _queue(op: Operation) -> MessageQueue:
    return MessageQueue(topic=op.topic, broker_name="a", queue_id=op.queue)
