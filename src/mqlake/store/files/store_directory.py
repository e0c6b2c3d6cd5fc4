"""A store directory seen from outside: its entries, and what is not one.

ROOT/commitlog/  consumequeue/  index/  config/  checkpoint  abort  lock
"""

from __future__ import annotations

import os
import stat

from mqlake.errors import ForeignFormatError, NotAStoreError
from mqlake.formats.names import file_name_to_offset
from mqlake.message import LMQ_PREFIX

ROCKSDB_MARK = "CURRENT"
"""A file that every RocksDB has, and nothing of RocketMQ's beside it."""
ROCKSDB_QUEUES = ("consumequeue", "consumequeue_rocksdb")
"""The directories in which RocketMQ keeps consume queues with storeType=defaultRocksDB. 5.5 makes `rocksdbstore` in
any case."""
NOT_THE_STORES = frozenset({"users", "acls"})
"""RocksDB directories in config/ that access control deals with."""

LIGHT_QUEUE_OFFSETS = os.path.join("config", "lmqConsumerOffset.json")
"""The file in which RocketMQ's broker keeps the progress of all groups with enableLmq=true, in ordinary queues too."""

STORE_ENTRIES = ("commitlog", "consumequeue", "index", "checkpoint", "config", "abort", "lock")


def check_is_store(root: str, *, must_exist: bool) -> None:
    """Raises NotAStoreError for a directory that holds something else (or is missing, when it must exist),
    ForeignFormatError for a kind of store that is not supported, OSError if it cannot be read."""
    check_is_directory(root, must_exist=must_exist)
    try:
        names = set(os.listdir(root))
    except FileNotFoundError:
        return
    if any(name.startswith("dledger-") for name in names):
        raise ForeignFormatError(f"{root}: a DLedger store; only the classic commit log is handled")
    known = names.intersection(STORE_ENTRIES)
    if (names and not known) or (must_exist and "commitlog" not in names):
        stores = [name for name in sorted(names) if os.path.isdir(os.path.join(root, name, "commitlog"))]
        hint = "" if must_exist else "; name an empty or new directory to make one"
        if stores:
            more = f", and {len(stores) - 1} more" if len(stores) > 1 else ""
            hint = f"; a store is in {os.path.join(root, stores[0])}{more}"
        raise NotAStoreError(f"{root}: not a RocketMQ store (no commitlog directory in it){hint}")
    if must_exist and known == {"commitlog"} and not _has_log_file(os.path.join(root, "commitlog")):
        raise NotAStoreError(
            f"{root}: not a RocketMQ store: commitlog has no log file, and nothing else of a store is there; "
            "if it is the place where a disk is mounted, mount it first"
        )


def check_is_directory(root: str, *, must_exist: bool = False) -> None:
    """Raises NotAStoreError for a file, or when nothing is there and must_exist is set; OSError."""
    if reason := why_not_a_directory(root, must_exist=must_exist):
        raise NotAStoreError(f"{root}: {reason}")


def why_not_a_directory(root: str, *, must_exist: bool) -> str:
    """Returns what is wrong with the path of a store; empty for a directory. OSError."""
    try:
        return "" if stat.S_ISDIR(os.stat(root).st_mode) else "a store is a directory"
    except FileNotFoundError:
        return "there is no such directory" if must_exist else ""
    except NotADirectoryError:
        return "a store is a directory"


def _has_log_file(directory: str) -> bool:
    return any(file_name_to_offset(name) is not None for name in os.listdir(directory))


def foreign_files(directory: str) -> list[str]:
    """The paths of files in a commitlog directory that are none of a log: RocketMQ's broker does not start there."""
    with os.scandir(directory) as entries:
        return sorted(e.path for e in entries if e.is_file() and file_name_to_offset(e.name) is None)


def refuse_rocksdb(root: str) -> None:
    """Raises ForeignFormatError if RocketMQ's broker keeps in RocksDB what a store has to go on with."""
    config = os.path.join(root, "config")
    others = sorted(os.listdir(config)) if os.path.isdir(config) else []
    places = [(os.path.join(root, name), "its consume queues (storeType)") for name in ROCKSDB_QUEUES]
    places += [
        (os.path.join(config, name), f"{name} (configManagerVersion)")
        for name in others
        if name not in NOT_THE_STORES
    ]
    for path, what in places:
        if os.path.exists(os.path.join(path, ROCKSDB_MARK)):
            raise ForeignFormatError(
                f"{path}: RocketMQ's broker keeps {what} here in RocksDB, which cannot be read, and would not know of "
                "new messages. Run RocketMQ's broker; or move the directory away if it no longer uses it"
            )


def refuse_light_queues(root: str) -> None:
    """Raises ForeignFormatError if RocketMQ's broker has run here with enableLmq=true: the progress of groups is then
    in a file of its own, and light queues can neither be continued nor made again from the log."""
    offsets, queues = os.path.join(root, LIGHT_QUEUE_OFFSETS), os.path.join(root, "consumequeue")
    found = [offsets] if os.path.exists(offsets) else []
    names = os.listdir(queues) if os.path.isdir(queues) else []
    light = sorted(name for name in names if name.startswith(LMQ_PREFIX))
    if light:
        more = f" and {len(light) - 1} more" if len(light) > 1 else ""
        found.append(f"{os.path.join(queues, light[0])}{more}")
    if found:
        raise ForeignFormatError(
            f"{', '.join(found)}: RocketMQ's broker has run here with light queues (enableLmq=true), which are not "
            "supported: their messages would reach nobody, and groups would lose their progress. Run RocketMQ's "
            f"broker. If nobody uses the light queues any more, let consumerOffset.json have the offsetTable of "
            f"{LIGHT_QUEUE_OFFSETS}, and move that file and consumequeue/{LMQ_PREFIX}* out of the store"
        )
