"""Inspects the transaction journal of a data directory: where recovery begins, and damage from there on.

checkpoint.3   unusable        checkpoint.2  ─▶  redo.7 ├──old──┼──rec──┼──rec──┼─ damage ────┤
                                                        recovery begins ▲       ▲ JournalDamage
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from mqlake.base.findings import Findings
from mqlake.errors import FormatError, TruncatedRecordError
from mqlake.metaq.formats.checkpoint import (
    JournalLocation,
    checkpoint_name,
    checkpoint_number,
    decode_checkpoint,
)
from mqlake.metaq.formats.journal import AppendMessage, decode_journal_record, put_of

TRANSACTIONS = "transactions"
"""The journal's directory in a dataLogPath."""
_REDO = re.compile(r"redo\.([0-9]{1,9})")


class JournalDamage(NamedTuple):
    """The bytes of a file from `offset` on are not a record, so nothing after them can be found."""

    path: str
    offset: int
    size: int
    reason: str
    is_torn: bool
    """The file ends in the middle of a record: a writer died there, or is writing."""


def redo_numbers(directory: str) -> list[int]:
    """The numbers of the journal's files, sorted. OSError."""
    return sorted(int(found[1]) for name in os.listdir(directory) if (found := _REDO.fullmatch(name)))


def find_checkpoint(directory: str) -> tuple[JournalLocation | None, list[tuple[str, str]]]:
    """Returns the location at which recovery begins (None: at the first record), and (path, reason) of unusable
    checkpoints. OSError."""
    numbers = (checkpoint_number(name) for name in os.listdir(directory))
    unusable: list[tuple[str, str]] = []
    for number in sorted((each for each in numbers if each is not None), reverse=True):
        path = os.path.join(directory, checkpoint_name(number))
        try:
            location = decode_checkpoint(_read(path))
            if location is None:
                continue
            if _is_there(directory, location):
                return location, unusable
            unusable.append((path, f"redo.{location.number} has no record at byte {location.offset}"))
        except FormatError as error:
            unusable.append((path, error.reason))
    return None, unusable


def _is_there(directory: str, location: JournalLocation) -> bool:
    """True if the location is a record boundary, or its file was deleted after use and later ones exist."""
    try:
        data = _read(os.path.join(directory, f"redo.{location.number}"))
    except FileNotFoundError:
        return any(number > location.number for number in redo_numbers(directory))
    return _is_boundary(data, location.offset)


def _is_boundary(data: bytes, offset: int) -> bool:
    """True if a record begins at `offset` of a journal file, or the last one ends there."""
    if offset >= len(data):
        return offset == len(data)
    try:
        decode_journal_record(data, offset)
        return True
    except FormatError:
        pass
    position = 0  # it may be a torn record; then the records before it end there
    while position < offset:
        try:
            position = decode_journal_record(data, position).end
        except FormatError:
            return False
    return position == offset


def find_journal_damage(data_path: str) -> list[JournalDamage]:
    """The bytes that recovery would cut off, at most one range per file. OSError."""
    directory = os.path.join(data_path, TRANSACTIONS)
    if not os.path.isdir(directory):
        return []
    start, _ = find_checkpoint(directory)
    found = []
    for number in redo_numbers(directory):
        if start is not None and number < start.number:
            continue
        path = os.path.join(directory, f"redo.{number}")
        data = _read(path)
        position = start.offset if start is not None and number == start.number else 0
        try:
            while position < len(data):
                decoded = decode_journal_record(data, position)
                if isinstance(decoded.record, AppendMessage):
                    put_of(decoded.record)
                position = decoded.end
        except FormatError as error:
            is_torn = isinstance(error, TruncatedRecordError)
            found.append(JournalDamage(path, position, len(data) - position, error.reason, is_torn))
    return found


def verify_journal(data_path: str, findings: Findings) -> None:
    """OSError."""
    directory = os.path.join(data_path, TRANSACTIONS)
    if not os.path.isdir(directory):
        return
    for path, reason in find_checkpoint(directory)[1]:
        findings.note("checkpoint", path, 0, f"{reason}; an older one is used")
    for path, offset, size, reason, is_torn in find_journal_damage(data_path):
        if is_torn:
            findings.note(
                "torn tail",
                path,
                offset,
                f"{size} bytes: {reason}; the next start moves them to a file of their own",
            )
        else:
            findings.damage("damage", path, offset, f"{reason}; {size} bytes from here on cannot be read")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
