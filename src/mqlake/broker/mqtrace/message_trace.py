"""MessageTrace: message traces written by the broker (brokerMessageTraceEnable), whatever clients do.

    send hook     ── Pub ────────┐
    consume hook  ── SubBefore ──┼─▶ gathered ── BATCH traces, or GATHER_S ──▶ one message in RMQ_SYS_TRACE_TOPIC
                  ── SubAfter ───┘                                             KEYS: ids and keys of the traced messages

RocketMQ's clients write the same traces with enableMsgTrace, and its tools read both. A broker knows less than a
client: SubBefore says that a message was delivered, and SubAfter exists only for a message that was sent back as
failed. Sends to and deliveries from the trace topic are not traced. Traces are best effort: those gathered but not yet
stored are lost when the process dies, and one that cannot be stored is counted and logged.
"""

from __future__ import annotations

import asyncio
import logging

from mqlake.broker.broker import Broker
from mqlake.broker.mqtrace.hooks import ConsumeMessageContext, SendMessageContext, StatsType
from mqlake.formats.trace import (
    ContextCode,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    encode_trace,
    trace_keys,
)
from mqlake.message import (
    PROPERTY_CLUSTER,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_TAGS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageExt,
    MessageExtBrokerInner,
    create_uniq_id,
)

logger = logging.getLogger(__name__)

BATCH = 100
"""Maximum traces in one message."""
BODY_SIZE_MAX = 128_000
KEYS_SIZE_MAX = 16_000
"""Maximum bytes of KEYS: the properties of a message have at most 32,767 together."""
GATHER_S = 0.1


class MessageTrace:
    """A send and a consume hook. Used on the broker's event loop only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._bodies: list[str] = []
        self._keys: dict[str, None] = {}
        self._body_size = 0
        self._keys_size = 0
        self._later: asyncio.TimerHandle | None = None
        self.lost = 0
        """Traces that could not be stored."""

    def hook_name(self) -> str:
        return "MessageTrace"

    # --- hooks

    def send_message_before(self, context: SendMessageContext) -> None:
        pass

    def send_message_after(self, context: SendMessageContext) -> None:
        if context.topic == self._topic:
            return
        now = self._broker.clock_ms()
        self._add(
            Pub(
                context.request_timestamp,
                context.broker_region_id,
                context.producer_group,
                context.topic,
                context.msg_unique_key or context.msg_id,
                context.msg_props.get(PROPERTY_TAGS, ""),
                context.msg_props.get(PROPERTY_KEYS, ""),
                context.broker_addr,
                context.body_length,
                max(now - context.request_timestamp, 0),
                context.msg_type,
                context.msg_id,
                context.success,
            )
        )

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        if context.topic == self._topic or context.rcv_stat is not StatsType.RCV_SUCCESS:
            return
        now, region = self._broker.clock_ms(), self._broker.config.region_id
        for message in context.messages:
            self._add(
                SubBefore(
                    now,
                    region,
                    context.consumer_group,
                    _request_id(context, message),
                    _id_of(message),
                    message.reconsume_times,
                    message.properties.get(PROPERTY_KEYS, ""),
                )
            )

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        now = self._broker.clock_ms()
        for message in context.messages:
            self._add(
                SubAfter(
                    _request_id(context, message),
                    _id_of(message),
                    0,
                    False,
                    message.properties.get(PROPERTY_KEYS, ""),
                    ContextCode.FAILED,
                    now,
                    context.consumer_group,
                )
            )

    # --- to the topic

    @property
    def _topic(self) -> str:
        return self._broker.config.msg_trace_topic_name

    def _add(self, trace: Trace) -> None:
        text = encode_trace(trace)
        self._bodies.append(text)
        self._body_size += len(text)
        for key in trace_keys(trace):
            if key and key not in self._keys:
                self._keys[key] = None
                self._keys_size += len(key) + 1
        if len(self._bodies) >= BATCH or self._body_size >= BODY_SIZE_MAX or self._keys_size >= KEYS_SIZE_MAX:
            self.flush()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """Stores the gathered traces, without waiting for the disk."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        bodies, keys = self._bodies, self._keys
        self._bodies, self._keys, self._body_size, self._keys_size = [], {}, 0, 0
        if not bodies:
            return
        broker = self._broker
        config = broker.config
        message = MessageExtBrokerInner(
            self._topic,
            "".join(bodies).encode(),
            properties={
                PROPERTY_KEYS: _shortened(" ".join(keys)),
                PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: create_uniq_id(),
                PROPERTY_MSG_REGION: config.region_id,
                PROPERTY_TRACE_SWITCH: "false",
                PROPERTY_CLUSTER: config.broker_cluster_name,
            },
            born_timestamp=broker.clock_ms(),
            born_host=broker.store_host,
            store_host=broker.store_host,
        )
        put = broker.store.async_put_message(message)
        if put.done() and not put.result().is_ok:
            if not self.lost:
                logger.warning(
                    "traces cannot be stored in %s: %s; further failures are only counted",
                    self._topic,
                    put.result().reason or put.result().status.name,
                )
            self.lost += len(bodies)


def _id_of(message: MessageExt) -> str:
    return message.uniq_key or message.msg_id


def _request_id(context: ConsumeMessageContext, message: MessageExt) -> str:
    """The same id for the delivery of a message and its return; another for each group and each try."""
    return f"{_id_of(message)}@{context.consumer_group}@{message.reconsume_times}"


def _shortened(keys: str) -> str:
    """The keys of one message may be too long; the first of them are kept."""
    return keys if len(keys) <= KEYS_SIZE_MAX else keys[:KEYS_SIZE_MAX].rpartition(" ")[0]
