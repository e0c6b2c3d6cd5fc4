"""Which heads of a store may be used: derived files, compared with the log as it is before each use.

    log      [0 ........][1 GiB .....][2 GiB .....][3 GiB ... ]
    heads    [0.parquet ][ stale     ][2.parquet  ]
             used         read from the log  used   └ the tail, from this offset on

Stale, foreign and damaged files are passed over, with one warning for all of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from mqlake.errors import UnfitHeadsError
from mqlake.formats.names import file_name_to_offset
from mqlake.lake.heads.rows import tail_of
from mqlake.lake.heads.schema import ORIGIN_KEY, SCHEMA, Origin
from mqlake.lake.heads.seal import Read, Sealed, check_ends
from mqlake.lake.log.log_ends import known_end, remember
from mqlake.lake.log.splits import LogFile, log_files
from mqlake.lake.log.storage import Storage
from mqlake.store.heads import HEADS, SUFFIX

logger = logging.getLogger(__name__)

Made = TypeVar("Made")

SHOWN = 3
AT_ONCE = 8
"""Files of heads that are fetched at the same time from a place that is not local: of each all bytes, in memory."""


@dataclass(frozen=True)
class Heads:
    """The heads of one log file, which fit it. `size`: bytes of the Parquet file."""

    path: str
    file: LogFile
    size: int
    origin: Origin
    sealed: Sealed
    data: bytes | None = field(default=None, repr=False)
    """All of the Parquet file, where it was fetched from a place that is not local."""

    @property
    def source(self) -> str | bytes:
        """As rows_of() takes it, while `data` is there."""
        return self.path if self.data is None else self.data

    @contextlib.contextmanager
    def reader(self) -> Iterator[Read]:
        """Gives the bytes between two positions of the Parquet file. OSError."""
        if self.data is not None:
            data = self.data
            yield lambda start, end: data[start:end]
            return
        with open(self.path, "rb") as file:
            descriptor = file.fileno()
            yield lambda start, end: os.pread(descriptor, end - start, start)


@dataclass(frozen=True)
class Look(Generic[Made]):
    """A log file, its heads if they may be used, and what was made of them; `wrong`: why they may not."""

    file: LogFile
    heads: Heads | None = None
    made: Made | None = None
    wrong: str = ""


@dataclass(frozen=True)
class StoreHeads:
    """The files of a log, each with its heads if it has valid ones. `place`: the directory of the heads."""

    storage: Storage
    place: Storage
    files: Sequence[tuple[LogFile, Heads | None]]
    passed_over: Sequence[tuple[str, str]] = ()
    """Files of heads that do not fit, and why."""

    @property
    def valid(self) -> list[Heads]:
        return [heads for _, heads in self.files if heads is not None]

    @property
    def begin(self) -> int:
        """First physical offset of the log."""
        return self.files[0][0].base_offset if self.files else 0

    @property
    def tail(self) -> int:
        """First physical offset of the part of the log that has no heads, up to its end."""
        valid = self.valid
        return valid[-1].origin.end if valid else self.begin

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The parts of the log before the tail that have no heads."""
        return [(start, end) for start, end, heads in self.parts if not heads and end is not None]

    @property
    def parts(self) -> list[tuple[int, int | None, list[Heads]]]:
        """The whole log in its order: ranges with heads of all their files, ranges without, and the tail, which has no
        end. None of a log without files."""
        found: list[tuple[int, int | None, list[Heads]]] = []
        at = self.begin
        for heads in self.valid:
            if at < heads.origin.begin:
                found.append((at, heads.origin.begin, []))
            elif found and found[-1][2]:
                start, _, before = found.pop()
                found.append((start, heads.origin.end, [*before, heads]))
                at = heads.origin.end
                continue
            found.append((heads.origin.begin, heads.origin.end, [heads]))
            at = heads.origin.end
        return [*found, (at, None, [])] if self.files else []


def place_of(storage: Storage, out: str | None = None) -> Storage:
    """Returns the place of a store's heads: in it, or in the directory `out`."""
    return Storage(storage.path(HEADS) if out is None else out, storage.options)


def is_full(file: LogFile) -> bool:
    """True if nothing will be written to the file any more."""
    return file.limit == file.file_size


def open_valid(
    storage: Storage, out: str | None = None, files: Sequence[LogFile] | None = None, *, quiet: bool = False
) -> StoreHeads:
    """The files of a store's log with their valid heads. `files`: the log's, if they are known; `quiet`: no warning.

    Raises what log_files() raises, and OSError.
    """
    if files is None:
        files = log_files(storage, known_end(storage), must_be_whole=False)
        remember(storage, files)
    place = place_of(storage, out)
    names = dict(place.files("")) if files else {}
    looks: list[Look[None]] = list(look_through(storage, place, names, files, lambda heads: None))
    wrong = passed_over(place, looks)
    if not quiet:
        warn(wrong)
    return StoreHeads(storage, place, [(look.file, look.heads) for look in looks], wrong)


def look_through(
    storage: Storage,
    place: Storage,
    names: Mapping[str, int],
    files: Sequence[LogFile],
    use: Callable[[Heads], Made],
) -> Iterator[Look[Made]]:
    """Each file of a log, with its heads and what `use` makes of them, which may raise UnfitHeadsError. `names`: the
    files in `place` and their sizes.

    From a place that is not local, AT_ONCE files are fetched at once, each whole, and `use` runs in a thread; their
    data is let go afterwards. OSError.
    """

    def look(file: LogFile) -> Look[Made]:
        name = name_of(file)
        if name not in names:
            return Look(file)
        try:
            heads = open_heads(place, name, names[name], storage, file)
            made = use(heads)
        except FileNotFoundError:  # deleted since it was listed, as its log file was
            return Look(file)
        except UnfitHeadsError as error:
            return Look(file, wrong=str(error))
        return Look(file, heads if heads.data is None else replace(heads, data=None), made)

    if place.is_local:
        yield from map(look, files)
        return
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield from threads.map(look, files)


def name_of(file: LogFile) -> str:
    """The name of a log file's heads."""
    return file.file.rpartition("/")[2] + SUFFIX


def passed_over(place: Storage, looks: Sequence[Look[Any]]) -> list[tuple[str, str]]:
    """The files of heads that may not be used, and why."""
    return [(place.path(name_of(look.file)), look.wrong) for look in looks if look.wrong]


@contextlib.contextmanager
def unfit_if_damaged() -> Iterator[None]:
    """UnfitHeadsError for what reading the rows of heads raises; a file that is gone stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnfitHeadsError(str(error)) from error


def source_of(place: Storage, path: str, size: int) -> str | bytes:
    """A file of heads as rows_of() takes it: the path of a local one, else its bytes."""
    return path if place.is_local else place.read(path, 0, size).tobytes()


def warn(wrong: Sequence[tuple[str, str]]) -> None:
    """One warning for all files of heads that are passed over; pairs of path and reason."""
    if wrong:
        logger.warning("%s", _passed_over(wrong))


def _passed_over(wrong: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{path}: {why}" for path, why in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return (
        f"heads are passed over, and the log is read in their place: {shown}{more}. "
        "`mqlake store heads` makes them again"
    )


def open_heads(place: Storage, name: str, size: int, storage: Storage, file: LogFile) -> Heads:
    """A file of heads of `size` bytes, if it is sound and of this log file.

    UnfitHeadsError for one that is not, FileNotFoundError when it or the log file has been deleted, OSError.
    """
    path = place.path(name)
    data = None if place.is_local else place.read(path, 0, size).tobytes()

    def read(start: int, end: int) -> bytes:
        return place.read(path, start, end).tobytes() if data is None else data[start:end]

    sealed = check_ends(read, size)
    metadata = sealed.metadata
    text = (metadata.metadata or {}).get(ORIGIN_KEY)
    if text is None:
        raise UnfitHeadsError("it does not say which log file it was made from")
    origin = Origin.from_json(text)
    if metadata.num_rows != origin.records or metadata.schema.to_arrow_schema() != SCHEMA:
        raise UnfitHeadsError("its rows are not those that it says")
    check_fits(origin, storage, file)
    return Heads(path, file, size, origin, sealed, data)


def check_fits(origin: Origin, storage: Storage, file: LogFile) -> None:
    """UnfitHeadsError if the log file is another one now than that of which `origin` tells; FileNotFoundError."""
    name = file.file.rpartition("/")[2]
    if (origin.file, origin.begin, origin.end) != (name, file.base_offset, file.base_offset + file.file_size):
        raise UnfitHeadsError(
            f"it was made from {origin.file}, {origin.begin} to {origin.end}, not from {name}, "
            f"{file.base_offset} to {file.base_offset + file.file_size}"
        )
    end = origin.last + origin.last_size
    if not origin.begin <= origin.last <= end <= origin.end or file_name_to_offset(name) != origin.begin:
        raise UnfitHeadsError("its last record is not in the log file")
    if not is_full(file):
        raise UnfitHeadsError("the log file is not full")
    if origin.records:
        position = origin.last - origin.begin
        size = storage.read(file.file, position, position + 4).tobytes()
        if int.from_bytes(size, "big") != origin.last_size:
            raise UnfitHeadsError("the log file has another record at its end")
    if tail_of(storage, file, end) != origin.tail:
        raise UnfitHeadsError("the log file has other bytes at its end")
