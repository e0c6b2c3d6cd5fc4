"""The index as a guide to records with certain keys: where they may be, and where it cannot tell.

    file 1  [begin ........ end]      file 2  [begin ........ end]
    log   ..|   entries       |...............|    entries      |.......      dots: the log has to be read

An index file is believed between its first and its last record, if those have the store times that its header says
and its entries are in the order of the log. In a store that was not closed and that no process has open,
only files that the checkpoint knows to be on the disk are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqlake.errors import StoreCorruptError
from mqlake.formats.checkpoint import CHECKPOINT_SIZE, Checkpoint
from mqlake.formats.index import INDEX_SIZE, IndexHeader, build_key, index_key_hash
from mqlake.lake.log.queue_files import IndexTable, index_files
from mqlake.lake.log.storage import Storage
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.store_lock import lock_holder
from mqlake.store.index.index_service import IndexService

Ints = npt.NDArray[np.int64]
StoreTimeAt = Callable[[int], int | None]
"""Store time (ms) of the record at a physical offset, None where no record is."""

ENTRIES_READ_MAX = 2 << 20
"""So many entries are all looked at, which also finds those that a damaged hash slot hides; with more, the slots are
followed."""
HITS_MAX = 1 << 20
FIRST_REQUESTS, FILE_REQUESTS = 8, 3
"""Requests that reading a remote index takes: listings and the log around it; for each file the header, the entries
and a record."""
_I64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class KeyHits:
    """`offsets` of records that may have the keys; `known`: between which physical offsets (exclusive) no others do."""

    offsets: Ints
    known: list[tuple[int, int]]


def hits(
    storage: Storage,
    topics: Collection[str],
    keys: Collection[str],
    store_time_at: StoreTimeAt,
    bytes_max: int,
    requests_max: float,
) -> KeyHits | None:
    """None when there is no index, when nothing of it can be believed, or when of a remote store it would take more
    than `bytes_max`, or about `requests_max`, to read.

    Raises StoreError, OSError for what cannot be read.
    """
    tables = index_files(storage)
    if not storage.is_local and FIRST_REQUESTS + FILE_REQUESTS * len(tables) > requests_max:
        return None
    tables = _trusted(storage, tables)
    try:
        of_each = [(table, table.header()) for table in tables]
        if storage.is_local and tables:  # elsewhere the order of the entries has to do
            tables[0].check_slots()
    except StoreCorruptError:  # other sizes than RocketMQ's, or damage
        return None
    used = [(table, header) for table, header in of_each if header.index_count > 1]
    entries = sum(header.index_count for _, header in used)
    at_once = entries * INDEX_SIZE <= bytes_max and (entries <= ENTRIES_READ_MAX or not storage.is_local)
    if not used or not (at_once or storage.is_local):
        return None
    used = [(table, header) for table, header in used if _is_of_this_log(header, store_time_at)]
    hashes = np.array([index_key_hash(build_key(topic, key)) for topic in topics for key in keys], np.int32)
    known = [(header.begin_phy_offset, header.end_phy_offset) for _, header in used]
    if not at_once:
        found = _asked(storage, topics, keys)
        return None if found is None else KeyHits(found, known)
    offsets, known = [], []
    for table, header in used:
        part = table.entries(1, header.index_count)
        offset = part["phy_offset"].astype(np.int64)
        in_order = offset[0] == header.begin_phy_offset and offset[-1] == header.end_phy_offset
        if in_order and (np.diff(offset) >= 0).all():
            known.append((header.begin_phy_offset, header.end_phy_offset))
            offsets.append(offset[np.isin(part["key_hash"], hashes)])
    return KeyHits(np.concatenate([*offsets, np.zeros(0, np.int64)]), known) if known else None


def headers(storage: Storage, store_time_at: StoreTimeAt) -> list[IndexHeader]:
    """Returns the headers of the files with entries of this log, of a store that a process has open. StoreError,
    OSError."""
    found = [table.header() for table in index_files(storage)]
    return [header for header in found if header.index_count > 1 and _is_of_this_log(header, store_time_at)]


def _trusted(storage: Storage, tables: list[IndexTable]) -> list[IndexTable]:
    if not storage.exists("abort"):
        return tables
    if storage.is_local and lock_holder(storage.path("lock")) is not None:
        return tables  # a writer sees the same pages
    if not storage.exists("checkpoint"):
        return []
    raw = storage.read(storage.path("checkpoint"), 0, CHECKPOINT_SIZE).tobytes()
    if len(raw) < CHECKPOINT_SIZE:
        return []
    flushed = Checkpoint.decode(raw).index_msg_timestamp
    of_each = [(table, table.header()) for table in tables]
    ends = [
        number
        for number, (table, header) in enumerate(of_each, 1)
        if header.end_timestamp == flushed and header.index_count >= table.entries_max
    ]
    return tables[: ends[0]] if ends and flushed else []


def _is_of_this_log(header: IndexHeader, store_time_at: StoreTimeAt) -> bool:
    """Not copied from elsewhere, or left from before: a record that is there has the time that the header says."""
    if header.begin_phy_offset > header.end_phy_offset:
        return False
    begins = store_time_at(header.begin_phy_offset)
    if begins is not None:
        return begins == header.begin_timestamp
    return store_time_at(header.end_phy_offset) == header.end_timestamp


def _asked(storage: Storage, topics: Collection[str], keys: Collection[str]) -> Ints | None:
    """The entries of the hash slots; None for more than HITS_MAX, or a damaged file."""
    config = MessageStoreConfig.from_mapping(
        {**detect_settings(storage.root), "storePathRootDir": storage.root}
    )
    index = IndexService(config, read_only=True)
    found: list[int] = []
    try:
        index.load(True, None)
        if not all(file.is_sound for file in index.files):
            return None
        for topic in topics:
            for key in keys:
                found += index.query_offset(topic, key, HITS_MAX, 0, _I64_MAX)
                if len(found) >= HITS_MAX:
                    return None
    finally:
        index.close()
    return np.array(found, np.int64)
