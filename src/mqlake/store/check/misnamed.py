"""Files of the commit log under names that are not theirs: each record says the physical offset at which it lies.

commitlog/00000000000000000000   [records of 16384 ...]   ─╮   swapped, or rotated: each has a place that is free,
commitlog/00000000000000016384   [records of 0 ...    ]   ─╯   or that another one of them leaves

RENAMED  a repair that was interrupted between its two steps: `<the right name>.renamed`
"""

from __future__ import annotations

import os

import numpy as np

from mqlake.formats.columns import scan_records
from mqlake.formats.names import file_name_to_offset, offset_to_file_name
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, RECORD_SIZE_MIN

RENAMED = ".renamed"
PHYSICAL_OFFSET_POSITION = 28
MAGICS = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)


def misnamed_files(directory: str, file_size: int) -> dict[str, str]:
    """Path → the path it should have, of the files that can have it. OSError."""
    names = os.listdir(directory)
    offsets = {name: offset for name in names if (offset := file_name_to_offset(name)) is not None}
    claims: dict[str, str] = {}
    for name, offset in offsets.items():
        claimed = _first_offset(os.path.join(directory, name))
        if claimed not in (None, offset) and claimed % file_size == offset % file_size:
            claims[name] = offset_to_file_name(claimed)
    while True:
        wanted = list(claims.values())
        free = {
            name
            for name, right in claims.items()
            if wanted.count(right) == 1 and (right not in offsets or right in claims)
        }
        if len(free) == len(claims):
            break
        claims = {name: claims[name] for name in free}
    for name in names:
        right = name.removesuffix(RENAMED)
        if (
            name != right
            and file_name_to_offset(right) is not None
            and (right not in offsets or right in claims)
        ):
            claims[name] = right
    return {os.path.join(directory, name): os.path.join(directory, right) for name, right in claims.items()}


def _first_offset(path: str) -> int | None:
    """The physical offset that the whole record at the file's beginning says; None when there is none."""
    size = os.path.getsize(path)
    if size < RECORD_SIZE_MIN:
        return None
    data = np.memmap(path, np.uint8, "r")
    magic = int.from_bytes(data[4:8].tobytes(), "big", signed=True)
    offset = int.from_bytes(
        data[PHYSICAL_OFFSET_POSITION : PHYSICAL_OFFSET_POSITION + 8].tobytes(), "big", signed=True
    )
    if magic not in MAGICS or offset < 0:
        return None
    return offset if len(scan_records(data.view(np.ndarray), 0, size, offset, max_records=1)) else None
