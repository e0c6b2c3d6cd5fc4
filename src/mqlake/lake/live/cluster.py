"""The requests of the source `rocketmq` to a live cluster, through mqlake.client: queues, offsets, messages.

    namesrvAddr ─▶ topics ─▶ queues (topic, broker, number) ─▶ [min, max) of each ─▶ pulls of raw records

Spark calls from plain threads, so an event loop runs just while something is asked. Records come as the broker
stores them; they become columns by the same scan as those of a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from mqlake.client import MessageQueue
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.client.api.name_servers import NameServers, parse_addresses
from mqlake.client.config import ClientConfig
from mqlake.client.consume.pull_api import PullAPIWrapper
from mqlake.client.consume.subscription import build_subscription_data
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.results import PullStatus
from mqlake.client.routes import readable_queues
from mqlake.client.static_topics import logical_queues
from mqlake.errors import (
    BadLengthError,
    FormatError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    did_you_mean,
    nearest,
)
from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import Scan, ScanStop, scan_records
from mqlake.formats.record import PHYSICAL_OFFSET_POSITION, RECORD_SIZE_MIN
from mqlake.lake.offsets import LastMessage, Span, outside
from mqlake.message import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    PROPERTY_INNER_NUM,
    MessageSysFlag,
    bytes_to_properties,
    is_system_topic,
)

T = TypeVar("T")

PULL_MAX_NUM = 1024
"""Asked for; a broker gives what it is configured to give."""
PIECE_BYTES = 4 << 20
"""Pulls are collected to about so much before they become columns."""
AT_ONCE = 64
"""Requests in flight at once."""
NOT_THERE_YET_S = 0.05
NOT_THERE_TRIES = 100
"""A message that the broker said it has, but does not give yet, is asked for so often."""

_SIZE, _OFFSET = Struct(">i"), Struct(">q")


@dataclass(frozen=True, order=True)
class Queue:
    topic: str
    broker: str
    queue_id: int

    @property
    def name(self) -> str:
        """As offsets in JSON call it."""
        return f"{self.broker}:{self.queue_id}"

    def __str__(self) -> str:
        return f"topic {self.topic}, broker {self.broker}, queue {self.queue_id}"


DEFAULT_GROUP = "mqlake-spark"


@dataclass(frozen=True)
class Cluster:
    """The name servers, and the group that messages are read with; a pickle has all of it, the credentials too."""

    namesrv_addr: str
    group: str = DEFAULT_GROUP
    access_key: str = ""
    secret_key: str = ""


class Live:
    """Use it in a `with`. Raises RemotingError and its like, NoNameServerError, TopicNotFoundError.

    A queue of a static topic has gaps where it moved to another broker, which are no losses: see `gaps`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gaps: dict[Queue, list[Span]] = {}
        """For the queues of static topics, as soon as they are known: offsets that no message ever had, in order."""
        self._loop = asyncio.new_event_loop()
        self._handles: dict[Queue, Any] = {}

    def __enter__(self) -> Live:
        async def make() -> None:
            cluster = self.cluster
            self.client = MQClientInstance(
                ClientConfig(
                    namesrv_addr=cluster.namesrv_addr,
                    access_key=cluster.access_key,
                    secret_key=cluster.secret_key,
                )
            )
            self._pulls = PullAPIWrapper(self.client, cluster.group)

        self.run(make())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.client.close())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def check(self) -> None:
        """Asks the name servers for an answer. NoNameServerError, ConfigError for an invalid address."""
        with contextlib.suppress(TopicNotFoundError):
            self.run(self.client.update_topic_route(AUTO_CREATE_TOPIC_KEY_TOPIC))

    # ------------------------------------------------------------------ topics and queues

    def topics_like(self, pattern: str) -> list[str]:
        """Topics whose whole name the pattern matches, without those that brokers keep for themselves."""
        return sorted(t for t in self._topics() if re.fullmatch(pattern, t) and not is_system_topic(t))

    def _topics(self) -> set[str]:
        servers = NameServers(self.client.remoting, parse_addresses(self.cluster.namesrv_addr))
        return self.run(servers.get_topic_list())

    def queues(self, topics: Iterable[str]) -> list[Queue]:
        """The queues that may be read, sorted. TopicNotFoundError, which names the nearest topic that is there."""
        try:
            return self.run(self._queues(topics))
        except TopicNotFoundError as error:
            near = nearest(error.topic, self._topics())
            raise TopicNotFoundError(error.topic, f"{error.reason}{did_you_mean(near)}") from None

    async def _queues(self, topics: Iterable[str]) -> list[Queue]:
        found = []
        for topic in topics:
            route = await self.client.update_topic_route(topic)
            if route.topic_queue_mapping_by_broker:
                await self._find_gaps(
                    topic, [data.broker_name for data in route.broker_datas if data.broker_name]
                )
            for handle in readable_queues(route, topic):
                queue = Queue(topic, handle.broker_name, handle.queue_id)
                self._handles[queue] = handle
                found.append(queue)
        return sorted(found)

    async def _find_gaps(self, topic: str, names: Iterable[str]) -> None:
        """Asks the brokers of a static topic where the parts of its queues end, and the next begin."""
        brokers = BrokerAPI(self.client.remoting)
        masters = [self.client.find_broker_address_in_subscribe(name) for name in names]
        configs = await asyncio.gather(*(brokers.get_topic_config_and_mapping(at, topic) for at in masters))
        stats = await asyncio.gather(*(brokers.get_topic_stats_info(at, topic) for at in masters))
        ends = {queue: each.max_offset for table in stats for queue, each in table.offset_table.items()}
        mappings = [config.mapping_detail for config in configs if config.mapping_detail is not None]
        for number, logical in logical_queues(mappings, complete=False).items():
            parts = [item for item in logical.items if item.is_decided]
            gaps = self.gaps[Queue(topic, logical.handle.broker_name, number)] = []
            for before, after in itertools.pairwise(parts):
                place = MessageQueue(topic=topic, broker_name=before.bname, queue_id=before.queue_id)
                if place in ends:
                    gaps.append((before.logical_or_unknown(ends[place]), after.logic_offset))

    def with_messages(self, queue: Queue, first: int, last: int) -> list[Span]:
        """Returns the parts of the offsets [first, last) that messages have or had."""
        return outside(self.gaps.get(queue, ()), first, last)

    def any_queue(self, topic: str, broker: str) -> MessageQueue:
        """For a pop: whichever of the broker's queues."""
        return MessageQueue(topic=topic, broker_name=broker, queue_id=-1)

    # ------------------------------------------------------------------ offsets

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, tuple[int, int]]:
        """The first offset of each queue, and the one that its next message will have."""

        async def ask(queue: Queue) -> tuple[int, int]:
            address, handle = self._address(queue), self._handles[queue]
            low, high = await asyncio.gather(
                self.client.api.get_min_offset(address, handle),
                self.client.api.get_max_offset(address, handle),
            )
            # a queue that nothing was ever sent to has no first message: -1
            return max(low, 0), max(low, high, 0)

        return self._of_each(queues, ask)

    def at_time(self, times: Mapping[Queue, int]) -> dict[Queue, int]:
        """The offset of the first message stored at the time (ms) or later."""

        async def ask(queue: Queue) -> int:
            found = await self.client.api.search_offset(
                self._address(queue), self._handles[queue], times[queue]
            )
            return max(found, 0)

        return self._of_each(times, ask)

    def last_messages(self, offsets: Mapping[Queue, int]) -> dict[Queue, LastMessage | None]:
        """Returns for each queue the message before an offset; None where the broker does not have it (any more) or
        what it gives cannot be read."""
        everything = {topic: build_subscription_data(topic) for topic in {queue.topic for queue in offsets}}

        async def ask(queue: Queue) -> LastMessage | None:
            handle, place = self._handles.get(queue), offsets[queue] - 1
            if handle is None or place < 0:
                return None
            result = await self._pulls.pull(
                handle, everything[queue.topic], place, max_num=1, suspend_s=0, lite=True
            )
            return last_message(result.records, place - result.offset_delta)

        self.queues({queue.topic for queue in offsets if queue not in self._handles})
        return self._of_each(offsets, ask)

    def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Tells the brokers how far the group has come."""

        async def tell(queue: Queue) -> None:
            await self.client.api.update_consumer_offset(
                self._address(queue), group, self._handles[queue], offsets[queue], oneway=False
            )

        self._of_each(offsets, tell)

    def _address(self, queue: Queue) -> str:
        return self.client.find_broker_address_in_subscribe(
            self.client.broker_name_of(self._handles[queue]) if queue in self._handles else queue.broker
        )

    def _of_each(self, queues: Iterable[Queue], ask: Any) -> dict[Queue, Any]:
        async def all_of_them() -> dict[Queue, Any]:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(queue: Queue) -> Any:
                async with gate:
                    return await ask(queue)

            asked = list(queues)
            return dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))

        return self.run(all_of_them())

    # ------------------------------------------------------------------ messages

    def pull(self, queue: Queue, start: int, end: int) -> Iterator[tuple[bytes, int]]:
        """Raw records that hold the messages [start, end), perhaps with others around, in pieces; each piece with
        what is to be added to the queue offsets in it.

        What the broker has deleted it passes over without a word: see `missing`. Raises OffsetOutOfRangeError when
        it does not lead on.
        """
        pieces = self._pieces(queue, start, end)
        try:
            while (piece := self.run(anext(pieces, None))) is not None:
                yield piece
        finally:
            self.run(pieces.aclose())

    async def _pieces(self, queue: Queue, start: int, end: int) -> AsyncGenerator[tuple[bytes, int]]:
        """Yields what the pulls bring, together as long as the same is to be added: a static topic's parts differ in
        it."""
        records: list[bytes] = []
        delta = 0
        async for found, its_delta in self._pull(queue, start, end):
            if records and (its_delta != delta or sum(map(len, records)) >= PIECE_BYTES):
                yield b"".join(records), delta
                records = []
            records.append(found)
            delta = its_delta
        if records:
            yield b"".join(records), delta

    async def _pull(self, queue: Queue, start: int, end: int) -> AsyncGenerator[tuple[bytes, int]]:
        if queue not in self._handles:
            await self._queues([queue.topic])
        handle = self._handles.get(queue)
        if handle is None:
            raise OffsetOutOfRangeError(f"{queue}: there is no such queue (any more)")
        everything = build_subscription_data(queue.topic)
        offset, tries = start, 0
        while offset < end:
            result = await self._pulls.pull(
                handle, everything, offset, max_num=min(PULL_MAX_NUM, end - offset), suspend_s=0, lite=True
            )
            status, following = result.pull_status, result.next_begin_offset
            if status is PullStatus.FOUND:
                yield result.records, result.offset_delta
            elif status is PullStatus.NO_NEW_MSG and following <= offset and tries < NOT_THERE_TRIES:
                tries += 1
                await asyncio.sleep(NOT_THERE_YET_S)
                continue
            if following <= offset:
                raise OffsetOutOfRangeError(
                    f"{queue}: offsets {offset} to {end} are not there; "
                    f"the broker has {result.min_offset} to {result.max_offset}"
                )
            offset, tries = following, 0


def last_message(records: bytes, offset: int) -> LastMessage | None:
    """Returns the message at a queue offset, if it is among the pulled records of one queue."""
    found = None
    with contextlib.suppress(FormatError):  # whoever reads it says what is wrong with it
        for _, scan in scans_of(records):
            before = np.flatnonzero(
                scan.queue_offset <= offset
            )  # a batch has the offset of its first message
            if len(before):
                row = before[-1]
                found = LastMessage(int(scan.physical_offset[row]), int(scan.store_timestamp[row]))
    return found


def scans_of(records: bytes) -> Iterator[tuple[Bytes, Scan]]:
    """Columns of pulled records, their CRCs checked. FormatError subclasses for damage.

    Each record is given the place it now has as its physical offset, which a scan insists on; the columns have
    the one in the broker's log.
    """
    data = bytearray(records)
    offsets, position = [], 0
    while position < len(data):
        if len(data) - position < RECORD_SIZE_MIN:
            raise BadLengthError(position, f"{len(data) - position} bytes are no record")
        at = position + PHYSICAL_OFFSET_POSITION
        offsets.append(_OFFSET.unpack_from(data, at)[0])
        _OFFSET.pack_into(data, at, position)
        size = _SIZE.unpack_from(data, position)[0]
        if size < RECORD_SIZE_MIN:
            raise BadLengthError(position, f"a record cannot have {size} bytes")
        position += size
    buf, physical_offset = np.frombuffer(data, np.uint8), np.array(offsets, np.int64)
    position = done = 0
    while position < len(buf):
        scan = scan_records(buf, position, len(buf), 0)
        if scan.stop not in (ScanStop.LIMIT, ScanStop.MAX_RECORDS):
            raise BadLengthError(scan.end, scan.stop_reason or "no record begins there")
        scan.physical_offset = physical_offset[done : done + len(scan)]
        yield buf, scan
        position, done = scan.end, done + len(scan)


def missing(buf: Bytes, scan: Scan, expected: int) -> tuple[list[tuple[int, int]], int]:
    """Queue offsets [from, to) between the messages of a scan of one queue, of which `expected` should be the first;
    and the offset after them."""
    if not len(scan):
        return [], expected
    begins = scan.queue_offset
    ends = begins + 1
    for row in np.flatnonzero(scan.sys_flag & MessageSysFlag.INNER_BATCH_FLAG).tolist():
        start = int(scan.properties_start[row])
        packed = buf[start : start + int(scan.properties_length[row])].tobytes()
        number = bytes_to_properties(packed).get(PROPERTY_INNER_NUM, "1")
        ends[row] = begins[row] + (int(number) if number.isdecimal() else 1)
    after = np.maximum.accumulate(np.concatenate([[expected], ends]))
    gaps = np.flatnonzero(begins > after[:-1])
    return [(int(after[row]), int(begins[row])) for row in gaps], int(after[-1])
