"""DefaultMessageStore: takes messages, keeps them, gives them back.

    put_message ──▶ may it? ──▶ CommitLog ──▶ flush service ──▶ PUT_OK
                                    │
                                    └──▶ ReputMessageService ──▶ consume queues, index, listeners
    get_message, query_message, ...  ◀── StoreView over the same files

    load() takes the lock and recovers; start() runs the services; shutdown() ends cleanly.
    open_store(path) does the first two, and the third at the end of a `with`.

What an acknowledgement (PUT_OK) is worth: SYNC_FLUSH: the disk has the message. ASYNC_FLUSH: the page cache has
it, so it outlives this process. ASYNC_FLUSH with the transient store pool: this process's memory has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.base.disk import DiskSpace
from mqlake.base.durable import make_dirs
from mqlake.base.progress import Progress, no_progress
from mqlake.base.service_thread import ServiceThread
from mqlake.errors import ConfigError
from mqlake.message import MessageExtBatch, MessageExtBrokerInner
from mqlake.store.archive.manifest import Manifest
from mqlake.store.archive.service import Archive
from mqlake.store.broker_stats import BrokerStatsManager
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.clean import CleanCommitLogService, CleanConsumeQueueService, CleanService
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.dispatch import Arrival, CommitLogDispatcher, MessageArrivingListener, ReputMessageService
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.allocate_mapped_file_service import AllocateMappedFileService
from mqlake.store.files.mapped_file_plugin import mapped_file_class, try_mapped_file
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.prefault import PrefaultService
from mqlake.store.files.store_directory import check_is_store, refuse_light_queues, refuse_rocksdb
from mqlake.store.files.store_lock import AbortFile, LastWriter, StoreLock
from mqlake.store.files.transient_store_pool import TransientStorePool
from mqlake.store.ha.replica_log import MappedReplicaLog
from mqlake.store.ha.replicas import Replicas
from mqlake.store.heads import delete_heads_before
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.appender import Appended, QueueId, Write
from mqlake.store.log.commit_log import CommitLog
from mqlake.store.log.flush import CommitRealTimeService, FlushRealTimeService, GroupCommitService
from mqlake.store.lost_end import last_exit_of
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.queues.queue_ends import write_ends
from mqlake.store.recovery import Recovery, RecoveryReport
from mqlake.store.results import (
    APPEND_OK,
    PUT_OK,
    AppendMessageResult,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
)
from mqlake.store.running_flags import DISK_FULL, RunningFlags
from mqlake.store.scrub import ScrubService
from mqlake.store.stats import StoreStatsService
from mqlake.store.store_view import StoreView
from mqlake.store.timer.timer_put import TimerPut

logger = logging.getLogger(__name__)

SLOW_PUT_MS = 500
SLOW_PUT = "put took %d ms: topic %s, body %d bytes"
SLOW_IN_LOCK = "[NOTIFYME] put held the log's lock for %d ms: topic %s, body %d bytes"
_SLAVE = BrokerRole.SLAVE  # read at every put, see PUT_OK
Inner = TypeVar("Inner", bound=MessageExtBrokerInner)
# a clock set back makes the time under the lock look huge: not a busy page cache
PAGE_CACHE_BUSY_MAX_MS = 10_000_000
DISPATCH_BEHIND_BUSY = 1 << 20
"""Bytes that are not dispatched yet; with more the store is busy."""


class DefaultMessageStore(StoreView):
    """One store directory, open for writing by this process alone.

    `is_batch_topic(topic)` tells the topics with the attribute queue.type=BatchCQ; `clock_ms` gives store times.
    ConfigError when mappedFilePlugIn names no class.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
        broker_stats: BrokerStatsManager | None = None,
    ) -> None:
        self.clock_ms = clock_ms
        self.running_flags = RunningFlags()
        self.store_stats_service = StoreStatsService(clock_ms)
        self.broker_stats_manager = broker_stats or BrokerStatsManager("DefaultCluster")
        files = self._make_log_files(config)
        consume_queues = ConsumeQueueStore(
            config, queue_type_of=lambda topic: "BatchCQ" if is_batch_topic(topic) else "SimpleCQ"
        )
        super().__init__(
            config, files, consume_queues, IndexService(config) if config.message_index_enable else None
        )
        self._prefault_service = PrefaultService()
        self.timer_put = TimerPut(config, clock_ms)
        mapped = not (config.write_without_mmap or config.transient_store_pool_enable)
        self.commit_log = CommitLog(
            config,
            files,
            consume_queues.queue_offsets,
            clock_ms=clock_ms,
            is_batch_topic=is_batch_topic,
            prefault=self._prefault_service.wake if mapped else None,
            put_timer=self.timer_put,
        )
        self._fast_put = self.store_stats_service.fast_puts = self.commit_log.fast_put
        self._lock_file = StoreLock(config.lock_path, abort_path=config.abort_path)
        self._abort_file = AbortFile(config.abort_path)
        self._checkpoint: StoreCheckpoint | None = None
        self._state = "new"
        self._sync_flush = config.is_sync_flush
        self._waits = self._sync_flush or config.waits_for_replicas
        self._next_warning = 0.0
        self.longest_python_put_ms = 0
        """longest_put_ms without the puts of native code that nobody has looked at yet."""
        self.message_arriving_listeners: list[MessageArrivingListener] = [self._count_arrival]
        """Called with what has become visible, on the dispatch thread. Add to it before start()."""
        self._reput_service = self._make_reput_service()
        self._group_commit_service = GroupCommitService(config, files, self._on_flushed, self._on_flush_error)
        self._flush_service = FlushRealTimeService(config, files, self._on_flushed, self._on_flush_error)
        self._commit_service = CommitRealTimeService(config, files, self._on_committed, self._on_flush_error)
        self.replicas: Replicas | None = None
        """Notified of each append; puts wait for it under SYNC_MASTER. Set it before start()."""
        self.may_force_delete: Callable[[int], bool] = lambda end: True
        """Asked on the cleaner's thread whether the commit log before `end` may go although it is not old."""
        self._wake_services = self._services_to_wake()
        self._clean_commit_log_service = CleanCommitLogService(
            config,
            files,
            self.running_flags,
            clock=clock_ms,
            needed_from=lambda: None if self.replicas is None else self.replicas.needed_from(),
            may_force=lambda end: self.may_force_delete(end),
            is_archived=lambda end: self.archive is None or self.archive.has(end),
        )
        self._clean_service = self._make_clean_service()
        self.scrub_service = ScrubService(
            config,
            files,
            consume_queues,
            self.damage,
            lambda: min(files.flushed_where, self._reput_service.reput_from_offset),
            self._has_better_to_do,
        )
        self._housekeeping = _Housekeeping(self)
        self.archive = self._make_archive()

    def _make_archive(self) -> Archive | None:
        """The archive, if there is to be one, which the views of this store read from then."""
        if not self.config.archive:
            return None
        archive = Archive(self.config, self.commit_log_files, self._archivable, self._on_archived)
        self.archived = archive.reader
        self.consume_queues.readable_from = archive.readable_from
        return archive

    def _archivable(self) -> int:
        """The physical offset before which everything is on the disk and dispatched."""
        return min(self.commit_log_files.flushed_where, self._reput_service.reput_from_offset)

    def _on_archived(self, before: Manifest, after: Manifest) -> None:
        if after.objects and (not before.objects or after.begin < before.begin):
            self.consume_queues.reach_back(self.commit_log_files.min_offset)

    def _make_log_files(self, config: MessageStoreConfig) -> MappedFileQueue:
        """The commit log's files, those who make them ahead of need, and their write buffers, if any."""
        self._mapped_file_type = mapped_file_class(config.mapped_file_plug_in)
        pool = self.transient_store_pool = (
            TransientStorePool(config.transient_store_pool_size, config.mapped_file_size_commit_log)
            if config.transient_store_pool_enable and config.broker_role is not BrokerRole.SLAVE
            else None
        )
        self._allocate_service = AllocateMappedFileService(config, pool, self._mapped_file_type)
        return MappedFileQueue(
            config.commit_log_dir,
            config.mapped_file_size_commit_log,
            without_mmap=config.write_without_mmap,
            allocate=self._allocate_service.put_request_and_return_mapped_file,
            return_buffer=pool.give_back if pool is not None else None,
            mapped_file_type=self._mapped_file_type,
        )

    def _make_reput_service(self) -> ReputMessageService:
        dispatchers: list[CommitLogDispatcher] = [self.consume_queues]
        if self.index is not None:
            dispatchers.append(self.index)
        return ReputMessageService(
            self.commit_log_files,
            dispatchers,
            self.commit_log.delay_levels,
            self.running_flags,
            confirm_offset=lambda: self.confirm_offset,
            on_damage=self.fence,
            listeners=self.message_arriving_listeners,
            is_slave=lambda: self.config.broker_role is _SLAVE,
        )

    def _services_to_wake(self) -> Callable[[], None]:
        """For a put that does not wait for the disk: wakes dispatch, and the flush or commit service if configured."""
        config, notify = self.config, self._reput_service.notify
        if self.transient_store_pool is not None and config.wake_commit_when_put_message:
            wakeup = self._commit_service.wakeup
        elif config.wake_flush_when_put_message and not config.flush_commit_log_timed:
            wakeup = self._flush_service.wakeup
        else:
            return notify

        def wake_both() -> None:
            wakeup()
            notify()

        return wake_both

    def _make_clean_service(self) -> CleanService:
        root = self.config.store_path_root_dir
        cleaned: list[Callable[[int], int]] = [
            self.consume_queues.delete_expired_file,
            lambda log_begin: delete_heads_before(root, log_begin),
        ]
        index = self.index
        if index is not None:
            delete = index.delete_expired
            cleaned.append(lambda log_begin: delete(self.consume_queues.readable_from(log_begin)))
        return CleanService(
            self.config,
            self._clean_commit_log_service,
            CleanConsumeQueueService(lambda: self.commit_log_files.min_offset, *cleaned),
        )

    # ------------------------------------------------------------------ life

    def load(self, progress: Progress = no_progress, *, accept_loss: bool = False) -> RecoveryReport:
        """Takes the lock, maps the files, recovers. `accept_loss`: also when messages are gone from the end of the log
        that no crash can have taken; queue offsets go on above them.

        Raises NotAStoreError, ForeignFormatError, StoreLockedError, WrongFileSizeError, StoreCorruptError,
        ConfigError (of mappedFilePlugIn), OSError; the lock is free again then. If the store was refused, and did not
        fail while it was written to (OSError), every file is as it was.
        """
        assert self._state == "new", "load() is called once"
        config = self.config
        check_is_store(config.store_path_root_dir, must_exist=False)
        refuse_rocksdb(config.store_path_root_dir)
        refuse_light_queues(config.store_path_root_dir)
        make_dirs(config.store_path_root_dir)
        self._lock_file.acquire()
        try:
            make_dirs(config.commit_log_dir)
            try_mapped_file(self._mapped_file_type, config.store_path_root_dir)
            last_exit = last_exit_of(self._abort_file, self._lock_file)
            self._checkpoint = checkpoint = StoreCheckpoint(config.checkpoint_path)
            self.commit_log_files.load()
            self.consume_queues.pool.defer_changes()  # recovery looks before it writes
            self.consume_queues.load()
            self._allocate_service.start()
            report = Recovery(
                config,
                self.commit_log_files,
                self.consume_queues,
                self.index,
                checkpoint,
                self.commit_log.delay_levels,
                last_exit,
                accept_loss=accept_loss,
                progress=progress,
            ).run()
        except BaseException:
            self._release()
            raise
        self._state = "loaded"
        return report

    def start(self) -> None:
        """Runs the services. From here on a process that dies leaves the abort file behind. OSError, ConfigError."""
        assert self._state == "loaded", "load() comes first"
        if self.config.waits_for_replicas:
            if self.replicas is None:
                raise ConfigError(
                    "brokerRole=SYNC_MASTER with inSyncReplicas over 1: only a broker has slaves to wait for"
                )
            self._group_commit_service.on_disk = self.replicas.wait_for_replicas
        # what readUnCommitted gives the queues need not have been flushed
        flush = "" if self.config.read_un_committed else self.config.flush_disk_type.value
        self._abort_file.create(LastWriter.now(self._lock_file, flush))
        if not self.config.data_read_ahead_enable:
            self.set_data_read_ahead(False)  # recovery has read the log from end to end
        self._prefault_service.start()
        self._reput_service.start(self.commit_log_files.max_offset)
        if self._sync_flush:
            self._group_commit_service.start()
        else:
            self._flush_service.start()
            if self.transient_store_pool is not None:
                self._commit_service.start()
        self._clean_service.start()
        self.scrub_service.start()
        self._housekeeping.start()
        if self.archive is not None:
            self.archive.start()
        self._state = "running"
        self._open_fast_put()

    def _open_fast_put(self) -> None:
        """Native code asks for the flags of what _check_status() does. Without replicas nothing else of it can change
        from now on, before shutdown(); else who has records written asks takes_native_sends()."""
        config = self.config
        if self.clock_ms is not now_ms or config.enabled_append_prop_crc:
            return
        if self._sync_flush:
            asleep = np.zeros(1, np.int64)  # dispatch goes on when the message is on the disk
        elif self._wake_services == self._reput_service.notify:
            asleep = self._reput_service.asleep
        else:
            asleep = np.ones(1, np.int64)
        is_alone = self.replicas is None and config.broker_role is not _SLAVE
        self._fast_put.open(self.running_flags, asleep, self._wake_services, puts=is_alone)

    def load_and_start(
        self,
        progress: Progress = no_progress,
        on_recovered: Callable[[RecoveryReport], None] | None = None,
        *,
        accept_loss: bool = False,
    ) -> None:
        """load(), `on_recovered` and start(). Raises what they raise; the store is shut down then."""
        try:
            report = self.load(progress, accept_loss=accept_loss)
            if on_recovered is not None:
                on_recovered(report)
            self.start()
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Ends cleanly: flushes, dispatches what is left, deletes the abort file when all is well. Idempotent."""
        if self._state == "running":
            self._state = "stopping"
            self._fast_put.close()
            if self.archive is not None:
                self.archive.shutdown()
            self._housekeeping.shutdown()
            self.scrub_service.shutdown()
            self._clean_service.shutdown()
            flushed = self._flush_rest()
            dispatched = self._reput_service.shutdown(timeout_s=60.0)
            derived = self._flush_derived()
            # what was not replicated is not dispatched either, and recovery looks at it again
            dispatched = dispatched and self._reput_service.reput_from_offset >= self.max_phy_offset
            if flushed and dispatched and derived and not self.running_flags.is_fenced:
                self._abort_file.delete()
            else:
                self._doubt_page_cache()
                logger.warning("no clean shutdown (%s): the next start recovers", self._why_not_clean())
        if self._state != "closed":
            self._release()

    def _flush_rest(self) -> bool:
        self._group_commit_service.shutdown()
        self._commit_service.shutdown()
        self._flush_service.shutdown()
        if self.running_flags.is_fenced:
            return False
        try:
            self.commit_log_files.flush_all()
        except OSError as error:
            self._on_flush_error(error)
            return False
        self._on_flushed()
        return True

    def _flush_derived(self) -> bool:
        checkpoint = self._checkpoint
        assert checkpoint is not None
        if self.running_flags.is_fenced:
            return False
        try:
            self.consume_queues.flush()
            checkpoint.logics_msg_timestamp = self.consume_queues.logics_msg_timestamp
            if self.index is not None:
                self.index.flush(checkpoint)
            checkpoint.flush()
            write_ends(self.config, self.consume_queues)
        except OSError as error:
            logger.error("flushing the consume queues and the index failed: %s", error)
            return False
        return True

    def _doubt_page_cache(self) -> None:
        """After an I/O error the kernel may drop pages: the next recovery must not rely on them."""
        if self.running_flags.is_fenced:
            with contextlib.suppress(OSError):
                self._abort_file.create()

    def _why_not_clean(self) -> str:
        return "; ".join(self.running_flags.reasons()) or f"{self.dispatch_behind_bytes} bytes not dispatched"

    def _release(self) -> None:
        self._state = "closed"
        self._closed = True
        if self.archive is not None:
            self.archive.reader.close()
        self._prefault_service.shutdown()
        self._allocate_service.shutdown()
        self.commit_log.close()
        try:
            self.consume_queues.close()
        except OSError as error:
            logger.error("closing the consume queues failed: %s", error)
        if self.index is not None:
            self.index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._lock_file.release()

    def destroy(self) -> None:
        """Shuts down and deletes every message, queue and index. The configuration files stay."""
        self.shutdown()
        config = self.config
        for directory in (
            config.commit_log_dir,
            config.consume_queue_dir,
            config.consume_queue_ext_dir,
            config.batch_consume_queue_dir,
            config.index_dir,
        ):
            if os.path.isdir(directory):
                import shutil

                shutil.rmtree(directory)
        for path in (config.checkpoint_path, config.abort_path, config.queue_ends_path):
            if os.path.exists(path):
                os.unlink(path)

    def __enter__(self) -> DefaultMessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # ------------------------------------------------------------------ put

    def put_message(self, msg: MessageExtBrokerInner) -> PutMessageResult:
        """Stores one message; under SYNC_FLUSH waits for the disk (unless the message says WAIT=false).

        Never raises for what a message or the disk does: the result's status says it, its `reason` in words.

        A property that names light queues (INNER_MULTI_DISPATCH) is a property like others here, as it is in RocketMQ's
        store without enableLmq: the message is in the queue that it was put into. Brokers refuse it, as their senders
        count on those queues.
        """
        result = self._fast_put.put(msg)
        if result is None:
            result = self._put(msg, self.commit_log.put_message)
        if self._waits and result.status is PUT_OK and self._must_wait(msg):
            return self._submit_request(result).result()
        return result

    def async_put_message(self, msg: MessageExtBrokerInner) -> PutMessageFuture:
        """put_message() without blocking: the future is awaitable and has result()."""
        return self._future_of(msg, self._fast_put.put(msg) or self._put(msg, self.commit_log.put_message))

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Stores the messages of an encoded batch (formats.batch.encode_messages) as one: all or none."""
        result = self._fast_put.put(batch)
        if result is None:
            result = self._put(batch, self.commit_log.put_messages)
        if self._waits and result.status is PUT_OK and self._must_wait(batch):
            return self._submit_request(result).result()
        return result

    def async_put_messages(self, batch: MessageExtBatch) -> PutMessageFuture:
        """put_messages() without blocking: the future is awaitable and has result()."""
        return self._future_of(
            batch, self._fast_put.put(batch) or self._put(batch, self.commit_log.put_messages)
        )

    @property
    def answers_at_once(self) -> bool:
        """True if no put waits for the disk or for replicas."""
        return not self._sync_flush and (self.replicas is None or not self.config.waits_for_replicas)

    def async_put_many(
        self, queues: Sequence[QueueId], write: Write
    ) -> tuple[Appended, PutMessageFuture | None] | None:
        """Stores simple messages of `queues` that `write` makes records of (see CommitLog.put_many); where they are,
        and what to wait for until they are as safe as the configuration asks, if anything. None: they were not stored,
        and have to be put singly, which also says why they cannot be."""
        if self._check_status() is not None:
            return None
        begin = time.monotonic_ns()
        try:
            appended = self.commit_log.put_many(queues, write)
        except BaseException:
            if self.commit_log.appender.end_unknown_reason:
                self.fence(self.commit_log.appender.end_unknown_reason)
            raise
        if appended is None:
            return None
        written, put = appended.written, self.store_stats_service.put
        elapsed = (time.monotonic_ns() - begin) // 1_000_000
        if elapsed > SLOW_PUT_MS:
            logger.warning(SLOW_IN_LOCK, elapsed, queues[0][0], written.size)
        if elapsed > self.longest_python_put_ms:
            self.longest_python_put_ms = elapsed
        for (topic, _), count, size, puts in zip(
            queues, written.queue_counts, written.queue_bytes, written.queue_puts, strict=True
        ):
            if count:
                put(topic, count, size, elapsed, puts)
        if self.replicas is not None:
            self.replicas.notify()
        if not self._sync_flush:
            self._wake_services()
            if self.answers_at_once:
                return appended, None
        return appended, self._submit_request(
            PutMessageResult(
                PUT_OK,
                AppendMessageResult(
                    APPEND_OK,
                    appended.wrote_offset,
                    written.size,
                    store_timestamp=appended.store_timestamp,
                    msg_num=written.records,
                ),
            )
        )

    def _future_of(self, msg: MessageExtBrokerInner, result: PutMessageResult) -> PutMessageFuture:
        if self._waits and result.status is PUT_OK and self._must_wait(msg):
            return self._submit_request(result)
        return PutMessageFuture(result)

    def _put(self, msg: Inner, append: Callable[[Inner], PutMessageResult]) -> PutMessageResult:
        # what _check_status() asks, without calling it: a fiftieth of the time that a put takes
        if (
            self._state != "running"
            or self.running_flags.flag_bits
            or self.commit_log.appender.begin_time_in_lock
            or self.config.broker_role is _SLAVE
            or self.replicas is not None
        ) and (refused := self._check_status()) is not None:
            self.store_stats_service.put_failed()
            return refused
        begin = time.monotonic_ns()
        try:
            result = append(msg)
        except OSError as error:
            self.fence(f"writing the commit log failed: {error}")
            result = PutMessageResult(PutMessageStatus.UNKNOWN_ERROR, None, str(error))
        elapsed = (time.monotonic_ns() - begin) // 1_000_000
        appended = result.append_fields
        if appended is not None and appended[8] > SLOW_PUT_MS:
            logger.warning(SLOW_IN_LOCK, appended[8], msg.topic, len(msg.body))
        elif elapsed > SLOW_PUT_MS:
            logger.warning(SLOW_PUT, elapsed, msg.topic, len(msg.body))
        if result.status is not PUT_OK or appended is None:
            self.store_stats_service.put_failed()
            return result
        if elapsed > self.longest_python_put_ms:
            self.longest_python_put_ms = elapsed
        self.store_stats_service.put(msg.topic, appended[7], appended[2], elapsed)
        if self.replicas is not None:
            self.replicas.notify()
        if not self._sync_flush:
            self._wake_services()
        return result

    def _warn_of_slow_puts(self) -> None:
        """Warns of the slowest put since the last call that _put() did not see: such puts hold the lock from their
        start."""
        elapsed, topic, size = self._fast_put.take_slowest()
        if elapsed < PAGE_CACHE_BUSY_MAX_MS:
            self.longest_python_put_ms = max(self.longest_python_put_ms, elapsed)
        if elapsed > SLOW_PUT_MS:
            logger.warning(SLOW_IN_LOCK, elapsed, topic, size)

    @property
    def longest_put_ms(self) -> int:
        """How long the longest put has taken since forget_longest_put(): whoever waited for the same thread has waited
        as long, and could not see it as is_os_page_cache_busy."""
        lately = self._fast_put.slowest_lately_ms
        return max(self.longest_python_put_ms, lately if lately < PAGE_CACHE_BUSY_MAX_MS else 0)

    def forget_longest_put(self) -> None:
        """longest_put_ms is of later puts from now on."""
        if self._fast_put.slowest_lately_ms:
            self._warn_of_slow_puts()
        self.longest_python_put_ms = 0

    def _check_status(self) -> PutMessageResult | None:
        if self._state != "running":
            return self._refuse("the store is not running")
        if self.config.broker_role is _SLAVE:
            return self._refuse("the store is a slave: its messages come from the master")
        if self.running_flags.flag_bits:
            return self._refuse("; ".join(self.running_flags.reasons()))
        if self.replicas is not None and (reason := self.replicas.why_not()):
            return self._refuse(reason)
        if self.replicas is not None and (reason := self.replicas.refusal()):
            return PutMessageResult(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, None, reason)
        begin = self.commit_log.appender.begin_time_in_lock
        if begin:
            busy = self.clock_ms() - begin
            if self.config.os_page_cache_busy_time_out_mills < busy < PAGE_CACHE_BUSY_MAX_MS:
                limit = self.config.os_page_cache_busy_time_out_mills
                reason = f"a put holds the lock for {busy} ms, osPageCacheBusyTimeOutMills is {limit}"
                return PutMessageResult(PutMessageStatus.OS_PAGECACHE_BUSY, None, reason)
        return None

    def _refuse(self, reason: str) -> PutMessageResult:
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + 10.0
            logger.warning("messages are refused: %s", reason)
        return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, None, reason)

    @property
    def is_os_page_cache_busy(self) -> bool:
        if not (begin := self.commit_log.appender.begin_time_in_lock):
            return False
        limit = self.config.os_page_cache_busy_time_out_mills
        return limit < self.clock_ms() - begin < PAGE_CACHE_BUSY_MAX_MS

    # ------------------------------------------------------------------ flush

    def _must_wait(self, msg: MessageExtBrokerInner) -> bool:
        """True if the put is acknowledged only when the disk, or replicas, have the message."""
        if msg.wait_store_msg_ok:
            return self._sync_flush or (self.replicas is not None and self.config.waits_for_replicas)
        if self._sync_flush:
            self._group_commit_service.wakeup()
        return False

    def takes_native_sends(self) -> bool:
        """True if native code may write sends to the log by itself now (NativeSends), as far as replicas have a say."""
        if self.config.broker_role is _SLAVE:
            return False
        replicas = self.replicas
        return replicas is None or not (
            self.config.waits_for_replicas or replicas.why_not() or replicas.refusal()
        )

    def submit_flush(self, future: PutMessageFuture) -> None:
        """Under SYNC_FLUSH: has the future done when the disk has the log up to its `next_offset`."""
        future.deadline = time.monotonic() + self.config.sync_flush_timeout / 1000
        self._group_commit_service.put_request(future)

    def _submit_request(self, result: PutMessageResult) -> PutMessageFuture:
        fields = result.append_fields  # not append_result, which costs more than all that is done here
        assert fields is not None
        future = PutMessageFuture(result, fields[1] + fields[2])
        if self._sync_flush:
            self.submit_flush(future)
        else:
            assert self.replicas is not None
            future.deadline = time.monotonic() + self.config.sync_flush_timeout / 1000
            self.replicas.wait_for_replicas([future])
        return future

    @property
    def confirm_offset(self) -> int:
        """The offset up to which dispatch may go: under SYNC_FLUSH (unless readUnCommitted) only what the disk has,
        in a group with failover only what every replica of the in-sync set has."""
        if self._sync_flush and not self.config.read_un_committed:
            end = self.commit_log_files.flushed_where
        else:
            end = self.commit_log_files.max_offset
        confirmed = None if self.replicas is None else self.replicas.confirmed_end()
        return end if confirmed is None else min(end, confirmed)

    def more_confirmed(self) -> None:
        """The replicas have more than before."""
        self._reput_service.notify()

    @property
    def flushed_where(self) -> int:
        return self.commit_log_files.flushed_where

    def flush(self) -> int:
        """Flushes all that was put before the call; the flushed offset. OSError fences the store and is raised."""
        self._check_open()
        try:
            self.commit_log_files.flush_all()
        except OSError as error:
            self._on_flush_error(error)
            raise
        self._on_flushed()
        self._reput_service.notify()  # of what this has committed
        return self.commit_log_files.flushed_where

    def _on_flushed(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is not None and self.commit_log_files.store_timestamp > checkpoint.physic_msg_timestamp:
            checkpoint.physic_msg_timestamp = self.commit_log_files.store_timestamp
        if self._sync_flush:
            self._reput_service.notify()

    def _on_committed(self) -> None:
        if self._sync_flush:
            return
        self._flush_service.wakeup()
        self._reput_service.notify()

    def _on_flush_error(self, error: OSError) -> None:
        self.fence(f"flushing the commit log failed: {error}")

    def fence(self, reason: str) -> None:
        """No message is taken any more, until the store is opened again and has recovered."""
        if self.running_flags.make_fenced(reason):
            logger.critical("the store is fenced: %s", reason)

    # ------------------------------------------------------------------ slave

    def replica_log(self) -> MappedReplicaLog:
        """The commit log as a slave appends to it: bytes of its master's log."""
        return MappedReplicaLog(
            self.commit_log_files,
            check_crc=self.config.ha_check_crc,
            sync_flush=self._sync_flush,
            why_not=self._why_no_bytes,
            flush=self.flush,
            on_first=self._reput_service.begin_at,
            on_appended=self._on_replicated,
        )

    def become_master(self, role: BrokerRole, timeout_s: float, *, with_full_disk: bool = False) -> str:
        """Takes messages from now on, when all bytes that the slave received are dispatched; else why not. The slave
        receives nothing more when this is called. `with_full_disk`: also if it takes none until there is room."""
        if self.running_flags.flag_bits & ~(DISK_FULL if with_full_disk else 0):
            return "; ".join(self.running_flags.reasons())
        if not self.wait_until_dispatched(timeout_s):
            return f"{self.dispatch_behind_bytes} bytes of the log are not dispatched"
        self.consume_queues.recover_queue_offsets(self.commit_log_files.min_offset)
        # the first put, on another thread, waits as all that follow
        self._waits = True
        if role is BrokerRole.SYNC_MASTER and self.replicas is not None:
            self._group_commit_service.on_disk = self.replicas.wait_for_replicas
        self.config.become(role)
        self._waits = self._sync_flush or self.config.waits_for_replicas
        return ""

    def why_no_puts(self) -> str:
        """Why a master could take no message with this store, as its disk is now; empty if it could. Any thread."""
        self._clean_commit_log_service.check_disk()
        if self.running_flags.flag_bits:
            return "; ".join(self.running_flags.reasons())
        error = self.commit_log_files.create_error
        if error is None or self._has_room_for_a_file():
            return ""
        return f"cannot create the next commit log file: {error}"

    def _has_room_for_a_file(self) -> bool:
        try:
            return DiskSpace.of(self.config.commit_log_dir).free > self.config.mapped_file_size_commit_log
        except OSError:
            return True

    def _why_no_bytes(self) -> str:
        if self._state != "running":
            return "the store is not running"
        return "; ".join(self.running_flags.reasons()) if self.running_flags.is_fenced else ""

    def _on_replicated(self) -> None:
        if self.replicas is not None:
            self.replicas.notify()
        if not self._sync_flush:
            self._wake_services()

    # ------------------------------------------------------------------ dispatch

    @property
    def dispatch_behind_bytes(self) -> int:
        return self._reput_service.dispatch_behind_bytes

    def is_dispatched_until(self, physical_offset: int) -> bool:
        """True if all records before an offset can be read."""
        return self._reput_service.reput_from_offset >= physical_offset

    def wait_until_dispatched(self, timeout_s: float | None = None) -> bool:
        """Blocks until what was put (and, under SYNC_FLUSH, flushed) can be read; False in time."""
        return self._reput_service.wait_until_dispatched(timeout_s=timeout_s)

    def dispatch_for(self, is_awaited: Callable[[], bool]) -> None:
        """`is_awaited` says whether anybody waits for messages: without, dispatch gathers more of them, which is
        cheaper. Who begins to wait calls `messages_awaited`."""
        self._reput_service.is_awaited = is_awaited

    def messages_awaited(self) -> None:
        self._reput_service.awaited()

    def _count_arrival(self, arrival: Arrival) -> None:
        self.broker_stats_manager.put(arrival.topic, arrival.queue_id, arrival.count, arrival.size, 0)

    # ------------------------------------------------------------------ care

    def set_data_read_ahead(self, enabled: bool) -> None:
        """Turns reading ahead in the log on or off, until the store is opened again (dataReadAheadEnable)."""
        self.commit_log.files.set_data_read_ahead(enabled)

    def execute_delete_files_manually(self) -> None:
        """Lets the next cleaning rounds delete expired files at any hour."""
        self._clean_commit_log_service.execute_delete_files_manually()

    def _has_better_to_do(self) -> bool:
        """True if work that nobody waits for should pause."""
        return (
            self.dispatch_behind_bytes > DISPATCH_BEHIND_BUSY
            or self.is_os_page_cache_busy
            or os.getloadavg()[0] > (os.cpu_count() or 1)
        )

    def runtime_info(self) -> Mapping[str, str]:
        """RocketMQ's runtime keys and their values, as its tools read them."""
        info = dict(self.store_stats_service.runtime_info())
        info["commitLogMinOffset"] = str(self.min_phy_offset)
        info["commitLogMaxOffset"] = str(self.max_phy_offset)
        info["dispatchBehindBytes"] = str(self.dispatch_behind_bytes)
        info["remainHowManyDataToFlush"] = str(
            max(0, self.commit_log_files.max_wrote_position - self.commit_log_files.flushed_where)
        )
        info |= self.scrub_service.runtime_info()
        if self.archive is not None:
            info |= self.archive.runtime_info()
        info["damagedPlaces"] = str(self.damage.count)
        pool = self.transient_store_pool
        info["remainTransientStoreBufferNumbs"] = str(pool.available_buffer_nums if pool else 0)
        if pool is not None:
            files = self.commit_log_files
            info["remainHowManyDataToCommit"] = str(max(0, files.max_wrote_position - files.committed_where))
        return info


class _Housekeeping(ServiceThread):
    """FlushConsumeQueueService and the seconds' work: queues, index and checkpoint to the disk, statistics sampled."""

    def __init__(self, store: DefaultMessageStore) -> None:
        super().__init__("FlushConsumeQueueService")
        self._store = store

    def _run(self) -> None:
        store, config = self._store, self._store.config
        last_thorough = time.monotonic()
        doubted = False
        while not self._stops_within(config.flush_interval_consume_queue / 1000):
            thorough = time.monotonic() - last_thorough >= config.flush_consume_queue_thorough_interval / 1000
            if not store.running_flags.is_fenced:
                try:
                    self._flush(thorough)
                except OSError as error:
                    # what a second try reports may not be true; the next start makes them again from the log
                    store.fence(f"flushing the consume queues failed: {error}")
            elif not doubted:
                doubted = True
                store._doubt_page_cache()
            if thorough:
                last_thorough = time.monotonic()
            store.store_stats_service.sample()
            store._warn_of_slow_puts()
            store.store_stats_service.dispatched(store.dispatch_behind_bytes)
            store.broker_stats_manager.sample()

    def _flush(self, thorough: bool) -> None:
        store = self._store
        checkpoint = store._checkpoint
        assert checkpoint is not None
        # read before the flush: what is dispatched meanwhile is not known to be on the disk
        dispatched_until = store.consume_queues.logics_msg_timestamp
        store.consume_queues.flush(0 if thorough else store.config.flush_consume_queue_least_pages)
        if thorough:
            checkpoint.logics_msg_timestamp = dispatched_until
        if store.index is not None:
            store.index.flush_full_files(checkpoint)
        checkpoint.flush()


def open_store(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    *,
    progress: Progress = no_progress,
    on_recovered: Callable[[RecoveryReport], None] | None = None,
    accept_loss: bool = False,
) -> DefaultMessageStore:
    """Opens (or makes) the store in directory `path` and starts it; use it in a `with`. `accept_loss` as load().

    `settings` are RocketMQ's keys, e.g. {"flushDiskType": "SYNC_FLUSH"}; file sizes that they do not name are those
    of the files that are there. Raises what load() raises, and ConfigError / UnknownKeyError.
    """
    root = os.fspath(path)
    config = dataclasses.replace(
        MessageStoreConfig.from_mapping({**detect_settings(root), **(settings or {})}),
        store_path_root_dir=root,
    )
    store = DefaultMessageStore(config)
    store.load_and_start(progress, on_recovered, accept_loss=accept_loss)
    return store
