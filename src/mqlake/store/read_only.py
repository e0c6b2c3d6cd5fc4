"""ReadOnlyStore: a store directory looked at, also beside a running writer and without its co-operation.

No lock is taken and no byte is written. The end of the log is found by walking the records of the newest file
that holds any. mqlake publishes a record's size last (see MappedFile), RocketMQ does not: the newest record also
has to have its end. refresh() looks again.

File sizes are taken from the files themselves, so a store made with other than the default sizes opens as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType

from mqlake.errors import WrongFileSizeError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import LogChunk, LogReader, open_log
from mqlake.store.queues.consume_queue_store import BATCH_CQ, SIMPLE_CQ, ConsumeQueueStore, QueueTypeOf
from mqlake.store.store_view import StoreView


def queue_type_by_files(config: MessageStoreConfig) -> QueueTypeOf:
    """The queue.type of a topic that has queues on disk already, for who does not know the topics' attributes."""

    def queue_type_of(topic: str) -> str:
        is_batch = os.path.isdir(os.path.join(config.batch_consume_queue_dir, topic))
        return BATCH_CQ if is_batch else SIMPLE_CQ

    return queue_type_of


class ReadOnlyStore(StoreView):
    """Use it in a `with`. `settings` (RocketMQ's keys) go before what the files' sizes say.

    Raises NotAStoreError, ForeignFormatError, WrongFileSizeError, StoreCorruptError (a missing file between two),
    ConfigError and UnknownKeyError.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, object] | None = None) -> None:
        self._root = os.fspath(path)
        check_is_store(self._root, must_exist=True)
        self._settings = dict(settings or {})
        self._open_as_detected()

    def _open_as_detected(self) -> None:
        detected = detect_settings(self._root)
        while True:
            try:
                self._open(detected)
                return
            except WrongFileSizeError:
                before, detected = detected, detect_settings(self._root)
                if detected == before:
                    raise
                # else a writer has made the first file of its kind since, which tells the size of its kind

    def _open(self, detected: dict[str, object]) -> None:
        self._detected = detected
        config = MessageStoreConfig.from_mapping(
            {**detected, **self._settings, "storePathRootDir": self._root}
        )
        # what is derived from the log first, as in refresh()
        consume_queues = ConsumeQueueStore(config, queue_type_of=queue_type_by_files(config), read_only=True)
        consume_queues.load()
        consume_queues.refresh()
        index = None
        if os.path.isdir(config.index_dir):
            index = IndexService(config, read_only=True)
            index.load(True, None)
        super().__init__(config, open_log(config), consume_queues, index)
        LogReader(self.commit_log_files).find_end()
        self._correct_min_offsets()

    @property
    def is_clean(self) -> bool:
        """True if the last writer ended cleanly (and none runs now)."""
        return not os.path.exists(self.config.abort_path)

    def refresh(self) -> None:
        """Looks for what a writer has added, or cleaning has taken away, since. Raises as opening does."""
        self._check_open()
        if detect_settings(self._root) == self._detected:
            try:
                self._look_again()
                return
            except WrongFileSizeError:
                if detect_settings(self._root) == self._detected:
                    raise
        # the first file of its kind has come, and tells the size of its kind
        self.close()
        self._open_as_detected()

    def _look_again(self) -> None:
        # the log last: then it has all that the queues and the index point to
        self.consume_queues.refresh()
        if self.index is not None:
            self.index.refresh()
        self.commit_log_files.refresh()
        LogReader(self.commit_log_files).find_end()
        self._correct_min_offsets()

    def _correct_min_offsets(self) -> None:
        for queue in self.consume_queues:
            queue.correct_min_offset(self.commit_log_files.min_offset)

    def scan(
        self, start: int | None = None, end: int | None = None, *, check_crc: bool = True
    ) -> Iterator[LogChunk]:
        """The log's records in chunks of columns; `start` (a record's physical offset) None: from the first."""
        self._check_open()
        reader = LogReader(
            self.commit_log_files,
            check_crc=check_crc,
            force_prop_crc=check_crc and self.config.writes_prop_crc,
        )
        return reader.scan(self.min_phy_offset if start is None else start, end)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.commit_log_files.close()
            self.consume_queues.close()
            if self.index is not None:
                self.index.close()

    def __enter__(self) -> ReadOnlyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
