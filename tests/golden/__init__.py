"""Stores written by the Java store 5.3.3, and what Java reads from them.

A case is a directory with ``store.tar.xz`` (the store's root as Java left it) and ``expected.json``:

    config, topics  what it was written with
    puts            per operation: op (as tests.interop.java_peer makes them) and result
    info            offsets and checkpoint that Java has after opening (a copy of) the store
    records         every record of the commit log, in order, all fields; body is base64, a host [ip, port]
    queues          per queue its range, its units, and the physical offsets that getMessage finds
    queries         per look-up its query and answer while the store was open; afterRecovery, when Java
                    answers otherwise after it has opened the store again
"""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "java-5.3.3"
CASES = (
    "clean",
    "killed",
    "v2topic",
    "ipv6",
    "delay",
    "transaction",
    "batch",
    "innerbatch",
    "propcrc",
    "cqext",
    "rolled",
    "index-rolled",
)


@dataclass(frozen=True)
class Golden:
    """One case, its store unpacked at ``root`` to be read or changed at will."""

    case: str
    root: Path
    expected: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.expected["config"])

    @property
    def topics(self) -> dict[str, dict[str, str]]:
        return dict(self.expected["topics"])


def extract(packed: Path, directory: Path) -> None:
    with tarfile.open(packed) as archive:
        # the argument `filter` came with Python 3.11.4, and Debian 12 has 3.11.2
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(directory)


def unpack(case: str, directory: Path) -> Golden:
    """Unpacks a case's store into ``directory``/store. A case that is missing is an error, never a skip."""
    root = directory / "store"
    extract(DIRECTORY / case / "store.tar.xz", root)
    for path in root.rglob("*"):
        # The age of a file decides about its deletion.
        os.utime(path)
    return Golden(case, root, json.loads((DIRECTORY / case / "expected.json").read_text()))
