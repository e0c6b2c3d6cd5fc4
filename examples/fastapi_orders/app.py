"""An order service: HTTP in front, RocketMQ behind it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from opentelemetry import trace
from pydantic import BaseModel

from mqlake.client import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MQClientInstance,
    Producer,
    ProducerConfig,
    PushConsumer,
)
from mqlake.client.tracing import OpenTelemetryHook
from mqlake.errors import MqlakeError

TOPIC = "Orders"
tracer = trace.get_tracer("orders")


class NewOrder(BaseModel):
    item: str
    count: int = 1


class Service:
    """What the requests of one process share."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.client = MQClientInstance(ClientConfig(namesrv_addr=namesrv))
        hook = OpenTelemetryHook()
        self.producer = Producer("orders-api", self.client, ProducerConfig(send_message_hooks=[hook]))
        config = ConsumerConfig(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_message_hooks=[hook]
        )
        self.packer = PushConsumer("orders-packing", self.client, self.pack, config)
        self.packer.subscribe(TOPIC)
        self.packed: dict[str, dict[str, Any]] = {}

    async def start(self) -> None:
        await self.producer.start()
        async with Admin(self.namesrv) as admin:
            if not await admin.topic_exists(TOPIC):
                await admin.create_topic(TOPIC)
        await self.packer.start()

    async def stop(self) -> None:
        """The consumer first: what it handles may still send."""
        await self.packer.close()
        await self.producer.close()
        await self.client.close()

    async def pack(self, messages: list[Any], _: Any) -> None:
        """Called at least once for each order, so it must not matter if an order comes again."""
        for message in messages:
            order = json.loads(message.body)
            self.packed.setdefault(order["id"], {**order, "state": "packed"})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    service = Service(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    await service.start()
    app.state.service = service
    try:
        yield
    finally:
        await service.stop()


app = FastAPI(lifespan=lifespan)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(service_of)]


@app.post("/orders", status_code=202)
async def order(new: NewOrder, service: Shared) -> dict[str, str]:
    """202 once the broker has the order: what it acknowledged it delivers."""
    number = uuid.uuid4().hex
    with tracer.start_as_current_span("order"):
        body = json.dumps({"id": number, **new.model_dump()}).encode()
        try:
            await service.producer.send(Message(TOPIC, body, tags=new.item, keys=number))
        except MqlakeError as error:
            raise HTTPException(503, f"the order was not taken: {error}") from error
    return {"id": number}


@app.get("/orders/{number}")
async def look(number: str, service: Shared) -> dict[str, Any]:
    found = service.packed.get(number)
    if found is None:
        raise HTTPException(404, "unknown, or not packed yet")
    return found


@app.get("/health")
async def health(service: Shared) -> dict[str, str]:
    """Ready as long as a broker lets the topic be written."""
    try:
        async with Admin(service.namesrv) as admin:
            await admin.examine_topic_stats(TOPIC)
    except MqlakeError as error:
        raise HTTPException(503, str(error)) from error
    return {"status": "ok"}
