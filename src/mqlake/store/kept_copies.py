"""Copies that are kept of bytes which left the commit log: what recovery cut off or fenced off, what repair changed.

    dropped/00000000000000065000         the bytes from physical offset 65000 on, as they were in the log
    dropped/00000000000000065000.json    why and when, how many whole records; once put back, how and when
    repair-<time>/repair.json            made by `mqlake store repair`: which copy was where
    repair-<time>/commitlog/<file>.<position>

Nothing here is read by a broker. `mqlake store dropped` lists the copies and puts their messages back.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.base.durable import fsync_dir, make_dirs, write_durably
from mqlake.formats.columns import Scan, ScanStop, find_record, scan_records
from mqlake.formats.names import file_name_to_offset, offset_to_file_name

DROPPED_DIR = "dropped"
"""Under the store's root."""
REPAIR_PREFIX = "repair-"
"""Prefix of the directories that repair makes under the store's root."""
REPAIR_LIST = "repair.json"
NOTE_SUFFIX = ".json"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptCopy:
    """`size` bytes of the commit log, from `physical_offset` on, in the file `path`."""

    name: str
    """Relative to the store's root."""
    path: str
    physical_offset: int
    size: int
    why: str
    kept_at: int
    """ms."""
    put_back: str = ""
    """How and when its messages were put back; empty: they were not."""


def keep(root: str, data: memoryview, physical_offset: int, why: str) -> tuple[str, int]:
    """Copies `data`, which lay at `physical_offset`, to `dropped/`, durably; never over an earlier copy.

    Returns the copy's path and how many whole records it has. OSError.
    """
    directory = os.path.join(root, DROPPED_DIR)
    make_dirs(directory)
    name = offset_to_file_name(physical_offset)
    path = os.path.join(directory, name)
    number = 1
    while os.path.exists(path):
        number += 1
        path = os.path.join(directory, f"{name}-{number}")
    with open(path, "xb") as copy:
        copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    records = sum(len(scan) for scan in whole_records(data, physical_offset))
    write_note(path, {"why": why, "keptAt": now_ms(), "records": records})
    return path, records


def write_note(path: str, note: dict[str, Any]) -> None:
    """Durably. OSError."""
    write_durably(path + NOTE_SUFFIX, json.dumps(note, indent=2).encode())


def read_note(path: str) -> dict[str, Any]:
    """The note beside a copy; empty when there is none, as of an older version."""
    try:
        with open(path + NOTE_SUFFIX, encoding="utf-8") as file:
            note = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def whole_records(data: bytes | memoryview, physical_offset: int) -> Iterator[Scan]:
    """The whole records (sizes, magic, CRC, physical offset) among bytes that lay at `physical_offset`, in order;
    positions count from the first byte."""
    array = np.frombuffer(data, np.uint8)
    at = find_record(array, 0, len(array), physical_offset)
    while at >= 0:
        scan = scan_records(array, at, len(array), physical_offset)
        if len(scan):
            yield scan
        if scan.stop == ScanStop.MAX_RECORDS:
            at = scan.end
        else:
            at = find_record(array, max(scan.end, at + 1), len(array), physical_offset)


def kept_copies(root: str) -> list[KeptCopy]:
    """All copies under a store's root, those of recovery first, in the order of their offsets. OSError."""
    found: list[KeptCopy] = []
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    if DROPPED_DIR in names:
        found += _dropped(root)
    for name in names:
        if name.startswith(REPAIR_PREFIX):
            found += _of_repair(root, name)
    return found


def count_kept(root: str) -> tuple[int, int]:
    """How many copies there are in `dropped/`, and how many directories of repairs; looks at names alone."""
    try:
        dropped = sum(not name.endswith(NOTE_SUFFIX) for name in os.listdir(os.path.join(root, DROPPED_DIR)))
    except FileNotFoundError:
        dropped = 0
    return dropped, sum(name.startswith(REPAIR_PREFIX) for name in os.listdir(root))


def describe_kept(root: str) -> str:
    """A sentence about the copies under a root that were not put back; empty when there are none."""
    copies = [copy for copy in kept_copies(root) if not copy.put_back]
    if not copies:
        return ""
    places = sorted({os.path.dirname(copy.name).split(os.sep)[0] for copy in copies})
    count = f"{len(copies)} {'copy' if len(copies) == 1 else 'copies'}"
    return f"{count} of bytes that left the log in {'/, '.join(places)}/; `mqlake store dropped` lists them"


def _dropped(root: str) -> Iterator[KeptCopy]:
    directory = os.path.join(root, DROPPED_DIR)
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        offset = file_name_to_offset(name.partition("-")[0])
        if offset is None or name.endswith(NOTE_SUFFIX) or not os.path.isfile(path):
            continue
        note = read_note(path)
        status = os.stat(path)
        yield KeptCopy(
            os.path.join(DROPPED_DIR, name),
            path,
            offset,
            status.st_size,
            str(note.get("why", "cut off by recovery")),
            int(note.get("keptAt", status.st_mtime_ns // 1_000_000)),
            str(note.get("putBack", "")),
        )


def _of_repair(root: str, directory: str) -> Iterator[KeptCopy]:
    try:
        with open(os.path.join(root, directory, REPAIR_LIST), encoding="utf-8") as file:
            entries = json.load(file)
    except (FileNotFoundError, ValueError):
        return
    for entry in entries:
        copy = str(entry.get("copy", ""))
        base = file_name_to_offset(os.path.basename(str(entry.get("file", ""))))
        path = os.path.join(root, directory, copy)
        if not copy.startswith("commitlog") or base is None or not os.path.isfile(path):
            continue
        note = read_note(path)
        status = os.stat(path)
        yield KeptCopy(
            os.path.join(directory, copy),
            path,
            base + int(entry["offset"]),
            status.st_size,
            f"{entry.get('action')}: {entry.get('text')}",
            status.st_mtime_ns // 1_000_000,
            str(note.get("putBack", "")),
        )


def forget(copy: KeptCopy) -> None:
    """Deletes a copy and its note. OSError."""
    for path in (copy.path, copy.path + NOTE_SUFFIX):
        if os.path.exists(path):
            os.unlink(path)
    fsync_dir(os.path.dirname(copy.path))
