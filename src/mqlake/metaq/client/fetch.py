"""A `get` or `offset` request and its answer; shared by consumers and browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.errors import RemotingError, ResponseError
from mqlake.metaq.formats.command import BooleanCommand, DataCommand, GetCommand, HttpStatus, OffsetCommand
from mqlake.metaq.message import Partition

if TYPE_CHECKING:
    from mqlake.metaq.client.remoting import RemotingClient

FETCH_S = 10.0


class OffsetMovedError(Exception):
    """Continue at `offset`."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class PartitionClosedError(ResponseError):
    """An operator has closed the partition, and may open it again."""


async def fetch(
    remoting: RemotingClient,
    address: str,
    topic: str,
    group: str,
    partition: Partition,
    offset: int,
    max_size: int,
) -> bytes | None:
    """Records from `offset` on, the last one perhaps incomplete; None if there are none (yet).

    Raises OffsetMovedError, PartitionClosedError, ResponseError, RemotingError.
    """
    command = GetCommand(topic, group, partition.partition, offset, max_size, remoting.next_opaque())
    answer = await remoting.invoke(address, command, FETCH_S)
    if isinstance(answer, DataCommand):
        return answer.data
    if answer.code == HttpStatus.MOVED:
        raise OffsetMovedError(_offset(answer))
    if answer.code == HttpStatus.NOT_FOUND:
        return None
    if answer.code == HttpStatus.FORBIDDEN:
        raise PartitionClosedError(answer.code, answer.message)
    raise ResponseError(answer.code, answer.message)


async def nearest_offset(
    remoting: RemotingClient, address: str, topic: str, group: str, partition: Partition, offset: int
) -> int:
    """The offset nearest to `offset` at which the broker says to continue. ResponseError, RemotingError."""
    command = OffsetCommand(topic, group, partition.partition, offset, remoting.next_opaque())
    answer = await remoting.ask(address, command, FETCH_S)
    if answer.code != HttpStatus.SUCCESS:
        raise ResponseError(answer.code, answer.message)
    return _offset(answer)


def _offset(answer: BooleanCommand) -> int:
    if not answer.message.removeprefix("-").isdigit():
        raise RemotingError(f"not an offset: {answer.message[:80]!r}")
    return int(answer.message)
