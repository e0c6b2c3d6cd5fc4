"""MetaZookeeper: the nodes and their values.

    <root>/brokers/ids/<bid>                               meta://host:port        persistent, for old clients
    <root>/brokers/ids/<bid>/master                        meta://host:port        ephemeral
    <root>/brokers/ids/<bid>/slave<sid>                    meta://host:port        ephemeral
    <root>/brokers/ids/<bid>/master_config_checksum        CRC-32 of server.ini    ephemeral
    <root>/brokers/topics/<topic>/<bid>-m | -s<sid>        number of partitions    ephemeral, for old clients
    <root>/brokers/topics-pub/<topic>/<bid>-m | -s<sid>    {"broker":..,"numParts":..}  ephemeral: accepts messages
    <root>/brokers/topics-sub/<topic>/<bid>-m | -s<sid>    the same                ephemeral: delivers messages
    <root>/consumers/<group>/ids/<consumer>                topicA,topicB           ephemeral
    <root>/consumers/<group>/offsets/<topic>/<bid>-<p>     <message id>-<offset>   persistent
    <root>/consumers/<group>/owners/<topic>/<bid>-<p>      <consumer>              ephemeral

All values are UTF-8 text; inner nodes are empty.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from mqlake.errors import FormatError
from mqlake.metaq.message import Partition


class MetaZookeeper:
    """The paths below one root."""

    def __init__(self, root: str = "/meta") -> None:
        self.root = "/" + root.strip("/") if root.strip("/") else ""
        self.broker_ids = f"{self.root}/brokers/ids"
        self.broker_topics = f"{self.root}/brokers/topics"
        self.broker_topics_pub = f"{self.root}/brokers/topics-pub"
        self.broker_topics_sub = f"{self.root}/brokers/topics-sub"
        self.consumers = f"{self.root}/consumers"

    def broker_id(self, broker_id: int) -> str:
        return f"{self.broker_ids}/{broker_id}"

    def master(self, broker_id: int) -> str:
        return f"{self.broker_ids}/{broker_id}/master"

    def slave(self, broker_id: int, slave_id: int) -> str:
        return f"{self.broker_ids}/{broker_id}/slave{slave_id}"

    def master_config_checksum(self, broker_id: int) -> str:
        return f"{self.broker_ids}/{broker_id}/master_config_checksum"

    def topic_pub(self, topic: str) -> str:
        return f"{self.broker_topics_pub}/{topic}"

    def topic_sub(self, topic: str) -> str:
        return f"{self.broker_topics_sub}/{topic}"

    def consumer_ids(self, group: str) -> str:
        return f"{self.consumers}/{group}/ids"

    def consumer_offset(self, group: str, topic: str, partition: Partition) -> str:
        return f"{self.consumers}/{group}/offsets/{topic}/{partition}"

    def consumer_owner(self, group: str, topic: str, partition: Partition) -> str:
        return f"{self.consumers}/{group}/owners/{topic}/{partition}"


def broker_node(broker_id: int, slave_id: int = -1) -> str:
    """A broker's node below a topic: `0-m`, `0-s1`."""
    return f"{broker_id}-s{slave_id}" if slave_id >= 0 else f"{broker_id}-m"


class TopicBroker(NamedTuple):
    """A broker's partitions of a topic."""

    broker: str
    num_parts: int

    def encode(self) -> bytes:
        return orjson.dumps({"numParts": self.num_parts, "broker": self.broker})

    @classmethod
    def decode(cls, data: bytes | None) -> TopicBroker:
        """FormatError."""
        try:
            value = orjson.loads(data or b"")
            found = cls(value["broker"], value["numParts"])
            if not isinstance(found.broker, str) or not isinstance(found.num_parts, int):
                raise TypeError("fields of the wrong type")
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise FormatError(0, f"not a topic's broker: {data!r}: {error}") from None
        return found


class ConsumedOffset(NamedTuple):
    """A group's position in a partition."""

    offset: int
    message_id: int = 0
    """Id of the last consumed message; often negative."""

    def encode(self) -> bytes:
        return f"{self.message_id}-{self.offset}".encode()

    @classmethod
    def decode(cls, data: bytes) -> ConsumedOffset:
        """`<id>-<offset>`, split at the last dash, or before 1.4 `<offset>`. FormatError."""
        identity, dash, offset = data.decode("utf-8", "replace").rpartition("-")
        try:
            return cls(int(offset), int(identity)) if dash and identity else cls(int(offset))
        except ValueError:
            raise FormatError(0, f"not a consumer's offset: {data!r}") from None
