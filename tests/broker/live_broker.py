"""Clients that are members of groups, on a broker in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mqlake.broker.controller import BrokerController
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.bodies.client import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import CURRENT_VERSION, RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.loop import loop_factory
from tests.broker.live import PATIENCE_S, SCENE_S
from tests.broker.live import running as live_broker

__all__ = ["Client", "live_broker", "put", "run"]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine; an exception in a callback fails it."""
    failures: list[dict[str, Any]] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with asyncio.timeout(SCENE_S):
            await main

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(guarded())
    assert not failures, failures


class Client(RemotingClient):
    """One client of one broker; `told` holds what the broker asked of it."""

    def __init__(self, controller: BrokerController, client_id: str = "c", version: int = CURRENT_VERSION):
        super().__init__()
        self.controller = controller
        self.client_id = client_id
        self.version = version
        self.told: list[RemotingCommand] = []
        self.answers: dict[int, Callable[[RemotingCommand], RemotingCommand]] = {}
        self.processors.register_default(self._on_request)

    def _on_request(self, connection: object, request: RemotingCommand) -> RemotingCommand | None:
        request.body = request.body_bytes()
        self.told.append(request)
        answer = self.answers.get(request.code)
        return answer(request) if answer is not None else None

    def told_of(self, code: RequestCode) -> list[RemotingCommand]:
        return [request for request in self.told if request.code == code]

    async def ask(
        self, code: RequestCode, header: CommandHeader | None = None, body: bytes | None = None, **fields: str
    ) -> RemotingCommand:
        """The answer, whatever its code. `fields`: header fields that have no class here."""
        request = RemotingCommand.create_request(code, header, body)
        request.ext_fields.update(fields)
        request.version = self.version
        return await self.invoke(f"127.0.0.1:{self.controller.port}", request, PATIENCE_S)

    async def heartbeat(
        self,
        group: str | None = "G",
        topics: tuple[str, ...] = ("T",),
        *,
        producer: str | None = None,
        sql: str | None = None,
        model: MessageModel = MessageModel.CLUSTERING,
        **fields: Any,
    ) -> RemotingCommand:
        subscriptions = [
            SubscriptionData(
                topic=topic,
                sub_string=sql or "*",
                expression_type="SQL92" if sql else "TAG",
                sub_version=fields.get("heartbeat_fingerprint", 1),
            )
            for topic in topics
        ]
        consumer = ConsumerData(
            group_name=group or "",
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=model,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[] if fields.get("without_sub") else subscriptions,
        )
        data = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[consumer] if group else [],
            producer_data_set=[ProducerData(group_name=producer)] if producer else [],
            **fields,
        )
        return await self.ask(RequestCode.HEART_BEAT, None, data.to_json())


def put(
    controller: BrokerController, topic: str = "T", body: bytes = b"body", **fields: Any
) -> MessageExtBrokerInner:
    """Stores a message as a send would; it is dispatched when this returns."""
    fields.setdefault("store_host", controller.broker.store_host)
    message = MessageExtBrokerInner(topic, body, **fields)
    assert controller.broker.store.put_message(message).is_ok
    assert controller.broker.store.wait_until_dispatched(PATIENCE_S)
    return message
