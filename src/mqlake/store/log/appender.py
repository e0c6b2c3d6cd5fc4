"""Appender: the one way of records into the commit log.

    append ──▶ lock: reserve ──▶ write ──▶ publish ──▶ unlock
                       │ a file with room │  its size last: from here on readers see it
                       │                  └ all but the size of the first record, and four zeros after the last
                       └ does not fit (8 bytes must stay): blank record, next file

`put_message`, a batch and the sends of a broker's fast path differ in what they `write`: records that Python encoded,
or compiled code makes in the mapping. Of usual messages native code does the same steps alone while it holds the
interpreter's lock (`native.single`, `native.produce`); it has the file, the queues and the log's lock of this object.
Only a slave has another way, which copies blocks of records that its master wrote (`ha.replica_log`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mqlake.formats.columns import NO_ROOM
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, encode_blank
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue

QueueId = tuple[str, int]
"""Topic and number of a queue."""
QueueOffsets = dict[QueueId, int]


class NoFileError(Exception):
    """No file takes so many bytes more."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Written(NamedTuple):
    """The result of a Write: so many `records` of `size` bytes together, the first of `first_size` bytes; and the
    records, bytes and sends (a batch is one) of each queue. With NO_ROOM records nothing was written, and `size`
    bytes are needed; without any nothing, for good."""

    records: int
    size: int
    first_size: int
    queue_counts: Sequence[int]
    queue_bytes: Sequence[int]
    queue_puts: Sequence[int]


def no_room(size: int) -> Written:
    """Nothing was written: the records take `size` bytes, more than are left in the file."""
    return Written(NO_ROOM, size, 0, (), (), ())


class Write(Protocol):
    """Writes whole records back to back at a file's `wrote_position`, so that 8 bytes stay free, with 4 zero bytes
    after them; but not the first one's TOTALSIZE.

    `queue_offsets` are those that the queues' next messages get; `store_timestamp` is in ms.
    """

    def __call__(
        self, mapped_file: MappedFile, queue_offsets: Sequence[int], store_timestamp: int
    ) -> Written: ...


class Appended(NamedTuple):
    """The place of appended records: physical offset of the first and one past the last, and what was written."""

    wrote_offset: int
    end_offset: int
    store_timestamp: int
    written: Written
    queue_offsets: Sequence[int]
    """Queue offset of the first message of each queue."""
    pagecache_rt: int = 0
    """ms for which it held the lock."""


class Appender:
    """Appends to `files`, one at a time. `queue_offsets` is (topic, queue id) → next queue offset, updated here."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: MappedFileQueue,
        queue_offsets: QueueOffsets,
        *,
        clock_ms: Callable[[], int],
        prefault: Callable[[MappedFile], None] | None,
    ) -> None:
        self.files = files
        self.queue_offsets = queue_offsets
        self.clock_ms = clock_ms
        self.begin_time_in_lock = 0
        """ms, since when somebody writes; 0 while nobody does."""
        self.end_unknown_reason = ""
        """Not empty: a put failed after part of it was visible, so nothing is put until the next start finds the log's
        end."""
        self.lock = threading.Lock()
        self.on_file: Callable[[MappedFile | None], None] = lambda mapped_file: None
        """Called under the lock with the file that is written from then on."""
        self._file_size = config.mapped_file_size_commit_log
        self._unlocks_full_files = config.warm_maped_file_enable
        self._prefault = prefault
        self._last_file: MappedFile | None = None

    def append(
        self,
        queues: Sequence[QueueId],
        write: Write,
        size: int = 0,
        *,
        mapped_only: bool = False,
    ) -> Appended | None:
        """Appends what `write` makes of messages to `queues`, in one step: all become visible together. None when it
        makes nothing. `size`: the bytes, as far as they are known; where they do not fit, the next file is begun.

        If something raises once they are visible, this log takes nothing any more: the next start finds its end.
        `mapped_only`: not to the next file, nor to one that is not written through its mapping (None).

        NoFileError; OSError from a device that fails; and what `write` raises, with nothing changed.
        """
        with self.lock:
            began, self.begin_time_in_lock = time.monotonic_ns(), (begin := self.clock_ms())
            mapped_file: MappedFile | None = None
            try:
                offsets = self.queue_offsets
                queue_offsets = [offsets.get(queue, 0) for queue in queues]
                while True:
                    mapped_file = self._last_file if mapped_only else self._reserve(size)
                    if mapped_only and (mapped_file is None or not mapped_file.is_mapped):
                        return None
                    if mapped_file is None:
                        raise NoFileError(size)
                    written = write(mapped_file, queue_offsets, begin)
                    if written.records != NO_ROOM or mapped_only:
                        break
                    size = written.size
                if written.records <= 0:
                    return None
                start, base = mapped_file.wrote_position, mapped_file.file_from_offset
                end = start + written.size
                mapped_file.publish(start, written.first_size.to_bytes(4, "big"), end, begin)
                if end > mapped_file.wake_position and self._prefault is not None:
                    self._prefault(mapped_file)
                for queue, offset, count in zip(queues, queue_offsets, written.queue_counts, strict=True):
                    if count:
                        offsets[queue] = offset + count
                held = (time.monotonic_ns() - began) // 1_000_000
            except BaseException as error:
                # a record that has its size may have been answered: nothing may go there
                if mapped_file is not None and mapped_file.has_size():
                    self.end_unknown_reason = f"where the log ends is not known any more: {error!r}"
                    self.write_to(None)
                raise
            finally:
                self.begin_time_in_lock = 0
        return Appended(base + start, base + end, begin, written, queue_offsets, held)

    # ------------------------------------------------------------------ files

    def _reserve(self, size: int) -> MappedFile | None:
        """The file that takes `size` more bytes and keeps 8 spare, rolling to the next one if necessary; None when no
        file can."""
        mapped_file = self._last_file or self._find_last_file()
        if mapped_file is None or mapped_file.has_room(size):
            return mapped_file
        if size + END_FILE_MIN_BLANK_LENGTH > self._file_size:
            return None
        return self._roll(mapped_file)

    def _find_last_file(self) -> MappedFile | None:
        if self.end_unknown_reason:
            raise OSError(self.end_unknown_reason)
        self.write_to(self.files.get_last_mapped_file())
        return self._last_file

    def _roll(self, full: MappedFile) -> MappedFile | None:
        """Ends a file with a blank record over the bytes left and gives the next file.

        The next file is made first: when the disk is full the old one stays as it is, able to take
        smaller messages, and a later put tries again. OSError when what waits in a write buffer cannot be written.
        """
        following = self.files.create_next()
        if following is None:
            return None
        full.append_blank(encode_blank(full.file_size - full.wrote_position))
        if full.write_buffer is not None and following.write_buffer is None:
            # the pool has no buffer left: what is written next is in the file at once, so what waits goes first
            self.files.commit_all()
        if self._unlocks_full_files:
            full.unlock_in_memory()
        self.write_to(following)
        return following

    def write_to(self, mapped_file: MappedFile | None) -> None:
        """Under the lock: the file that is written from now on, None: the next append looks for it."""
        self._last_file = mapped_file
        self.on_file(mapped_file)
