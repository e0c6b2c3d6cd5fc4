"""RocketMessageTrigger: waits for messages on the triggerer's event loop.

    pop, invisible to others ─▶ event to the triggerer ─▶ acknowledged when it asks for more

A triggerer that dies between the two gets the message again: events come at least once. While the cluster is away, or
the topic is not there yet, it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from mqlake.adapters.airflow.events import event_of
from mqlake.adapters.airflow.hook import RocketHook
from mqlake.adapters.patience import is_away
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.consume.subscription import MessageSelector
from mqlake.client.records import MessageClientExt
from mqlake.errors import ConfigError, MqlakeError, TopicNotFoundError
from mqlake.remoting.bodies.client import ConsumeFromWhere

AWAIT_S = 15.0
RETRY_S = 2.0
INVISIBLE_S = 60.0


class RocketMessageTrigger(BaseEventTrigger):
    def __init__(
        self,
        topic: str,
        *,
        group: str = "airflow",
        tags: str = "*",
        sql: str = "",
        once: bool = False,
        rocketmq_conn_id: str = RocketHook.default_conn_name,
        name_servers: str = "",
        **options: Any,
    ) -> None:
        """group: its members share the topic's messages and have to subscribe alike.
        tags, sql: which messages; sql needs a broker with enablePropertyFilter=true.
        once: ends after a message; else there is an event for each, for ever.
        name_servers: instead of those of the connection.
        Raises ConfigError."""
        super().__init__(**options)
        self.topic, self.group, self.tags, self.sql, self.once = topic, group, tags, sql, once
        self.rocketmq_conn_id, self.name_servers = rocketmq_conn_id, name_servers
        self.selector = selector_of(tags, sql)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("topic", "group", "tags", "sql", "once", "rocketmq_conn_id", "name_servers")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        where = await where_of(self.rocketmq_conn_id, self.name_servers)
        while True:
            try:
                async with consumer_of(self.group, where) as consumer:
                    consumer.subscribe(self.topic, self.selector)
                    while True:
                        for message in await take(consumer, AWAIT_S):
                            yield TriggerEvent(event_of(message))
                            await consumer.ack(message)
                            if self.once:
                                return
            except MqlakeError as error:
                if not is_away(error) and not isinstance(error, TopicNotFoundError):
                    raise
                self.log.warning("topic %s: %s", self.topic, error)
            await asyncio.sleep(RETRY_S)


def selector_of(tags: str, sql: str) -> MessageSelector:
    """ConfigError when both are given."""
    if sql and tags not in ("", "*"):
        raise ConfigError("choose messages by tags or by sql, not by both")
    return MessageSelector.by_sql(sql) if sql else MessageSelector.by_tag(tags)


async def where_of(rocketmq_conn_id: str, name_servers: str) -> ClientConfig:
    if name_servers:
        return ClientConfig(namesrv_addr=name_servers)
    return await RocketHook(rocketmq_conn_id).aconfig()


def consumer_of(group: str, where: ClientConfig) -> SimpleConsumer:
    """Returns a consumer; a new group begins with the oldest message that is kept."""
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    return SimpleConsumer(group, where, first)


async def take(consumer: SimpleConsumer, await_s: float) -> list[MessageClientExt]:
    """Receives one message at most; one whose body cannot be had becomes a dead letter."""
    found = []
    for message in await consumer.receive(1, invisible_s=INVISIBLE_S, await_s=await_s):
        if message.undecodable:
            await consumer.forward_to_dead_letters(message)
        else:
            found.append(message)
    return found
