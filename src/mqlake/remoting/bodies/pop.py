"""The body of 200151 BATCH_ACK_MESSAGE: acknowledgements of many messages, by checkpoint.

    {"acks":[{"b":"BQ==","c":"G","it":60000,"pt":1795310521607,"q":0,"r":"0","rq":3,"so":100,"t":"T"}],"brokerName":"b"}

`b`: base64 of a set of bits, the lowest bit of the first byte first; bit i stands for queue offset so + i.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Self

from mqlake.errors import FormatError
from mqlake.message import NORMAL_TOPIC, real_topic
from mqlake.remoting.bodies.codec import JsonBody, json_name

BITS_MAX = 1 << 16
"""Bits in one entry; a pop gives out 32 messages."""

_LONG_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


class BatchAck(JsonBody):
    """Messages of one checkpoint. `topic` is the topic itself, also of messages from its retry topic: see `retry`."""

    consumer_group: str = field(default="", metadata=json_name("c"))
    topic: str = field(default="", metadata=json_name("t"))
    retry: str = field(default="0", metadata=json_name("r"))
    start_offset: int = field(default=0, metadata=json_name("so"))
    queue_id: int = field(default=0, metadata=json_name("q"))
    revive_queue_id: int = field(default=0, metadata=json_name("rq"))
    pop_time: int = field(default=0, metadata=json_name("pt"))
    invisible_time: int = field(default=0, metadata=json_name("it"))
    bit_set: str = field(default="", metadata=json_name("b"))

    @property
    def flag(self) -> int:
        """0, 1 or 2, as in a receipt handle."""
        return int(self.retry) if self.retry in ("1", "2") else NORMAL_TOPIC

    @property
    def real_topic(self) -> str:
        """The topic that holds the messages."""
        return real_topic(self.topic, self.consumer_group, self.flag)

    @property
    def offsets(self) -> list[int]:
        """The queue offsets that are acknowledged. FormatError if `bit_set` is not base64 or too long."""
        try:
            data = base64.b64decode(self.bit_set, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FormatError(0, f"BatchAck.b: {self.bit_set[:80]!r} is not base64: {error}") from None
        if len(data) * 8 > BITS_MAX:
            raise FormatError(0, f"BatchAck.b: {len(data) * 8} bits; at most {BITS_MAX} are allowed")
        bits = int.from_bytes(data, "little")
        return [self.start_offset + i for i in range(bits.bit_length()) if bits >> i & 1]


def encode_bit_set(start_offset: int, offsets: Iterable[int]) -> str:
    """BatchAck.bit_set of queue offsets; ValueError for one before `start_offset`."""
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start_offset)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class BatchAckMessageRequestBody(JsonBody):
    broker_name: str = ""
    acks: list[BatchAck] = field(default_factory=list)

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Entries may have long names (`consumerGroup`) or short ones (`c`)."""
        acks = value.get("acks") if isinstance(value, dict) else None
        if isinstance(acks, list):
            renamed = [
                {_LONG_NAMES.get(name, name): one for name, one in ack.items()}
                if isinstance(ack, dict)
                else ack
                for ack in acks
            ]
            value = {**value, "acks": renamed}
        return super().from_value(value)
