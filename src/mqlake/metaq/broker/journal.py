"""JournalStore: the files of the transaction journal, and the checkpoints at which recovery begins.

    <dataLogPath>/transactions/   redo.7   redo.8 ◀─ write     checkpoint.3  checkpoint.4  checkpoint.5

All records of a transaction go to the file with its first record. A file counts its open transactions; when it is
full, new transactions go to a new file, and when it has no open ones it is deleted. Records are written at once and
durable after `sync`; callers that arrive during a sync share the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from mqlake.base.durable import fsync_dir, make_dirs, write_durably
from mqlake.errors import FormatError, StoreFencedError
from mqlake.metaq.formats.checkpoint import (
    JournalLocation,
    checkpoint_name,
    checkpoint_number,
    encode_checkpoint,
)
from mqlake.metaq.formats.journal import (
    DecodedRecord,
    JournalRecord,
    MessageLocation,
    decode_journal_record,
    encode_journal_record,
    encode_locations,
)
from mqlake.metaq.store.inspect_journal import find_checkpoint, redo_numbers

logger = logging.getLogger(__name__)

FILE_SIZE_MAX = 64 << 20

Replay = Callable[[JournalLocation, DecodedRecord], None]


class JournalFile:
    """One `redo.<n>`."""

    def __init__(self, directory: str, number: int) -> None:
        """OSError."""
        self.number = number
        self.path = os.path.join(directory, f"redo.{number}")
        self.open_transactions = 0
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._fd).st_size
        self._round: asyncio.Task[None] | None = None
        self._next_round: asyncio.Task[None] | None = None

    def append(self, data: bytes) -> int:
        """Returns where it was written. After an OSError the file is unchanged."""
        position = self.size
        try:
            self.write_at(data, position)
        except OSError:
            os.ftruncate(self._fd, position)
            raise
        self.size += len(data)
        return position

    def write_at(self, data: bytes, position: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            position += written
            view = view[written:]

    def read(self) -> bytes:
        return os.pread(self._fd, self.size, 0)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self.size = size

    def sync_now(self) -> None:
        os.fdatasync(self._fd)

    async def sync(self) -> None:
        """Makes everything written durable. After an OSError its state is unknown."""
        if self._next_round is None:
            self._next_round = asyncio.ensure_future(self._sync_after(self._round))
        await asyncio.shield(self._next_round)

    async def _sync_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._round, self._next_round = self._next_round, None  # callers from now on share the next round
        await asyncio.to_thread(self.sync_now)

    def close(self) -> None:
        os.close(self._fd)


class JournalStore:
    """The files of one directory. To be called on the broker's event loop."""

    def __init__(
        self, directory: str, *, file_size_max: int = FILE_SIZE_MAX, checkpoints_max: int = 3
    ) -> None:
        """`recover` must follow. OSError."""
        self.directory = directory
        self._file_size_max = file_size_max
        self._checkpoints = Checkpoints(directory, checkpoints_max)
        self._files: dict[int, JournalFile] = {}
        self._failure: OSError | None = None
        self._recovering = True
        make_dirs(directory)

    @property
    def files(self) -> list[JournalFile]:
        return [self._files[number] for number in sorted(self._files)]

    @property
    def end(self) -> JournalLocation:
        """Location at which the next transaction would begin."""
        current = self._current()
        return JournalLocation(current.number, current.size)

    # --- opening

    def recover(self, replay: Replay) -> None:
        """Calls `replay` for every record since the checkpoint, in order; it raises FormatError for an invalid one.

        Bytes from the first that is not a whole record on are kept in `cut-redo.<n>-<byte>`, then cut off. OSError.
        """
        numbers = redo_numbers(self.directory)
        start = self._checkpoints.load()
        for number in numbers:
            if start is None or number >= start.number:
                self._files[number] = file = JournalFile(self.directory, number)
                self._replay_file(file, start.offset if start and number == start.number else 0, replay)
        if not self._files:
            self._new_file(max(numbers, default=0) + 1)
        self._recovering = False
        for file in self.files[:-1]:
            self._drop_if_done(file)

    def _replay_file(self, file: JournalFile, position: int, replay: Replay) -> None:
        data = file.read()
        while position < len(data):
            try:
                decoded = decode_journal_record(data, position)
                replay(JournalLocation(file.number, position), decoded)
            except FormatError as error:
                kept = os.path.join(self.directory, f"cut-redo.{file.number}-{position}")
                write_durably(kept, data[position:])
                logger.error(
                    "%s: byte %d: %s; the rest was moved to %s", file.path, position, error.reason, kept
                )
                file.truncate(position)
                return
            position = decoded.end

    # --- writing

    def write(self, record: JournalRecord, first: JournalLocation | None = None) -> JournalLocation:
        """Writes a record of the transaction that begins at `first` (None: with this record); returns its location.

        StoreFencedError after a failed sync, OSError.
        """
        self._check()
        if first is None:
            file = self._current()
            if file.size > self._file_size_max:
                file = self._new_file(file.number + 1)
            file.open_transactions += 1
        else:
            file = self._files[first.number]
        return JournalLocation(file.number, file.append(encode_journal_record(record)))

    def write_locations(self, at: JournalLocation, locations: tuple[MessageLocation, ...]) -> None:
        """Overwrites the locations at `at` with others of the same length. OSError."""
        self._check()
        self._files[at.number].write_at(encode_locations(locations), at.offset)

    async def sync(self, number: int) -> None:
        """Makes file `number` durable. StoreFencedError now and from then on if that fails."""
        self._check()
        try:
            await self._files[number].sync()
        except OSError as error:
            self._failure = self._failure or error
            self._check()

    def sync_all_now(self) -> None:
        """For the flush each second and at the end. OSError."""
        for file in list(self._files.values()):
            file.sync_now()

    def began(self, first: JournalLocation) -> None:
        """Counts a transaction, whose first record replay has found."""
        self._files[first.number].open_transactions += 1

    def ended(self, first: JournalLocation) -> None:
        """The transaction that begins at `first` is no longer needed."""
        file = self._files[first.number]
        file.open_transactions -= 1
        self._drop_if_done(file)

    def make_checkpoint(self, location: JournalLocation) -> None:
        """Recovery will begin at `location`, if that is later than before. OSError."""
        self._checkpoints.check(location)

    def close(self) -> None:
        """OSError if the last sync fails."""
        try:
            if self._failure is None:
                self.sync_all_now()
        finally:
            for file in self._files.values():
                file.close()
            self._files = {}

    def _check(self) -> None:
        if self._failure is not None:
            raise StoreFencedError(
                f"{self.directory}: transactions are stopped since an I/O error: {self._failure}; "
                "the next start decides the outcome of open ones"
            )

    def _current(self) -> JournalFile:
        return self._files[max(self._files)]

    def _new_file(self, number: int) -> JournalFile:
        self._files[number] = file = JournalFile(self.directory, number)
        fsync_dir(self.directory)
        return file

    def _drop_if_done(self, file: JournalFile) -> None:
        if file.size > self._file_size_max and file.open_transactions <= 0 and not self._recovering:
            if file is self._current():
                self._new_file(file.number + 1)
            del self._files[file.number]
            file.close()
            os.unlink(file.path)


class Checkpoints:
    """`checkpoint.<n>`: the highest usable one counts, at most `count_max` are kept."""

    def __init__(self, directory: str, count_max: int) -> None:
        self._directory = directory
        self._count_max = count_max
        self._last: JournalLocation | None = None

    def load(self) -> JournalLocation | None:
        """None: recovery begins at the first record. OSError."""
        self._last, unusable = find_checkpoint(self._directory)
        for path, reason in unusable:
            logger.warning("%s: %s; an older one is used", path, reason)
        return self._last

    def check(self, location: JournalLocation) -> None:
        if self._last is not None and location <= self._last:
            return
        numbers = self._numbers()
        write_durably(self._path(max(numbers, default=0) + 1), encode_checkpoint(location))
        self._last = location
        for number in numbers[: len(numbers) + 1 - self._count_max]:
            os.unlink(self._path(number))

    def _numbers(self) -> list[int]:
        names = os.listdir(self._directory)
        return sorted(number for name in names if (number := checkpoint_number(name)) is not None)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, checkpoint_name(number))
