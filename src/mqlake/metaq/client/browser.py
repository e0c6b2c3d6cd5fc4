"""TopicBrowser: all messages of a topic from the first to the last; leaves nothing in ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mqlake.base.arguments import checked
from mqlake.errors import FormatError
from mqlake.metaq.client.fetch import OffsetMovedError, PartitionClosedError, fetch, nearest_offset
from mqlake.metaq.client.session import MetaSession
from mqlake.metaq.formats.record import MessageIterator
from mqlake.metaq.message import Message, Partition

GROUP = "Just_for_Browser"
MAX_SIZE = 1 << 20
MAX_SIZE_LIMIT = 64 << 20


@checked
class TopicBrowser:
    """`async for message in browser`: partition after partition, each to its current end.

    Raises FormatError at damage, with topic and partition; RemotingError.
    """

    def __init__(self, session: MetaSession, topic: str) -> None:
        self.topic = topic
        self.closed: list[Partition] = []
        """Partitions that were skipped because an operator has closed them."""
        self._session = session

    async def partitions(self) -> list[Partition]:
        """The topic's partitions; empty if no broker has the topic. RemotingError."""
        return sorted(map(Partition.parse, await self._session.subscribe_partitions(self.topic)))

    async def __aiter__(self) -> AsyncIterator[Message]:
        addresses = await self._session.broker_addresses()
        for partition in await self.partitions():
            if (address := addresses.get(partition.broker_id)) is not None:
                try:
                    async for message in self._browse(address, partition):
                        yield message
                except PartitionClosedError:
                    self.closed.append(partition)

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
            try:
                for message in messages:
                    yield message
            except FormatError as error:
                raise self._damage(partition, offset + error.offset, error.reason) from None
            offset += messages.offset
            if messages.offset:
                max_size = MAX_SIZE
            elif len(data) >= max_size < MAX_SIZE_LIMIT:
                max_size *= 2
            elif await self._ends(address, partition, offset + len(data)):
                raise self._damage(partition, offset, f"{len(data)} bytes at the end are not a message")
            else:
                return  # a message that is being written, or longer than MAX_SIZE_LIMIT

    def _damage(self, partition: Partition, offset: int, reason: str) -> FormatError:
        return FormatError(offset, f"{self.topic} {partition}: {reason}")

    async def _ends(self, address: str, partition: Partition, offset: int) -> bool:
        """True if a segment or the partition ends at `offset`, and with it a message."""
        remoting = self._session.remoting
        return await nearest_offset(remoting, address, self.topic, GROUP, partition, offset) == offset
