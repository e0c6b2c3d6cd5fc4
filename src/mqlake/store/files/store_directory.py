"""What a store directory looks like from outside: its entries, and what is not one.

ROOT/commitlog/  consumequeue/  index/  config/  checkpoint  abort  lock
"""

from __future__ import annotations

import os

from mqlake.errors import ForeignFormatError, NotAStoreError

STORE_ENTRIES = ("commitlog", "consumequeue", "index", "checkpoint", "config", "abort", "lock")


def check_is_store(root: str, *, must_exist: bool) -> None:
    """Raises NotAStoreError for a directory that holds something else (or is missing, when it must exist),
    ForeignFormatError for a kind of store that is not supported."""
    if not os.path.exists(root):
        if must_exist:
            raise NotAStoreError(f"{root}: there is no such directory")
        return
    if not os.path.isdir(root):
        raise NotAStoreError(f"{root}: a store is a directory")
    names = set(os.listdir(root))
    if any(name.startswith("dledger-") for name in names):
        raise ForeignFormatError(f"{root}: a DLedger store; only the classic commit log is handled")
    known = names.intersection(STORE_ENTRIES)
    if (names and not known) or (must_exist and "commitlog" not in names):
        raise NotAStoreError(
            f"{root}: not a RocketMQ store (no commitlog directory in it)"
            + ("" if must_exist else "; name an empty or new directory to make one")
        )
