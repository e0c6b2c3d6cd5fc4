"""dlt over RocketMQ: a source with a resource for each topic, incremental by queue offsets.

    pipeline.run(rocketmq(["Orders"], "127.0.0.1:9876"))      what has come since the last run that was loaded

dlt keeps the positions in its state, which it commits with the rows: a run that fails leaves both as they were. A
position names the message before it, so a topic that was deleted and made again, or a broker that came back empty, is
an error and no gap. For millions of rows a minute `mqlake lake run` reads whole pulls as columns. Guide: docs/dlt.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dlt
import orjson
from dlt.sources import DltResource

from mqlake.base.clock import YEAR_1_MS, YEAR_10000_MS
from mqlake.client.blocking import PullConsumer
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullStatus
from mqlake.errors import ClientError, ConfigError
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

POLL_S = 5.0
BODIES: dict[str, Callable[[bytes], Any]] = {
    "text": lambda body: body.decode("utf-8", "replace"),
    "bytes": lambda body: body,
    "json": orjson.loads,
}
"""Kinds of the column `body`."""
OWN_PROPERTIES = frozenset({"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON"})
"""Properties of the protocol, or with a column of their own."""


class LostMessagesError(ClientError):
    """Messages that were not loaded yet are gone, or the topic is another one than before."""


@dlt.source(name="rocketmq")  # type: ignore[untyped-decorator]
def rocketmq(
    topics: str | Sequence[str],
    where: ClientConfig | str = "127.0.0.1:9876",
    *,
    group: str = "dlt",
    body: str = "text",
    start: str = "first",
    on_lost: str = "error",
) -> list[DltResource]:
    """A resource for each topic, with its name.

    where: the name servers' address, or a ClientConfig.
    body: "text", "json" (a document with nested tables as dlt makes them), or "bytes".
    start: "first" or "last": where a queue begins that was never loaded.
    on_lost: "error", or "warn" to go on with what is there.
    Raises ConfigError; running it, LostMessagesError, TopicNotFoundError, NoNameServerError.
    """
    for name, value, possible in (
        ("body", body, tuple(BODIES)),
        ("start", start, ("first", "last")),
        ("on_lost", on_lost, ("error", "warn")),
    ):
        if value not in possible:
            raise ConfigError(f"{name} is {value!r}: it can be {', '.join(possible)}")
    config = ClientConfig(namesrv_addr=where) if isinstance(where, str) else where
    names = [topics] if isinstance(topics, str) else list(topics)
    return [
        dlt.resource(
            _reader(_Topic(topic, config, group, body, start, on_lost)),
            name=topic,
            write_disposition="append",
            primary_key=("broker", "queue_id", "queue_offset"),
            columns={"store_time": {"data_type": "timestamp"}, "born_time": {"data_type": "timestamp"}},
        )
        for topic in names
    ]


class _Topic:
    def __init__(
        self, topic: str, config: ClientConfig, group: str, body: str, start: str, on_lost: str
    ) -> None:
        self._topic, self._config, self._group = topic, config, group
        self._body, self._start, self._on_lost = body, start, on_lost

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """All up to where the queues end when this begins."""
        positions: dict[str, dict[str, Any]] = dlt.current.resource_state().setdefault("positions", {})
        with PullConsumer(self._group, self._config, ConsumerConfig(auto_commit=False)) as consumer:
            ends: dict[MessageQueue, int] = {}
            begins: dict[MessageQueue, int] = {}
            for queue in consumer.fetch_message_queues(self._topic):
                end = consumer.max_offset(queue)
                begin = self._begin(consumer, queue, positions.get(_name(queue)), end)
                if begin < end:
                    begins[queue], ends[queue] = begin, end
            consumer.assign(list(begins), offsets=begins)
            while ends:
                found = consumer.poll(POLL_S)
                wanted = [each for each in found if each.queue_offset < ends.get(each.message_queue, 0)]
                for message in wanted:
                    positions[_name(message.message_queue)] = {
                        "next": message.next_offset,
                        "last_id": message.msg_id,
                        "last_time": message.store_timestamp,
                    }
                for queue in [queue for queue, end in ends.items() if consumer.position(queue) >= end]:
                    del ends[queue]
                if wanted:
                    yield [self._row(message) for message in wanted]

    def _begin(
        self, consumer: PullConsumer, queue: MessageQueue, position: dict[str, Any] | None, end: int
    ) -> int:
        begin = consumer.begin_offset(queue)
        if position is None:
            return begin if self._start == "first" else end
        at: int = position["next"]
        if at > end:
            return self._lost(
                queue, f"it ends at {end} and was loaded up to {at}: it is another queue", begin
            )
        if at < begin:
            return self._lost(
                queue, f"it begins at {begin}, was loaded up to {at}: what lies between was deleted", begin
            )
        if at > begin:
            result = consumer.pull(queue, at - 1, max_messages=1)
            before = result.messages() if result.pull_status is PullStatus.FOUND else []
            if not before or before[0].queue_offset != at - 1 or before[0].msg_id != position["last_id"]:
                found = before[0].msg_id if before else "nothing"
                return self._lost(
                    queue,
                    f"at {at - 1} was message {position['last_id']} and is {found}: it is another queue",
                    begin,
                )
        return at

    def _lost(self, queue: MessageQueue, why: str, begin: int) -> int:
        text = f"queue {_name(queue)} of topic {self._topic}: {why}"
        if self._on_lost == "error":
            raise LostMessagesError(
                f'{text}. on_lost="warn" goes on with what is there; to load all again, drop its state '
                f"(dlt pipeline NAME drop {self._topic})"
            )
        logger.warning("%s; going on at %d", text, begin)
        return begin

    def _row(self, message: MessageClientExt) -> dict[str, Any]:
        body: Any
        try:
            body = BODIES[self._body](message.body)
        except ValueError as error:
            raise ConfigError(
                f"topic {message.topic}, queue {_name(message.message_queue)}, offset {message.queue_offset}: "
                f'the body is not {self._body}: {error}. body="text" or "bytes" takes any'
            ) from None
        return {
            "topic": message.topic,
            "broker": message.broker_name,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "msg_id": message.msg_id,
            "uniq_key": message.uniq_key,
            "tags": message.tags,
            "keys": message.keys,
            "properties": {
                name: value for name, value in message.properties.items() if name not in OWN_PROPERTIES
            },
            "born_time": seconds_of(message.born_timestamp),
            "store_time": seconds_of(message.store_timestamp),
            "body": body,
        }


def seconds_of(ms: int) -> float | None:
    """A time as dlt takes it; None beyond the years 1 to 9999, which no timestamp holds."""
    return ms / 1000 if YEAR_1_MS <= ms < YEAR_10000_MS else None


def _reader(topic: _Topic) -> Callable[[], Iterator[list[dict[str, Any]]]]:
    """Returns a plain function, as dlt wants one."""

    def rows() -> Iterator[list[dict[str, Any]]]:
        yield from topic.rows()

    return rows


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"
