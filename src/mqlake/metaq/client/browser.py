"""TopicBrowser: all messages of a topic from the first to the last, without a trace in ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mqlake.metaq.client.fetch import OffsetMovedError, fetch
from mqlake.metaq.client.session import MetaSession
from mqlake.metaq.formats.record import MessageIterator
from mqlake.metaq.message import Message, Partition

GROUP = "Just_for_Browser"
MAX_SIZE = 1 << 20
MAX_SIZE_LIMIT = 64 << 20


class TopicBrowser:
    """`async for message in browser`: partition after partition, up to what is there when it gets there."""

    def __init__(self, session: MetaSession, topic: str) -> None:
        self.topic = topic
        self._session = session

    async def partitions(self) -> list[Partition]:
        """None when no broker gives the topic's messages. RemotingError."""
        return sorted(map(Partition.parse, await self._session.subscribe_partitions(self.topic)))

    async def __aiter__(self) -> AsyncIterator[Message]:
        addresses = await self._session.broker_addresses()
        for partition in await self.partitions():
            if (address := addresses.get(partition.broker_id)) is not None:
                async for message in self._browse(address, partition):
                    yield message

    async def _browse(self, address: str, partition: Partition) -> AsyncIterator[Message]:
        offset, max_size = 0, MAX_SIZE
        while True:
            try:
                data = await fetch(
                    self._session.remoting, address, self.topic, GROUP, partition, offset, max_size
                )
            except OffsetMovedError as moved:
                offset = moved.offset
                continue
            if data is None:
                return
            messages = MessageIterator(self.topic, data, partition)
            for message in messages:
                yield message
            offset += messages.offset
            if messages.offset:
                max_size = MAX_SIZE
            elif max_size >= MAX_SIZE_LIMIT or len(data) < max_size:
                return  # a message that is longer than anything, or still being written
            else:
                max_size *= 2
