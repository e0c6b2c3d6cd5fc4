"""How mapped files are called: the offset of their first byte, 20 decimal digits, zeros in front."""

from __future__ import annotations

_OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


def offset_to_file_name(offset: int) -> str:
    """`0` → `"00000000000000000000"`. Raises ValueError for an offset that is no i64 or below zero."""
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"no file can begin at offset {offset}")
    return f"{offset:020d}"


def file_name_to_offset(name: str) -> int | None:
    """The offset a file's bare name says, None when the name is not one `offset_to_file_name` gives."""
    if len(name) != 20 or not (name.isascii() and name.isdigit()):
        return None
    offset = int(name)
    return offset if offset <= _OFFSET_MAX else None
