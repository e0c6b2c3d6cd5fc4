"""MessageConsumer: takes its share of a group's partitions and passes their messages to listeners, one by one.

    ZooKeeper: members of the group, partitions ─▶ my share ─▶ own it ─▶ a task per partition
                                                                               │
        offsets ◀─ every few seconds, at the end, before releasing partitions ─┘

A listener that raises (or sets `message.rollback_only`) gets the message again, with increasing delays; after
`max_fetch_retries` the message goes to the RejectConsumptionHandler and the partition continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mqlake.base.arguments import checked
from mqlake.base.background import BackgroundWork
from mqlake.base.clock import now_ms
from mqlake.errors import (
    BadCrcError,
    ConfigError,
    FormatError,
    MqlakeError,
    RemotingConnectError,
    TruncatedRecordError,
)
from mqlake.metaq.client.balance import LoadBalanceStrategyType, partitions_of
from mqlake.metaq.client.fetch import OffsetMovedError, PartitionClosedError, fetch, nearest_offset
from mqlake.metaq.client.offsets import OffsetStorage, ZkOffsetStorage
from mqlake.metaq.client.recover import RecoverManager, RejectConsumptionHandler, drop_policy
from mqlake.metaq.client.session import MetaSession
from mqlake.metaq.formats.record import HEADER_SIZE, MessageIterator, decode_header
from mqlake.metaq.message import Message, Partition, check_topic
from mqlake.metaq.zookeeper.paths import ConsumedOffset
from mqlake.metaq.zookeeper.session import ZkSession

logger = logging.getLogger(__name__)

MAX_OFFSET = (1 << 63) - 1
"""As a first offset: begin at the end."""
REBALANCE_TRIES = 7
DELAY_PARTS = 10
PROCESSED_MAX = 4096
_GROUP_FORBIDDEN = set("~!#$%^&*()+=`'\",;/?[]<>.: \t\r\n")

MessageListener = Callable[[Message], Awaitable[None] | None]


@checked
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer. Times are in seconds, sizes in bytes."""

    group: str
    consumer_id: str = ""
    """Empty: made of the host name, the process id and a random number."""
    offset: int = 0
    """The offset at which a group without one begins; MAX_OFFSET: at the end."""
    max_delay_fetch_s: float = 5.0
    """The longest pause between fetches without messages."""
    commit_offset_period_s: float = 5.0
    max_fetch_retries: int = 5
    """How often a message is delivered again before it is rejected."""
    max_increase_fetch_data_retries: int = 5
    """How many fetches without a whole message before the fetch size grows."""
    max_size_limit: int = 64 << 20
    strategy: LoadBalanceStrategyType = LoadBalanceStrategyType.DEFAULT

    def __post_init__(self) -> None:
        if not self.group or set(self.group) & _GROUP_FORBIDDEN:
            raise ConfigError(f"{self.group!r} cannot be a group: use letters, digits, - and _")


@dataclass
class _Subscription:
    listener: MessageListener
    max_size: int


@dataclass
class _Owned:
    """A partition that this consumer owns, and its position there."""

    topic: str
    partition: Partition
    address: str
    offset: int
    max_size: int
    message_id: int = -1
    committed: int = -1
    retries: int = 0
    """How often the listener has refused the next message."""
    fruitless: int = 0
    """How many consecutive answers had no whole message."""
    delay_s: float = 0.0
    stopping: bool = False
    task: asyncio.Task[None] | None = None

    def advance(self, offset: int, message_id: int | None = None) -> None:
        """Moves to another offset and resets the counters."""
        self.offset = offset
        self.retries = self.fruitless = 0
        if message_id is not None:
            self.message_id = message_id


@dataclass
class _Processed:
    """The ids of the last messages: a message is not delivered twice, as in the original."""

    ids: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def add(self, message_id: int) -> None:
        self.ids[message_id] = None
        if len(self.ids) > PROCESSED_MAX:
            self.ids.popitem(last=False)


@checked
class MessageConsumer:
    """Created by a session: `subscribe` to topics, then `complete_subscribe`; `shutdown` at the end."""

    def __init__(
        self,
        session: MetaSession,
        config: ConsumerConfig,
        reject: RejectConsumptionHandler | None = None,
        offsets: OffsetStorage | None = None,
    ) -> None:
        """`offsets`: where the group's offsets are stored; None: in ZooKeeper."""
        self.config = config
        self.consumer_id = f"{config.group}_{config.consumer_id or _make_id()}"
        self._session = session
        self._reject = reject or drop_policy
        self._offsets = offsets or ZkOffsetStorage(session)
        self._subscriptions: dict[str, _Subscription] = {}
        self._owned: dict[tuple[str, Partition], _Owned] = {}
        self._processed = _Processed()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._register = True
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def subscribe(self, topic: str, listener: MessageListener, max_size: int = 1 << 20) -> None:
        """`listener` is a function or an async function of the message.

        IllegalTopicError, ConfigError after complete_subscribe.
        """
        check_topic(topic)
        if self._tasks:
            raise ConfigError("call subscribe before complete_subscribe")
        if topic in self._subscriptions:
            raise ConfigError(f"{topic!r} is already subscribed")
        self._subscriptions[topic] = _Subscription(listener, max_size)

    async def complete_subscribe(self) -> None:
        """Joins the group; returns when its first share is owned. RemotingError, ConfigError."""
        if not self._subscriptions:
            raise ConfigError("there is no subscription")
        _ = self._session.zookeeper
        self._session.on_new_session(self._session_began)
        await self._rebalance()
        self._tasks = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(self._commit_regularly())]
        if isinstance(self._reject, RecoverManager):
            listeners = {topic: each.listener for topic, each in self._subscriptions.items()}
            self._reject.start(self.config.group, listeners)

    @property
    def owned_partitions(self) -> list[tuple[str, Partition]]:
        """(topic, partition) of each partition that this consumer owns."""
        return sorted(self._owned)

    async def shutdown(self) -> None:
        """Lets the listeners finish their current message, commits, leaves the group."""
        if self._closed:
            return
        self._closed = True
        self._session.forget(self)
        self._session.remove_new_session(self._session_began)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self._reject, RecoverManager):
            await self._reject.stop()
        try:
            await self._give_up(list(self._owned))
            path = f"{self._session.paths.consumer_ids(self.config.group)}/{self.consumer_id}"
            await self._session.ask(lambda zookeeper: zookeeper.delete(path))
        except (MqlakeError, OSError) as error:
            logger.warning("%s: %s", self.consumer_id, error)

    # --- sharing out partitions

    def _changed(self, _: object) -> None:
        """A watch has fired; called in a thread of ZooKeeper's client."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def _session_began(self) -> None:
        self._register = True
        self._wake.set()

    async def _watch(self) -> None:
        pause_s = self._session.zk_config.zk_sync_time_ms / 1000
        work = BackgroundWork(f"{self.consumer_id}: sharing out partitions", logger, pause_s=pause_s)
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with work.round():
                await self._rebalance()
                continue
            self._wake.set()

    async def _rebalance(self) -> None:
        """Tries until this consumer owns its share."""
        for attempt in range(REBALANCE_TRIES):
            if self._register:
                await self._give_up(list(self._owned))
                await self._join()
            if await self._rebalance_once():
                return
            if attempt + 1 < REBALANCE_TRIES:
                await asyncio.sleep(self._session.zk_config.zk_sync_time_ms / 1000)
        raise RemotingConnectError(
            self.consumer_id, f"other consumers still own its partitions after {REBALANCE_TRIES} tries"
        )

    async def _join(self) -> None:
        paths, group = self._session.paths, self.config.group
        topics = ",".join(sorted(self._subscriptions)).encode()

        def join(zookeeper: ZkSession) -> None:
            zookeeper.ensure_path(paths.consumer_ids(group))
            zookeeper.put_ephemeral(f"{paths.consumer_ids(group)}/{self.consumer_id}", topics)

        self._register = False
        try:
            await self._session.ask(join)
        except BaseException:
            self._register = True
            raise

    async def _rebalance_once(self) -> bool:
        addresses = await self._session.broker_addresses()
        wanted: dict[tuple[str, Partition], str] = {}
        for topic in self._subscriptions:
            partitions = await self._session.subscribe_partitions(topic, self._changed)
            consumers = await self._consumers_of(topic)
            for name in partitions_of(self.consumer_id, consumers, partitions, self.config.strategy):
                partition = Partition.parse(name)
                if partition.broker_id in addresses:
                    wanted[topic, partition] = addresses[partition.broker_id]
        await self._give_up([key for key, owned in self._owned.items() if wanted.get(key) != owned.address])
        for (topic, partition), address in wanted.items():
            if (topic, partition) not in self._owned and not await self._take(topic, partition, address):
                await self._give_up(list(self._owned))
                return False
        return True

    async def _consumers_of(self, topic: str) -> list[str]:
        ids = self._session.paths.consumer_ids(self.config.group)

        def read(zookeeper: ZkSession) -> list[str]:
            return [
                name
                for name in zookeeper.children(ids, self._changed)
                if topic in (zookeeper.read(f"{ids}/{name}") or b"").decode("utf-8", "replace").split(",")
            ]

        return await self._session.ask(read)

    async def _take(self, topic: str, partition: Partition, address: str) -> bool:
        """Takes a partition and begins to read it; False if another consumer still owns it."""
        paths, group = self._session.paths, self.config.group
        owner = paths.consumer_owner(group, topic, partition)

        def take(zookeeper: ZkSession) -> bool:
            return zookeeper.create_ephemeral(owner, self.consumer_id.encode()) or zookeeper.is_own(owner)

        if not await self._session.ask(take):
            return False
        found = await self._offsets.load(group, topic, partition)
        begin = found or ConsumedOffset(self.config.offset)
        owned = _Owned(topic, partition, address, begin.offset, self._subscriptions[topic].max_size)
        owned.message_id = begin.message_id
        owned.committed = begin.offset if found is not None else -1
        self._owned[topic, partition] = owned
        owned.task = asyncio.ensure_future(self._read(owned))
        return True

    async def _give_up(self, keys: list[tuple[str, Partition]]) -> None:
        """Stops reading, commits, and releases the partitions."""
        given = [self._owned[key] for key in keys]
        for owned in given:
            assert owned.task is not None
            owned.stopping = True
            owned.task.cancel()
        await asyncio.gather(*(each.task for each in given if each.task is not None), return_exceptions=True)
        for key in keys:
            self._owned.pop(key, None)
        if not given:
            return
        await self._commit(given)

        def release(zookeeper: ZkSession) -> None:
            for owned in given:
                path = self._session.paths.consumer_owner(self.config.group, owned.topic, owned.partition)
                if zookeeper.is_own(path):
                    zookeeper.delete(path)

        await self._session.ask(release)

    # --- offsets

    async def commit_offsets(self) -> None:
        """Stores the current offsets. RemotingError, OSError."""
        await self._commit(list(self._owned.values()))

    async def _commit(self, many: list[_Owned]) -> None:
        news = [(each, each.offset, each.message_id) for each in many if each.offset != each.committed]
        news = [(each, offset, identity) for each, offset, identity in news if offset != MAX_OFFSET]
        if not news:
            return

        await self._offsets.commit(
            self.config.group,
            {
                (each.topic, each.partition): ConsumedOffset(offset, identity)
                for each, offset, identity in news
            },
        )
        for owned, offset, _ in news:
            owned.committed = offset

    async def _commit_regularly(self) -> None:
        work = BackgroundWork(f"{self.consumer_id}: commits of offsets", logger)
        while True:
            await asyncio.sleep(self.config.commit_offset_period_s)
            async with work.round():
                await self.commit_offsets()

    # --- reading

    async def _read(self, owned: _Owned) -> None:
        work = BackgroundWork(f"reading of {owned.topic} {owned.partition}", logger, pause_s=0.1)
        while not owned.stopping:
            async with work.round():
                if owned.delay_s:
                    await asyncio.sleep(owned.delay_s)
                data: bytes | None = None
                try:
                    data = await fetch(
                        self._session.remoting,
                        owned.address,
                        owned.topic,
                        self.config.group,
                        owned.partition,
                        owned.offset,
                        owned.max_size,
                    )
                    if data is None:
                        self._pause(owned)
                    else:
                        await self._receive(owned, data)
                except OffsetMovedError as moved:
                    owned.advance(moved.offset)
                    owned.delay_s = 0.0
                except FormatError as error:
                    logger.error("%s %s: offset %d: %s", owned.topic, owned.partition, owned.offset, error)
                    if not await self._skip_damage(owned, data or b"", error):
                        await self._resynchronize(owned)
                except PartitionClosedError:
                    self._pause(owned)
                except Exception:
                    self._pause(owned)
                    raise

    def _pause(self, owned: _Owned) -> None:
        step = self.config.max_delay_fetch_s / DELAY_PARTS
        owned.delay_s = min(owned.delay_s + step, self.config.max_delay_fetch_s)

    async def _skip_damage(self, owned: _Owned, data: bytes, error: FormatError) -> bool:
        """Skips a message with a damaged payload, which its broker would deliver again and again.

        What follows proves that it is a message, and not a position inside another one: a whole message, or the end
        of a segment.
        """
        if not isinstance(error, BadCrcError):
            return False
        at = error.offset
        while True:
            header = decode_header(data, at)
            end = at + HEADER_SIZE + header.length
            try:
                following = next(MessageIterator(owned.topic, data[end:]), None)
            except BadCrcError:
                at = end  # the next one is damaged as well, or this is not a message either
                continue
            except FormatError:
                return False
            break
        after = owned.offset + end - error.offset
        try:
            if following is None and await self._nearest_offset(owned, after) != after:
                return False
        except MqlakeError as problem:
            logger.warning("%s %s: %s", owned.topic, owned.partition, problem)
            return False
        logger.error(
            "%s %s: skips the damaged bytes %d to %d",
            owned.topic,
            owned.partition,
            owned.offset,
            after,
        )
        owned.advance(after)
        owned.delay_s = 0.0
        return True

    async def _resynchronize(self, owned: _Owned) -> None:
        """Asks the broker where to continue; messages from there on may be delivered a second time."""
        try:
            owned.advance(await self._nearest_offset(owned, owned.offset))
        except MqlakeError as error:
            logger.warning("%s %s: %s", owned.topic, owned.partition, error)
        self._pause(owned)

    async def _nearest_offset(self, owned: _Owned, offset: int) -> int:
        return await nearest_offset(
            self._session.remoting, owned.address, owned.topic, self.config.group, owned.partition, offset
        )

    async def _receive(self, owned: _Owned, data: bytes) -> None:
        messages = MessageIterator(owned.topic, data, owned.partition)
        listener = self._subscriptions[owned.topic].listener
        base = owned.offset
        whole = False
        for message in messages:
            whole = True
            if message.id not in self._processed.ids:
                if owned.retries > self.config.max_fetch_retries:
                    if not self._rejected(message):
                        self._pause(owned)
                        return
                elif not await self._offer(listener, message):
                    owned.retries += 1
                    owned.delay_s = min(
                        self.config.max_delay_fetch_s / DELAY_PARTS * owned.retries,
                        self.config.max_delay_fetch_s,
                    )
                    return
                self._processed.add(message.id)
            owned.advance(base + messages.offset, message.id)
            if owned.stopping:
                return
        if whole:
            owned.delay_s = 0.0
            usual = self._subscriptions[owned.topic].max_size
            if owned.max_size > usual and len(data) < owned.max_size // 2:
                owned.max_size = max(usual, owned.max_size // 2)
            return
        owned.fruitless += 1
        if owned.fruitless > self.config.max_increase_fetch_data_retries:
            owned.fruitless = 0
            if len(data) >= owned.max_size:
                owned.max_size = min(owned.max_size * 2, self.config.max_size_limit)
            elif await self._nearest_offset(owned, base + len(data)) == base + len(data):
                # a segment or the partition ends there but no message does, so the offset was not a boundary
                raise TruncatedRecordError(0, f"{len(data)} bytes at the end are not a message")
        self._pause(owned)

    def _rejected(self, message: Message) -> bool:
        """True if the handler, which may be the application's, took the message that the listener refused."""
        try:
            self._reject(self.config.group, message)
        except Exception as error:
            logger.warning(
                "message %d of %s: the reject handler failed: %s",
                message.id,
                message.topic,
                error,
                exc_info=error,
            )
            return False
        return True

    async def _offer(self, listener: MessageListener, message: Message) -> bool:
        """True if the listener took it. A running listener is not interrupted."""
        message.set_read_only()

        async def offer() -> None:
            answer = listener(message)
            if answer is not None:
                await answer

        task = asyncio.ensure_future(offer())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled() and task.exception() is None and not message.rollback_only:
                return True  # consumed; `stopping` ends the reading
            raise
        except Exception as error:
            logger.warning(
                "%s %s: message %d is refused: %s",
                message.topic,
                message.partition,
                message.id,
                error,
                exc_info=error,
            )
            return False
        return not message.rollback_only


def _make_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{now_ms()}-{uuid.uuid4().hex[:8]}"
