"""The manifest: which ranges of which log an archive has, in one small object that is replaced in one step.

    archive.json                      last: names all that counts; what it does not name is not there
    commitlog/<20 digits>             a whole file of the log, byte for byte, with the name that it has in the store
    parts/<begin>-<end>               of the file that is still written: what was flushed of it; gone when the whole
    has come units/<20 digits>                 of a whole file: its consume queue units and keys (see units)
    config/<sequence>                 topics, groups and their offsets, from before the log was read

The store keeps a copy of the last one that it wrote or read (`archive/archive.json`): so it knows at its start what can
be read, also when the bucket is away, and takes no older one that an object store may still give.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import ArchiveUnavailableError, ForeignFormatError
from mqlake.store.archive.target import Target

MANIFEST = "archive.json"
FORMAT = "mqlake archive"
VERSION = 1
LOG, PARTS, UNITS, CONFIG = "commitlog", "parts", "units", "config"


@dataclasses.dataclass(frozen=True, slots=True)
class SmallObject:
    name: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class ArchivedObject:
    """The log's bytes [start, end) (physical offsets), back to back in one object. Times are store times in ms, the
    least and the largest, 0 and -1 without records."""

    name: str
    start: int
    end: int
    sha256: str
    first_time_ms: int = 0
    last_time_ms: int = -1
    records: int = 0
    topics: tuple[str, ...] = ()
    units: SmallObject | None = None
    """None for a part."""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        """A whole file of the log, and not a part of the one that was being written."""
        return self.name.startswith(LOG)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """`objects` by their offsets; they do not overlap. `sequence` grows with each that is written; `file_size` is
    mappedFileSizeCommitLog, `settings` are the sizes of the store's other files; `writer` is the process that wrote
    it."""

    file_size: int
    objects: tuple[ArchivedObject, ...] = ()
    sequence: int = 0
    saved_at_ms: int = 0
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: SmallObject | None = None
    writer: str = ""

    @property
    def end(self) -> int:
        """Physical offset up to which the archive has the log; 0 when it is empty."""
        return self.objects[-1].end if self.objects else 0

    @property
    def begin(self) -> int:
        """Physical offset from which on it has all bytes up to `end`."""
        begin = self.end
        for each in reversed(self.objects):
            if each.end != begin:
                break
            begin = each.start
        return begin

    @property
    def size(self) -> int:
        return sum(each.size for each in self.objects)

    @property
    def last_time_ms(self) -> int:
        """Largest store time of its messages, -1 without any."""
        return max((each.last_time_ms for each in self.objects), default=-1)

    def at(self, offset: int) -> ArchivedObject | None:
        """The object that has the byte at a physical offset."""
        low, high = 0, len(self.objects)
        while low < high:
            middle = (low + high) // 2
            if self.objects[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        found = self.objects[low] if low < len(self.objects) else None
        return found if found is not None and found.start <= offset else None

    def has_file(self, base: int) -> bool:
        """True if the whole file that begins at a physical offset is in the archive."""
        found = self.at(base)
        return found is not None and found.is_whole and found.start == base

    def covers(self, start: int, end: int) -> bool:
        """True if it has all bytes of [start, end)."""
        while start < end:
            found = self.at(start)
            if found is None:
                return False
            start = found.end
        return True

    def following(self, objects: Iterable[ArchivedObject], config: SmallObject | None = None) -> Manifest:
        """The next one, with these objects."""
        return dataclasses.replace(
            self,
            objects=tuple(sorted(objects, key=lambda each: each.start)),
            sequence=self.sequence + 1,
            saved_at_ms=now_ms(),
            config=config or self.config,
        )


def object_name(start: int, end: int, file_size: int) -> str:
    return f"{LOG}/{start:020d}" if end - start == file_size else f"{PARTS}/{start:020d}-{end:020d}"


# ---------------------------------------------------------------------- as bytes


def encode(manifest: Manifest) -> bytes:
    found: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "sequence": manifest.sequence,
        "writer": manifest.writer,
        "savedAtMs": manifest.saved_at_ms,
        "fileSize": manifest.file_size,
        "settings": dict(manifest.settings),
        "config": None if manifest.config is None else dataclasses.asdict(manifest.config),
        "objects": [dataclasses.asdict(each) for each in manifest.objects],
    }
    return json.dumps({**found, "sha256": _checksum(found)}, indent=1).encode() + b"\n"


def _checksum(found: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in found.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def decode(data: bytes, place: str) -> Manifest:
    """ForeignFormatError for what is no manifest, or of a newer version; ArchiveUnavailableError for one that is cut
    short or damaged, which the next one may replace."""
    try:
        found = json.loads(data)
        if found.get("format") != FORMAT or found.get("version") != VERSION:
            raise ForeignFormatError(
                f"{place}: format {found.get('format')!r}, version {found.get('version')!r}; this is "
                f"{FORMAT!r}, version {VERSION}: is it of a newer mqlake?"
            )
        if found["sha256"] != _checksum(found):
            raise ValueError("its checksum is wrong")
        objects = tuple(
            ArchivedObject(**{**each, "topics": tuple(each["topics"]), "units": _small(each["units"])})
            for each in found["objects"]
        )
        if any(one.end > other.start for one, other in itertools.pairwise(objects)):
            raise ValueError("its objects overlap")
        return Manifest(
            int(found["fileSize"]),
            objects,
            int(found["sequence"]),
            int(found["savedAtMs"]),
            found["settings"],
            _small(found["config"]),
            str(found["writer"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveUnavailableError(f"{place} is damaged or cut short: {error!r}") from None


def _small(found: Mapping[str, Any] | None) -> SmallObject | None:
    return None if found is None else SmallObject(**found)


# ---------------------------------------------------------------------- in the archive, and the store's copy


def read_manifest(target: Target) -> Manifest | None:
    """None if there is none. ArchiveUnavailableError, ForeignFormatError."""
    try:
        data = target.read(MANIFEST)
    except FileNotFoundError:
        return None
    return decode(data, f"{target}/{MANIFEST}")


def local_path(root: str) -> str:
    """The store's copy, in the store directory `root`."""
    return os.path.join(root, "archive", MANIFEST)


def read_local(root: str) -> Manifest | None:
    """None if there is none, or none that can be read: then the archive's own counts."""
    try:
        with open(local_path(root), "rb") as file:
            return decode(file.read(), file.name)
    except (OSError, ArchiveUnavailableError, ForeignFormatError):
        return None


def write_local(root: str, manifest: Manifest) -> None:
    """OSError."""
    path = local_path(root)
    make_dirs(os.path.dirname(path))
    write_durably(path, encode(manifest))
