"""MessageStoreManager: all partitions of a broker, with their timers.

    dataPath/  orders-0/  orders-1/  log-a-0/  transactions/        a topic may have a dataPath of its own

`load` opens the existing partitions; others are created by their first message, if its topic matches a configured one
(`*` stands for anything) with enough partitions. Timers, one per distinct value, flush messages that have waited for a
topic's unflushInterval, and run the delete policies at the topics' deleteWhen.
"""

from __future__ import annotations

import datetime
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mqlake.base.durable import make_dirs
from mqlake.errors import FormatError, IllegalTopicError, MqlakeError, WrongPartitionError
from mqlake.metaq.config.cron import parse_cron
from mqlake.metaq.config.meta_config import MetaConfig
from mqlake.metaq.config.values import parse_delete_policy
from mqlake.metaq.formats.names import parse_store_name, store_name
from mqlake.metaq.store.backup import BACKUP_PREFIX
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.inspect import OWN_DIRECTORIES
from mqlake.metaq.store.lock import DirectoryLock
from mqlake.metaq.store.message_store import MessageStore, segment_starts
from mqlake.metaq.store.schedule import Schedule, every

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadReport:
    stores: int = 0
    truncated: dict[str, int] = field(default_factory=dict)
    """Partition → bytes that recovery cut off."""
    kept: dict[str, str] = field(default_factory=dict)
    """Partition → the file with these bytes, if they were more than a torn tail."""
    ignored: list[str] = field(default_factory=list)
    """Paths in the data directories that are not partitions."""


class MessageStoreManager:
    """Open from `load` to `close`; `start` starts the timers."""

    def __init__(
        self,
        config: MetaConfig,
        *,
        group_commit: GroupCommitService | None = None,
        fast_boot: bool = False,
    ) -> None:
        self.config = config
        self.schedule = Schedule()
        self._group_commit = group_commit
        self._fast_boot = fast_boot
        self._stores: dict[str, dict[int, MessageStore]] = {}
        self._accepting: dict[tuple[str, int], MessageStore] = {}
        """Partitions that `get_or_create` has checked against the current topics."""
        self._locks: dict[str, DirectoryLock] = {}
        self._creating = threading.Lock()
        config.add_property_change_listener("topics", self._topics_changed)
        config.add_property_change_listener("unflushInterval", self._schedule_flushes)

    # --- opening and closing

    def load(self) -> LoadReport:
        """Opens and recovers every existing partition. StoreLockedError, StoreCorruptError, OSError."""
        report = LoadReport()
        try:
            found = [each for path in self._data_paths() for each in self._partitions(path, report)]
            for (
                topic,
                partition,
            ) in found:  # before the first partition is recovered: a refused start changes nothing
                segment_starts(os.path.join(self._data_path(topic), store_name(topic, partition)))
            in_parallel = self.config.system.load_message_stores_in_parallel
            with ThreadPoolExecutor((os.cpu_count() or 1) + 1 if in_parallel else 1) as executor:
                opened = [executor.submit(self._open, topic, partition) for topic, partition in found]
                for future in opened:
                    store = future.result()
                    self._stores.setdefault(store.topic, {})[store.partition] = store
                    if store.truncated:
                        report.truncated[store.name] = store.truncated
                    if store.kept:
                        report.kept[store.name] = store.kept
                        logger.error(
                            "%s: damage; recovery moved %d bytes to %s",
                            store.name,
                            store.truncated,
                            store.kept,
                        )
        except BaseException:
            self.close()
            raise
        report.stores = len(found)
        return report

    def _data_paths(self) -> list[str]:
        """Data paths of the broker and of the topics, each created and locked."""
        topics = self.config.topic_config_map.values()
        paths = [self.config.system.effective_data_path, *(topic.data_path for topic in topics)]
        return [self._claim(path) for path in dict.fromkeys(map(os.path.abspath, paths))]

    def _claim(self, path: str) -> str:
        if path not in self._locks:
            make_dirs(path)
            self._locks[path] = DirectoryLock(path)
        return path

    def _partitions(self, path: str, report: LoadReport) -> Iterator[tuple[str, int]]:
        for name in sorted(os.listdir(path)):
            full = os.path.join(path, name)
            if name in OWN_DIRECTORIES or name.startswith(BACKUP_PREFIX):
                continue
            try:
                topic, partition = parse_store_name(name)
                if not os.path.isdir(full):
                    raise FormatError(0, "not a directory")
                if self._data_path(topic) != path:
                    raise FormatError(0, f"the dataPath of {topic} is another directory")
            except FormatError as error:
                logger.warning("%s is ignored: %s", full, error.reason)
                report.ignored.append(full)
                continue
            yield topic, partition

    def _data_path(self, topic: str) -> str:
        return os.path.abspath(self.config.topic_config(topic).data_path)

    def _open(self, topic: str, partition: int, offset_if_create: int = 0) -> MessageStore:
        topic_config = self.config.topic_config(topic)
        return MessageStore(
            self._claim(self._data_path(topic)),
            topic,
            partition,
            max_segment_size=self.config.system.max_segment_size,
            unflush_threshold=topic_config.unflush_threshold,
            unflush_interval_ms=topic_config.unflush_interval,
            delete_policy=parse_delete_policy(topic_config.delete_policy),
            group_commit=self._group_commit,
            offset_if_create=offset_if_create,
            fast_boot=self._fast_boot,
        )

    def start(self) -> None:
        """Starts the timers for flushing and deleting."""
        self._schedule_flushes()
        self._schedule_deletes()
        self.schedule.start()

    def close(self) -> None:
        """Flushes and closes every partition, then raises the first error."""
        self.config.remove_property_change_listener(self._topics_changed)
        self.config.remove_property_change_listener(self._schedule_flushes)
        self.schedule.stop()
        failure: MqlakeError | OSError | None = None
        for store in self.stores():
            try:
                store.close()
            except (MqlakeError, OSError) as error:
                logger.error("%s", error)
                failure = failure or error
        self._stores, self._accepting = {}, {}
        for lock in self._locks.values():
            lock.release()
        self._locks = {}
        if failure is not None:
            raise failure

    # --- what is there

    def stores(self, topic: str | None = None) -> list[MessageStore]:
        """The partitions of a topic, or all, sorted by topic and number."""
        topics = [topic] if topic is not None else sorted(self._stores)
        return [store for each in topics for _, store in sorted(self._stores.get(each, {}).items())]

    def get(self, topic: str, partition: int) -> MessageStore | None:
        partitions = self._stores.get(topic)
        return partitions.get(partition) if partitions is not None else None

    def get_or_create(self, topic: str, partition: int, offset_if_create: int = 0) -> MessageStore:
        """Raises IllegalTopicError, WrongPartitionError, OSError."""
        known = self._accepting.get((topic, partition))
        if known is not None:
            return known
        if not self.config.accepts(topic):
            raise IllegalTopicError(f"The server do not accept topic {topic}")
        if not 0 <= partition < self.num_partitions(topic):
            raise WrongPartitionError(f"wrong partition {partition}")
        store = self._accepting[topic, partition] = self.get_or_open(topic, partition, offset_if_create)
        return store

    def get_or_open(self, topic: str, partition: int, offset_if_create: int = 0) -> MessageStore:
        """Without checking the topic: messages that were accepted once must be stored. OSError."""
        store = self.get(topic, partition)
        if store is None:
            with self._creating:
                store = self.get(topic, partition)
                if store is None:
                    store = self._open(topic, partition, offset_if_create)
                    self._stores.setdefault(topic, {})[partition] = store
                    logger.info("%s is created", store.directory)
        return store

    def num_partitions(self, topic: str) -> int:
        return self.config.topic_config(topic).num_partitions

    def choose_random_partition(self, topic: str) -> int:
        return random.randrange(self.num_partitions(topic))

    @property
    def total_messages_count(self) -> int:
        return sum(store.message_count for store in self.stores())

    def all_topics(self) -> list[str]:
        """Configured topics, and those with messages."""
        return sorted({*self.config.topics, *self._stores})

    # --- timers

    def _topics_changed(self) -> None:
        self._accepting = {}
        for store in self.stores():
            topic_config = self.config.topic_config(store.topic)
            store.unflush_interval_ms = topic_config.unflush_interval
            if not store.uses_group_commit:  # the way of flushing is fixed when the store is opened
                store.unflush_threshold = max(1, topic_config.unflush_threshold)
        self._schedule_deletes()

    def _schedule_flushes(self) -> None:
        intervals = {self.config.topic_config(topic).unflush_interval for topic in self.all_topics()}
        wanted = {f"flush every {ms} ms": ms for ms in intervals if ms > 0}
        self._replace_jobs(
            "flush ", {name: (every(ms / 1000), self._flusher(ms)) for name, ms in wanted.items()}
        )

    def _flusher(self, interval_ms: int) -> Callable[[], None]:
        def flush() -> None:
            for store in self.stores():
                if store.unflush_interval_ms == interval_ms and not store.uses_group_commit:
                    try:
                        store.flush()
                    except (MqlakeError, OSError) as error:
                        logger.error("%s", error)

        return flush

    def _schedule_deletes(self) -> None:
        expressions = {self.config.topic_config(topic).delete_when for topic in self.all_topics()}
        self._replace_jobs(
            "delete ", {f"delete at {text}": (_cron(text), self._deleter(text)) for text in expressions}
        )

    def _deleter(self, expression: str) -> Callable[[], object]:
        return lambda: self.run_delete_policies(
            topic for topic in list(self._stores) if self.config.topic_config(topic).delete_when == expression
        )

    def _replace_jobs(
        self, prefix: str, jobs: dict[str, tuple[Callable[[float], float | None], Callable[[], object]]]
    ) -> None:
        for name in self.schedule.names:
            if name.startswith(prefix) and name not in jobs:
                self.schedule.remove(name)
        for name, (next_time, job) in jobs.items():
            if name not in self.schedule.names:
                self.schedule.put(name, next_time, job)

    def run_delete_policies(self, topics: Iterable[str] | None = None) -> list[str]:
        """For some topics, or all: the paths of the removed segments. Failures are logged."""
        gone = []
        for topic in sorted(self._stores) if topics is None else topics:
            for store in self.stores(topic):
                try:
                    gone += store.run_delete_policy()
                except OSError as error:
                    logger.error("%s: %s", store.directory, error)
        return gone


def _cron(expression: str) -> Callable[[float], float | None]:
    parsed = parse_cron(expression)

    def next_time(now: float) -> float | None:
        found = parsed.next_after(datetime.datetime.fromtimestamp(now))
        return found.timestamp() if found is not None else None

    return next_time
