"""Transport: kombu's virtual transport over a Link: channels, prefetch, acknowledgements, exchanges.

    publish   to the default exchange    ─▶ the queue's topic, or the default exchange's for a queue that does not last
              direct, topic, fanout      ─▶ the topics of the lasting queues bound to it
                                         ─▶ the exchange's own topic, where queues that do not last read

A queue lasts unless it was declared auto-delete, exclusive, with an expiry, or as not durable: replies, events and
control. An acknowledged message is done; a rejected one becomes a dead letter of its queue's group, or, requeued, comes
again at once.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import select
import time
from collections.abc import Callable, Iterable
from queue import Empty
from typing import Any, ClassVar

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from mqlake.adapters.held import Held
from mqlake.adapters.kombu.link import Link, Options, Transient, text_of
from mqlake.adapters.kombu.names import exchange_topic, queue_topic, routing_tag
from mqlake.adapters.trace_context import trace_properties
from mqlake.client.config import ClientConfig
from mqlake.client.consume.pop_api import POP_MAX
from mqlake.errors import ClientError, MqlakeError, RemotingError
from mqlake.remoting.tls import client_context

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9876
ETA_FROM_S = 1.0
"""A task that is due sooner is published at once."""
ETA_MAX_S = 3 * 24 * 3600 - 60
"""Brokers refuse later times (timerMaxDelaySec): a worker that gets a task before its eta waits for the rest."""


class QoS(virtual.QoS):  # type: ignore[misc]
    """Acknowledges at the broker, and gives back there what is left at the end."""

    channel: Channel

    def ack(self, delivery_tag: Any) -> None:
        super().ack(delivery_tag)
        self.channel.settled(delivery_tag, self.channel.connection.link.ack)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        self._quick_ack(delivery_tag)
        link = self.channel.connection.link
        self.channel.settled(delivery_tag, link.back if requeue else link.dead)

    def restore_unacked(self) -> list[Any]:
        self._flush()
        link = self.channel.connection.link
        while self._delivered:
            tag, _ = self._delivered.popitem()
            self.channel.settled(tag, link.back)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self._on_collect.cancel()
        if hasattr(self.channel.connection, "link"):
            self.restore_unacked()
        self._delivered.restored = True


class Channel(virtual.Channel):  # type: ignore[misc]
    QoS = QoS
    supports_fanout = True
    body_encoding = None
    connection: Transport
    from_transport_options = ("deadletter_queue",)
    _tags: ClassVar[Any] = itertools.count(1)

    def __init__(self, connection: Transport, **options: Any) -> None:
        self._held: dict[str, Held] = {}
        """Delivery tag → what is in hand."""
        self._without_ack: set[str] = set()
        """Queues whose messages count as done when they are given out."""
        super().__init__(connection, **options)

    # --- queues and bindings

    def _new_queue(self, queue: str, **options: Any) -> None:
        arguments = options.get("arguments") or {}
        lasts = options.get("durable", True) and not (
            options.get("auto_delete") or options.get("exclusive") or "x-expires" in arguments
        )
        link = self.connection.link
        if lasts:
            link.run(link.declare(queue))
        elif queue not in self.connection.transients:
            self.connection.transients[queue] = Transient(
                lambda exchange, key: self._is_bound(queue, exchange, key)
            )
            self._read_from(queue, "", queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        link = self.connection.link
        return queue in self.connection.transients or bool(link.run(link.has_topic(queue_topic(queue))))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        link = self.connection.link
        if queue in self.connection.transients:
            self._read_from(queue, exchange, routing_key)
        else:
            link.run(link.bind(exchange, routing_key or "", queue))

    def _read_from(self, queue: str, exchange: str, routing_key: str) -> None:
        transient = self.connection.transients[queue]
        link = self.connection.link
        kind = self.typeof(exchange).type if exchange else "direct"
        if exchange not in transient.starts:
            transient.starts[exchange] = link.run(link.ends(exchange))
            transient.tags[exchange] = set() if kind == "direct" else None
        tags = transient.tags[exchange]
        if tags is not None:
            tags.add(routing_tag(routing_key or ""))

    def _is_bound(self, queue: str, exchange: str, routing_key: str) -> bool:
        if not exchange:
            return routing_key == queue
        return queue in self._matching(exchange, routing_key, self.state.exchanges[exchange]["table"])

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, **options)
        if queue not in self.connection.transients:
            link = self.connection.link
            link.run(link.unbind(exchange or "", routing_key or "", queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        link = self.connection.link
        if if_empty and self._size(queue):
            return
        if self.connection.transients.pop(queue, None) is not None:
            link.later(link.stop_reading, queue)
        else:
            for exchange, routing_key, _ in list(self.state.queue_bindings(queue)):
                link.run(link.unbind(exchange, routing_key or "", queue))
            link.run(link.delete(queue))
        self.state.queue_bindings_delete(queue)

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """The bindings of all processes' lasting queues, and those made here."""
        link = self.connection.link
        table = list(self.state.exchanges[exchange]["table"])
        known = {(key or "", queue) for key, _, queue in table}
        for routing_key, queue in link.run(link.bindings(exchange)):
            if (routing_key, queue) not in known:
                table.append(self.typeof(exchange).prepare_bind(queue, exchange, routing_key, {}))
        return table

    def _size(self, queue: str) -> int:
        link = self.connection.link
        return 0 if queue in self.connection.transients else int(link.run(link.size(queue)))

    def _purge(self, queue: str) -> int:
        link = self.connection.link
        count = 0
        while queue not in self.connection.transients and link.run(link.has_topic(queue_topic(queue))):
            found = link.run(link.receive(queue, POP_MAX, 0.0, link.window(self.channel_id)))
            if not found:
                break
            for popped in found:
                link.later(link.ack, popped)
            count += len(found)
        return count

    # --- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        body = message["body"]
        if isinstance(body, bytes) and str(message.get("content-encoding")).lower() == "utf-8":
            body = body.decode("utf-8", "surrogateescape")
        encoding = None if isinstance(body, str) else "base64"
        message["body"], body_encoding = self.encode_body(body, encoding)
        message["properties"].update(body_encoding=body_encoding, delivery_tag="")
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        link = self.connection.link
        for topic in self._destinations(exchange, routing_key, message):
            link.run(
                link.publish(
                    topic,
                    dumps(message).encode("utf-8", "surrogateescape"),
                    tag=routing_tag(routing_key or ""),
                    key=_key(message),
                    deliver_at_ms=self._deliver_at_ms(message),
                    properties=trace_properties(message.get("headers")),
                )
            )

    def _destinations(self, exchange: str, routing_key: str, message: dict[str, Any]) -> list[str]:
        link = self.connection.link
        if not exchange:
            own = queue_topic(routing_key, self._step(message))
            lasts = routing_key not in self.connection.transients and link.run(link.has_topic(own))
            return [own if lasts else exchange_topic("")]
        lasting = self._matching(exchange, routing_key, self.get_table(exchange))
        if not lasting:
            link.run(link.bindings(exchange, fresh=True))  # another process may have bound one just now
            lasting = self._matching(exchange, routing_key, self.get_table(exchange))
        topics = [
            queue_topic(queue, self._step(message))
            for queue in lasting
            if queue not in self.connection.transients
        ]
        if link.run(link.has_topic(exchange_topic(exchange))):
            topics.append(exchange_topic(exchange))
        return topics

    def _matching(self, exchange: str, routing_key: str, table: Iterable[tuple[str, str, str]]) -> set[str]:
        kind = self.typeof(exchange)
        if kind.type == "fanout":
            return {queue for _, _, queue in table}
        return set(kind.lookup(table, exchange, routing_key, None))

    def _step(self, message: dict[str, Any]) -> int:
        priority = self._get_message_priority(message)
        steps = self.connection.link.options.priority_steps
        return max((step for step in steps if step <= priority), default=steps[0])

    def _deliver_at_ms(self, message: dict[str, Any]) -> int:
        """0: at once."""
        eta = (message.get("headers") or {}).get("eta")
        if not eta or not self.connection.link.options.eta:
            return 0
        try:
            due = dt.datetime.fromisoformat(eta) if isinstance(eta, str) else eta
            at = due.timestamp() if due.tzinfo else due.replace(tzinfo=dt.UTC).timestamp()
        except (AttributeError, ValueError):
            return 0
        now = time.time()
        return round(min(at, now + ETA_MAX_S) * 1000) if at > now + ETA_FROM_S else 0

    # --- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **options: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._without_ack.add(queue)
        link, transient = self.connection.link, self.connection.transients.get(queue)
        if transient is None:
            link.run(link.declare(queue))
            self.connection.owners[queue] = self
            link.later(link.limit, self.channel_id, self.qos.prefetch_count)
            link.later(link.start_popping, self.channel_id, queue)
        else:
            link.later(link.start_pulling, queue, transient)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._without_ack.discard(queue)
            self.connection.owners.pop(queue, None)
            link = self.connection.link
            if queue in self.connection.transients:
                link.later(link.stop_reading, queue)
            else:
                link.later(link.stop_popping, self.channel_id, queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        link = self.connection.link
        link.later(link.limit, self.channel_id, prefetch_count)

    def settled(self, delivery_tag: Any, how: Callable[[Held], object]) -> None:
        popped = self._held.pop(delivery_tag, None)
        if popped is not None:
            self.connection.link.later(how, popped)

    def accept(self, queue: str, payload: dict[str, Any], popped: Held | None) -> None:
        """Notes what acknowledges a message; its tag is this channel's own, as a message may come twice."""
        tag = f"{self.channel_id}.{next(self._tags)}"
        payload["properties"]["delivery_tag"] = tag
        if popped is not None:
            if queue in self._without_ack:
                self.connection.link.later(self.connection.link.ack, popped)
            else:
                self._held[tag] = popped
            if popped.message.reconsume_times:
                payload["properties"]["redelivered"] = True
                payload["properties"]["delivery_info"]["redelivered"] = True

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        link = self.connection.link
        if queue in self.connection.transients:
            return self.connection.take_transient(self, queue)
        found = link.run(link.receive(queue, 1, timeout or 0.0, link.window(self.channel_id)))
        if not found:
            raise Empty
        [popped] = found
        payload = self.connection.payload(queue, text_of(popped.message), popped)
        if payload is None:
            raise Empty
        self.accept(queue, payload, popped)
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.settled(message.delivery_tag, self.connection.link.ack)
        return message

    def close(self) -> None:
        link = getattr(self.connection, "link", None)
        closing = not self.closed
        super().close()
        if closing and link is not None:
            link.later(link.forget, self.channel_id)


_Channel = Channel


class Transport(virtual.Transport):  # type: ignore[misc]
    """`rocketmq://[ACCESS_KEY:SECRET_KEY@]HOST:PORT[/NAMESPACE]`; more name servers with `;` between."""

    Channel = Channel
    driver_type = "rocketmq"
    driver_name = "mqlake"
    default_port = DEFAULT_PORT
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (*virtual.Transport.connection_errors, RemotingError, ClientError)
    channel_errors = (*virtual.Transport.channel_errors, MqlakeError)
    recoverable_connection_errors = connection_errors

    link: Link

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.transients: dict[str, Transient] = {}
        self.owners: dict[str, _Channel] = {}
        """Lasting queue → the channel that consumes it."""

    def driver_version(self) -> str:
        import mqlake

        return mqlake.__version__

    def establish_connection(self) -> Transport:
        link = Link(config_of(self.client), options_of(self.client.transport_options))
        link.open()
        self.link = link
        self._avail_channels.append(self.create_channel(self))
        return self

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        link = getattr(self, "link", None)
        if link is not None:
            link.close()
            del self.link

    def verify_connection(self, connection: Transport) -> bool:
        return hasattr(self, "link")

    # --- messages that have arrived

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        loop.add_reader(self.link.waker, self.on_readable)

    def on_readable(self, *_: Any) -> None:
        self.link.drained()
        while self.link.inbox:
            self._give_one()

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.link.drained()
            while self.link.inbox:
                if self._give_one():
                    return
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if left == 0 or not select.select([self.link.waker], [], [], left)[0]:
                raise TimeoutError("timed out")

    def _give_one(self) -> bool:
        """True if a callback was called."""
        queue, text, popped = self.link.inbox.popleft()
        payload = self.payload(queue, text, popped)
        if payload is None:
            return False
        transient = self.transients.get(queue)
        if popped is None:
            info = payload["properties"]["delivery_info"]
            if transient is None or not transient.matches(info["exchange"], info["routing_key"] or ""):
                return False
        owner = self.owners.get(queue) or self._owner_of(queue)
        if owner is None:
            if popped is not None:
                self.link.later(self.link.back, popped)
            return False
        owner.accept(queue, payload, popped)
        self._deliver(payload, queue)
        return True

    def _owner_of(self, queue: str) -> _Channel | None:
        return next((channel for channel in self.channels if queue in channel._active_queues), None)

    def take_transient(self, channel: _Channel, queue: str) -> dict[str, Any]:
        """For basic_get of a queue that does not last: reading it begins with the first call."""
        self.link.run(_call(self.link.start_pulling, queue, self.transients[queue]))
        self.link.drained()
        for number, (name, text, popped) in enumerate(self.link.inbox):
            if name == queue and (payload := self.payload(queue, text, popped)) is not None:
                del self.link.inbox[number]
                channel.accept(queue, payload, popped)
                return payload
        raise Empty

    def payload(self, queue: str, text: str, popped: Held | None) -> dict[str, Any] | None:
        """None for what no kombu client has published: a dead letter, if the queue lasts."""
        try:
            payload = loads(text)
            if isinstance(payload["properties"]["delivery_info"], dict):
                return dict(payload)
        except (ValueError, KeyError, TypeError):
            pass
        logger.error(
            "queue %s: a message that no kombu client has published is left out: %.100r", queue, text
        )
        if popped is not None:
            self.link.later(self.link.dead, popped)
        return None

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": DEFAULT_PORT, "hostname": "127.0.0.1"}


async def _call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


def config_of(client: Any) -> ClientConfig:
    """From kombu's Connection."""
    servers = []
    for each in (client.hostname or "127.0.0.1").split(";"):
        host = each.rpartition("@")[2].removeprefix("rocketmq://")
        servers.append(host if ":" in host else f"{host}:{client.port or DEFAULT_PORT}")
    tls = None
    if client.ssl:
        given = client.ssl if isinstance(client.ssl, dict) else {}
        tls = client_context(
            trust_cert_path=given.get("ca_certs", ""),
            cert_path=given.get("certfile", ""),
            key_path=given.get("keyfile", ""),
            verify=bool(given.get("ca_certs")),
        )
    return ClientConfig(
        namesrv_addr=";".join(servers),
        namespace=(client.virtual_host or "").strip("/"),
        access_key=client.userid or "",
        secret_key=client.password or "",
        tls=tls,
    )


def options_of(given: dict[str, Any]) -> Options:
    """From `transport_options`; kombu's own are left alone."""
    known = {name: given[name] for name in Options.__dataclass_fields__ if name in given}
    if "priority_steps" in known:
        known["priority_steps"] = tuple(sorted(int(step) for step in known["priority_steps"])) or (0,)
    return Options(**known)


def _key(message: dict[str, Any]) -> str:
    """Returns the key that the message is found by: a task's id."""
    found = (message.get("headers") or {}).get("id") or message["properties"].get("correlation_id") or ""
    return "".join(str(found).split())
