"""A store directory seen from outside: its entries, and what is not one.

ROOT/commitlog/  consumequeue/  index/  config/  checkpoint  abort  lock
"""

from __future__ import annotations

import os

from mqlake.errors import ForeignFormatError, NotAStoreError

ROCKSDB_MARK = "CURRENT"
"""A file that every RocksDB has, and nothing of RocketMQ's beside it."""
ROCKSDB_QUEUES = ("consumequeue", "consumequeue_rocksdb")
"""Where RocketMQ keeps consume queues with storeType=defaultRocksDB. 5.5 makes `rocksdbstore` in any case."""
NOT_THE_STORES = frozenset({"users", "acls"})
"""RocksDB directories in config/ that access control deals with."""

STORE_ENTRIES = ("commitlog", "consumequeue", "index", "checkpoint", "config", "abort", "lock")


def check_is_store(root: str, *, must_exist: bool) -> None:
    """Raises NotAStoreError for a directory that holds something else (or is missing, when it must exist),
    ForeignFormatError for a kind of store that is not supported, OSError if it cannot be read."""
    try:
        names = set(os.listdir(root))
    except FileNotFoundError:
        if must_exist:
            raise NotAStoreError(f"{root}: there is no such directory") from None
        return
    except NotADirectoryError:
        raise NotAStoreError(f"{root}: a store is a directory") from None
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
