"""An archive: the sealed files of a store's log at another place, and what of them continues the store's log backwards.

archive    [0 ........][1 GiB .....][2 GiB .....]          s3://bucket/store/commitlog/…
store                               [2 GiB .....][3 GiB …  the store counts where both have a file
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mqlake.errors import WrongFileSizeError
from mqlake.formats.names import file_name_to_offset
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.log.splits import LogFile, Split, cut
from mqlake.lake.log.storage import Storage


@dataclass(frozen=True)
class WholeLog:
    """One log: the files of its store, and in front of them, where that was asked for, those of its archive.
    `is_listed`: True once the archive was asked for its files."""

    storage: Storage
    files: Sequence[LogFile]
    archive: Storage | None = None
    older: Sequence[LogFile] = field(default=())
    is_listed: bool = False

    @classmethod
    def of(cls, storage: Storage, files: Sequence[LogFile], archive: Storage | None) -> WholeLog:
        """Makes a log with the archive's files; one listing. WrongFileSizeError."""
        older = [] if archive is None else files_older_than_store(archive_files(archive), files)
        return cls(storage, files, archive, older, is_listed=archive is not None)

    def back_to(self, offset: int) -> WholeLog:
        """With the archive's files if the store does not reach back to `offset`; else the archive is not read."""
        if self.archive is None or (self.files and self.files[0].base_offset <= offset):
            return self
        return self.of(self.storage, self.files, self.archive)

    @property
    def parts(self) -> Iterator[tuple[Storage, Sequence[LogFile]]]:
        """Files by the place where they are, in the order of the log."""
        if self.archive is not None and self.older:
            yield self.archive, self.older
        yield self.storage, self.files

    @property
    def all_files(self) -> list[LogFile]:
        return [*self.older, *self.files]

    @property
    def begin(self) -> int:
        return next((file.base_offset for file in self.all_files), 0)

    @property
    def end(self) -> int:
        return self.all_files[-1].end_offset if self.all_files else 0

    def mark(self, offset: int) -> Mark:
        """A place in it, and what is known of the bytes before it."""
        marks = (Mark.at(storage, files, offset) for storage, files in self.parts)
        return next((mark for mark in marks if mark.tail is not None), Mark(offset))

    def fits(self, mark: Mark) -> bool:
        return all(mark.fits(storage, files) for storage, files in self.parts)

    def cut(self, split_size: int, start: int, end: int) -> list[Split]:
        """The splits of the records that begin between two physical offsets."""
        return [split for place in self.parts for split in cut(*place, split_size, [(start, end)])]

    def deleted(self, start: int, end: int) -> str | None:
        """Which physical offsets of these are in neither place, because they were deleted; None if all are there. An
        archive without a file of this log is most likely the wrong place: what lies before the store counts then."""
        if self.archive is not None and self.is_listed and not self.older and start <= self.begin > 0:
            return (
                f"physical offsets 0 to {self.begin} are not in the store, and the archive {self.archive.root} has "
                f"no file of them: look whether that is the place, and whether it has a folder commitlog; without "
                "the option archive the store is read alone"
            )
        if start < self.begin:
            return f"physical offsets {start} to {min(self.begin, end)} have been deleted"
        if self.archive is None:
            return None
        for file, following in zip(self.older, self.all_files[1:], strict=False):
            if (
                file.end_offset < following.base_offset
                and start < following.base_offset
                and end > file.end_offset
            ):
                return (
                    f"physical offsets {file.end_offset} to {following.base_offset} are neither in the archive nor in "
                    "the store: they were deleted before they were offloaded"
                )
        return None


def archive_files(archive: Storage) -> list[LogFile]:
    """All files of an archive, oldest first; one listing. WrongFileSizeError when they are not of one size."""
    found: list[LogFile] = []
    for name, size in archive.files("commitlog"):
        offset = file_name_to_offset(name)
        if offset is None:
            continue
        path = archive.path("commitlog", name)
        if found and size != found[0].file_size:
            raise WrongFileSizeError(path, size, found[0].file_size, key="mappedFileSizeCommitLog")
        found.append(LogFile(path, offset, size, size))
    return found


def files_older_than_store(archived: Sequence[LogFile], files: Sequence[LogFile]) -> list[LogFile]:
    """The archived files that end where the log of a store begins, or before."""
    begin = files[0].base_offset if files else None
    return [file for file in archived if begin is None or file.base_offset < begin]


def in_archive(split: Split, archive: Storage) -> Split:
    """The same range in the archive's copy of the file."""
    name = split.file.rpartition("/")[2]
    return replace(split, storage=archive, file=archive.path("commitlog", name))
