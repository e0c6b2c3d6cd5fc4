"""The broker's configuration after a migration: topics, and how far MetaQ's consumer groups had come.

    /meta/consumers/<group>/offsets/<topic>/<broker>-<partition>   "<id>-<byte offset>"
        ─▶ the number of messages before that byte ─▶ config/consumerOffset.json   {"topic@group": {queue: number}}

A position inside a message becomes that message, one after the end becomes the end: it is better to deliver a message
twice than not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqlake.base.config_file import ConfigFile
from mqlake.errors import FormatError
from mqlake.formats.arrow import Ints
from mqlake.metaq.config.meta_config import ZKConfig
from mqlake.metaq.message import Partition
from mqlake.metaq.zookeeper.paths import ConsumedOffset, MetaZookeeper
from mqlake.metaq.zookeeper.session import ZkSession
from mqlake.migrate.report import MigratedPosition


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """`offset`: MetaQ's, of the byte that the group reads next."""

    group: str
    topic: str
    partition: int
    offset: int


def consumer_positions(zookeeper: str, *, root: str = "/meta", broker_id: int = 0) -> list[GroupPosition]:
    """All groups' positions in one broker's partitions. RemotingConnectError, RemotingError, FormatError."""
    paths = MetaZookeeper(root)
    session = ZkSession(ZKConfig.of_command(zookeeper, root))
    try:
        return [
            GroupPosition(group, topic, partition.partition, ConsumedOffset.decode(value).offset)
            for group in session.children(paths.consumers)
            for topic in session.children(f"{paths.consumers}/{group}/offsets")
            for partition in map(
                Partition.parse, session.children(f"{paths.consumers}/{group}/offsets/{topic}")
            )
            if partition.broker_id == broker_id
            and (value := session.read(paths.consumer_offset(group, topic, partition)))
        ]
    except FormatError as error:
        raise FormatError(error.offset, f"ZooKeeper {zookeeper}: {error.reason}") from None
    finally:
        session.close()


class PositionCounter:
    """Counts the messages before one position while its partition is read."""

    def __init__(self, position: GroupPosition) -> None:
        self.position = position
        self.seen = False
        self.queue_offset = 0

    def is_in(self, topic: str, partition: int) -> bool:
        """True if the position is one of this partition, which is then known to exist."""
        found = (self.position.topic, self.position.partition) == (topic, partition)
        self.seen = self.seen or found
        return found

    def count(self, ends: Ints) -> None:
        """`ends`: the offsets after each of the next records."""
        self.queue_offset += int(np.searchsorted(ends, self.position.offset, side="right"))


def write_consumer_offsets(
    store: str, counters: Sequence[PositionCounter], topics: Mapping[str, str]
) -> list[MigratedPosition]:
    """Puts the positions in migrated partitions into config/consumerOffset.json. StoreCorruptError, OSError."""
    found = [
        MigratedPosition(
            each.position.group,
            topics[each.position.topic],
            each.position.partition,
            each.position.offset,
            each.queue_offset,
        )
        for each in counters
        if each.seen
    ]
    if found:
        file = ConfigFile(os.path.join(store, "config", "consumerOffset.json"))
        value: dict[str, Any] = file.load() or {}
        table = value.setdefault("offsetTable", {})
        for each in found:
            table.setdefault(f"{each.topic}@{each.group}", {})[each.queue_id] = each.queue_offset
        file.persist(value)
    return found


def write_topics(store: str, queues: Mapping[str, int]) -> None:
    """Gives topics in config/topics.json at least so many queues; their other settings stay. OSError."""
    file = ConfigFile(os.path.join(store, "config", "topics.json"))
    value: dict[str, Any] = file.load() or {}
    table = value.setdefault("topicConfigTable", {})
    for topic, count in queues.items():
        known = table.setdefault(
            topic,
            {
                "attributes": {},
                "order": False,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
            },
        )
        for name in ("readQueueNums", "writeQueueNums"):
            known[name] = max(count, known.get(name, 0))
    file.persist(value)
