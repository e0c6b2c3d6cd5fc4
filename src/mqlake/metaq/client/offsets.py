"""OffsetStorage: where the offsets of a group are stored.

ZkOffsetStorage      in ZooKeeper, for all consumers of the group
LocalOffsetStorage   in a local file, for the only consumer of a group

{"group": [{"topic": "t", "partition": {"brokerId": 0, "partition": 1}, "offset": 4711, "messageId": 7}]}
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from mqlake.base.durable import write_durably
from mqlake.errors import FormatError
from mqlake.metaq.client.session import MetaSession
from mqlake.metaq.message import Partition
from mqlake.metaq.zookeeper.paths import ConsumedOffset
from mqlake.metaq.zookeeper.session import ZkSession

TopicPartition = tuple[str, Partition]


class OffsetStorage(Protocol):
    async def load(self, group: str, topic: str, partition: Partition) -> ConsumedOffset | None:
        """None if there is none yet. FormatError, RemotingError, OSError."""

    async def commit(self, group: str, offsets: Mapping[TopicPartition, ConsumedOffset]) -> None:
        """RemotingError, OSError."""


class ZkOffsetStorage:
    def __init__(self, session: MetaSession) -> None:
        self._session = session

    async def load(self, group: str, topic: str, partition: Partition) -> ConsumedOffset | None:
        path = self._session.paths.consumer_offset(group, topic, partition)
        raw = await self._session.ask(lambda zookeeper: zookeeper.read(path))
        return ConsumedOffset.decode(raw) if raw else None

    async def commit(self, group: str, offsets: Mapping[TopicPartition, ConsumedOffset]) -> None:
        def write(zookeeper: ZkSession) -> None:
            for (topic, partition), offset in offsets.items():
                zookeeper.put_persistent(
                    self._session.paths.consumer_offset(group, topic, partition), offset.encode()
                )

        await self._session.ask(write)


class LocalOffsetStorage:
    """Only one process at a time may use a file."""

    def __init__(self, path: str = "") -> None:
        """`path` empty: ~/.meta_offsets."""
        self.path = path or os.path.expanduser("~/.meta_offsets")

    async def load(self, group: str, topic: str, partition: Partition) -> ConsumedOffset | None:
        return self._read().get(group, {}).get((topic, partition))

    async def commit(self, group: str, offsets: Mapping[TopicPartition, ConsumedOffset]) -> None:
        known = self._read()
        known.setdefault(group, {}).update(offsets)
        value = {
            name: [
                {
                    "topic": topic,
                    "partition": {"brokerId": partition.broker_id, "partition": partition.partition},
                    "offset": offset.offset,
                    "messageId": offset.message_id,
                }
                for (topic, partition), offset in of_group.items()
            ]
            for name, of_group in known.items()
        }
        await asyncio.to_thread(write_durably, self.path, orjson.dumps(value))

    def _read(self) -> dict[str, dict[TopicPartition, ConsumedOffset]]:
        try:
            with open(self.path, "rb") as file:
                value: dict[str, list[dict[str, Any]]] = orjson.loads(file.read() or b"{}")
            return {
                group: {
                    (
                        each["topic"],
                        Partition(each["partition"]["brokerId"], each["partition"]["partition"]),
                    ): (ConsumedOffset(int(each["offset"]), int(each.get("messageId", 0))))
                    for each in entries
                }
                for group, entries in value.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(0, f"{self.path} is not a file of offsets: {error}") from None
