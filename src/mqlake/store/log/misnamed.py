"""Files of the commit log under names that are not theirs: each record says the physical offset at which it lies.

    commitlog/00000000000000000000   [records of 16384 ...]   ─╮   swapped, or rotated: each has a place that is free,
    commitlog/00000000000000016384   [records of 0 ...    ]   ─╯   that another one of them leaves, or where an empty
                                                                   file lies, which changes places with it

A record that begins a file, or that lies in one at the place at which it would lie in its own, can be neither a
leftover (truncation keeps files where they are) nor a part of a body: so it proves that its file was renamed or
copied. Recovery refuses such a log; `mqlake store repair` gives the files their names.

RENAMED  a repair that was interrupted between its two steps: `<the right name>.renamed`
"""

from __future__ import annotations

import os

import numpy as np

from mqlake.errors import StoreCorruptError
from mqlake.formats.columns import Bytes, scan_records
from mqlake.formats.names import file_name_to_offset, offset_to_file_name
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, RECORD_SIZE_MIN

RENAMED = ".renamed"
MAGIC_POSITION = 4
PHYSICAL_OFFSET_POSITION = 28
MAGICS = tuple(code.to_bytes(4, "big", signed=True) for code in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2))
SEARCH_BYTES = 16 << 20
HEAD_BYTES = 4096
"""Bytes at the beginning of a file; zeros there make it one that may be empty."""


def misnamed_text(right: str) -> str:
    """Says what is wrong with a file whose path should be `right`, and what to do."""
    return (
        f"its records are those of {os.path.basename(right)}: `mqlake store repair` gives it that name back"
    )


def raise_if_misnamed(directory: str, file_size: int) -> None:
    """Raises StoreCorruptError if a file of the log has a name that is not its own. OSError."""
    for path, right in sorted(misnamed_files(directory, file_size).items()):
        raise StoreCorruptError(path, 0, misnamed_text(right))


def misnamed_files(directory: str, file_size: int) -> dict[str, str]:
    """Path → the path it should have, of the files that can have it. OSError."""
    names = os.listdir(directory)
    offsets = {name: offset for name in names if (offset := file_name_to_offset(name)) is not None}
    claims = {name: offset_to_file_name(offset) for name, offset in _claims(directory, offsets, file_size)}
    while True:
        wanted = list(claims.values())
        free = {
            name
            for name, right in claims.items()
            if wanted.count(right) == 1
            and (right not in offsets or right in claims or _is_empty(os.path.join(directory, right)))
        }
        if len(free) == len(claims):
            break
        claims = {name: claims[name] for name in free}
    taken = set(claims.values())
    left = sorted(claims.keys() - taken)
    claims.update(zip(sorted((taken & offsets.keys()) - claims.keys()), left, strict=False))
    for name in names:
        right = name.removesuffix(RENAMED)
        if (
            name != right
            and file_name_to_offset(right) is not None
            and (right not in offsets or right in claims)
        ):
            claims[name] = right
    return {os.path.join(directory, name): os.path.join(directory, right) for name, right in claims.items()}


def copied_files(directory: str, file_size: int) -> dict[str, str]:
    """Path → the path of the file whose records it has, of the files that cannot have that name: another file is
    there, or claims it too. OSError."""
    names = os.listdir(directory)
    offsets = {name: offset for name in names if (offset := file_name_to_offset(name)) is not None}
    mended = misnamed_files(directory, file_size)
    found = {
        os.path.join(directory, name): os.path.join(directory, offset_to_file_name(offset))
        for name, offset in _claims(directory, offsets, file_size)
    }
    return {path: right for path, right in found.items() if path not in mended}


def own_offset(array: Bytes, physical_offset: int, file_size: int) -> int | None:
    """The physical offset of the file whose records begin here, when it is another than `physical_offset`, at which
    this file lies; None when the file begins with a record of its own, or none."""
    claimed = _claim(array, 0, len(array))
    if claimed is None or claimed == physical_offset or claimed % file_size != physical_offset % file_size:
        return None
    return claimed


def record_of_another_file(
    array: Bytes, start: int, end: int, physical_offset: int, file_size: int
) -> tuple[int, int] | None:
    """The first whole record in [start, end) of a file that lies at `physical_offset` which lies at its place, but in
    the wrong file: its position, and the physical offset of the file it belongs to. None when there is none."""
    for first in range(start, end, SEARCH_BYTES):
        piece = array[first : min(end, first + SEARCH_BYTES + RECORD_SIZE_MIN)].tobytes()
        for magic in MAGICS:
            at = piece.find(magic)
            while at >= 0:
                position = first + at - MAGIC_POSITION
                claimed = _claim(array, position, len(array)) if position >= start else None
                if claimed is not None:
                    base = claimed - position
                    if base >= 0 and base != physical_offset and not (base - physical_offset) % file_size:
                        return position, base
                at = piece.find(magic, at + 1)
    return None


def _claims(directory: str, offsets: dict[str, int], file_size: int) -> list[tuple[str, int]]:
    """The files that begin with a record of another one, and the physical offset of that one."""
    found = []
    for name, offset in offsets.items():
        path = os.path.join(directory, name)
        claimed = (
            own_offset(np.memmap(path, np.uint8, "r"), offset, file_size) if os.path.getsize(path) else None
        )
        if claimed is not None:
            found.append((name, claimed))
    return found


def _claim(array: Bytes, position: int, limit: int) -> int | None:
    """The physical offset that a whole record at `position` says; None when there is none."""
    if limit - position < RECORD_SIZE_MIN:
        return None
    head = array[position : position + PHYSICAL_OFFSET_POSITION + 8].tobytes()
    offset = int.from_bytes(head[PHYSICAL_OFFSET_POSITION:], "big", signed=True)
    if head[MAGIC_POSITION : MAGIC_POSITION + 4] not in MAGICS or offset < position:
        return None
    scan = scan_records(array.view(np.ndarray), position, limit, offset - position, max_records=1)
    return offset if len(scan) else None


def _is_empty(path: str) -> bool:
    """True if a file has been allocated and holds nothing."""
    if not os.path.getsize(path):
        return True
    array = np.memmap(path, np.uint8, "r")
    return not array[:HEAD_BYTES].any() and not any(
        array[start : start + SEARCH_BYTES].any() for start in range(0, len(array), SEARCH_BYTES)
    )
