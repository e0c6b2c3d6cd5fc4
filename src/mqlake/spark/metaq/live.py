"""MetaQ's live brokers for the source `metaq`: the partitions as they are when a query is planned.

    driver   ZooKeeper ─▶ brokers of the topic ─▶ per partition: first and end offset ─▶ ranges
    task     range ─▶ get, get, … ─▶ bytes of the segments ─▶ scan ─▶ Records, or Damage

A read joins no group and stores no offset, so it leaves nothing in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from mqlake.errors import OffsetOutOfRangeError, ResponseError
from mqlake.lake.log.topics import require_topics
from mqlake.metaq.client.browser import GROUP, MAX_SIZE, MAX_SIZE_LIMIT
from mqlake.metaq.client.fetch import OffsetMovedError, fetch, nearest_offset
from mqlake.metaq.client.remoting import RemotingClient
from mqlake.metaq.config.meta_config import ZKConfig
from mqlake.metaq.formats.command import HttpStatus
from mqlake.metaq.formats.scan import ScanStop, find_record, scan_records
from mqlake.metaq.message import Partition
from mqlake.metaq.store.columns import Damage, Records, as_columns
from mqlake.metaq.zookeeper.paths import MetaZookeeper, TopicBroker, broker_node
from mqlake.metaq.zookeeper.session import ZkSession

logger = logging.getLogger(__name__)

LAST = (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True)
class LiveRange:
    """Offsets `start` to `end` of a partition; records begin at both. `place` is the broker, `meta://host:port`."""

    place: str
    topic: str
    broker_id: int
    partition: int
    start: int
    end: int
    fail_on_data_loss: bool = True

    @property
    def name(self) -> str:
        return f"{self.place}/{self.topic}-{self.partition}"

    def part(self, start: int, end: int | None = None) -> LiveRange:
        return replace(self, start=start, end=self.end if end is None else end)


def live_ranges(
    zookeeper: str, root: str, topics: frozenset[str] | None, *, fail_on_data_loss: bool = True
) -> list[LiveRange]:
    """All partitions of the topics (None: of all topics) on all masters, except those that never had a message.

    ConfigError for an unknown topic, RemotingError, ResponseError, FormatError.
    """
    paths = MetaZookeeper(root)
    session = ZkSession(ZKConfig.of_command(zookeeper, root))
    found: list[tuple[str, str, Partition]] = []
    try:
        known = session.children(paths.broker_topics_sub)
        if topics is not None:
            require_topics(topics, set(known))
        for topic in known if topics is None else sorted(topics):
            for node in session.children(paths.topic_sub(topic)):
                number = node.removesuffix("-m")
                if not number.isdecimal() or node != broker_node(int(number)):
                    continue  # a slave, which has the same as its master
                address = session.read(paths.master(int(number)))
                parts = TopicBroker.decode(session.read(f"{paths.topic_sub(topic)}/{node}")).num_parts
                if address:
                    found += [(address.decode(), topic, Partition(int(number), n)) for n in range(parts)]
    finally:
        session.close()
    with _Client() as client:
        ranges = [client.range(*each) for each in found]
    return [replace(each, fail_on_data_loss=fail_on_data_loss) for each in ranges if each is not None]


def fetch_range(wanted: LiveRange, *, verify: bool) -> Iterator[Records | Damage]:
    """Yields the records of a range. OffsetOutOfRangeError if the broker has deleted them since, RemotingError,
    ResponseError."""
    with _Client() as client:
        offset, size = wanted.start, MAX_SIZE
        while offset < wanted.end:
            try:
                data = client.fetch(wanted, offset, size)
            except OffsetMovedError as moved:
                text = f"{wanted.name}: offset {offset} is gone, the broker continues at {moved.offset}"
                if wanted.fail_on_data_loss or moved.offset <= offset:
                    raise OffsetOutOfRangeError(text) from None
                logger.warning("%s; reading continues with what is left", text)
                offset = moved.offset
                continue
            if not data:
                text = f"{wanted.name}: offset {offset} is gone, the partition ends before it now"
                if wanted.fail_on_data_loss:
                    raise OffsetOutOfRangeError(text)
                logger.warning("%s", text)
                return
            buf = np.frombuffer(data, np.uint8)
            limit = min(len(buf), wanted.end - offset)
            scan = scan_records(buf, 0, limit, check_crc=verify)
            if len(scan):
                yield from as_columns(scan, buf, wanted.name, offset, offset)
            elif scan.stop is ScanStop.TRUNCATED and len(buf) >= size < MAX_SIZE_LIMIT:
                size *= 2
                continue
            size = MAX_SIZE
            if scan.stop is not ScanStop.INVALID and scan.end > 0:
                offset += scan.end
                continue
            following = find_record(buf, scan.end + 1, limit)
            until = following if following >= 0 else limit
            first = offset + scan.end
            yield Damage(wanted.name, first, offset + until, first, "no record begins here")
            offset += until


class _Client:
    """A client with its own event loop; calls block."""

    def __enter__(self) -> _Client:
        self._loop = asyncio.new_event_loop()
        self._remoting = RemotingClient()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._remoting.close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def range(self, address: str, topic: str, partition: Partition) -> LiveRange | None:
        """None for a partition without messages so far."""
        try:
            start, end = (
                self._run(nearest_offset(self._remoting, address, topic, GROUP, partition, offset))
                for offset in (0, LAST)
            )
        except ResponseError as error:
            if error.code == HttpStatus.NOT_FOUND:
                return None
            raise
        return LiveRange(address, topic, partition.broker_id, partition.partition, start, end)

    def fetch(self, wanted: LiveRange, offset: int, size: int) -> bytes | None:
        partition = Partition(wanted.broker_id, wanted.partition)
        return self._run(fetch(self._remoting, wanted.place, wanted.topic, GROUP, partition, offset, size))
