"""The store engine: files, commit log, flush, dispatch, consume queues, index, recovery and cleaning.

The names below are the public face; each is imported when it is first asked for.

    from mqlake.store import open_store
    with open_store("/data/store", {"flushDiskType": "SYNC_FLUSH"}) as store:
        store.put_message(...)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqlake.store.config import BrokerRole, FlushDiskType, MessageStoreConfig
    from mqlake.store.filter import TagFilter
    from mqlake.store.message_store import DefaultMessageStore, open_store
    from mqlake.store.read_only import ReadOnlyStore
    from mqlake.store.recovery import RecoveryReport
    from mqlake.store.results import (
        AppendMessageResult,
        AppendMessageStatus,
        BoundaryType,
        GetMessageResult,
        GetMessageStatus,
        PutMessageFuture,
        PutMessageResult,
        PutMessageStatus,
        QueryMessageResult,
    )

_HOME = {
    "AppendMessageResult": "results",
    "AppendMessageStatus": "results",
    "BoundaryType": "results",
    "BrokerRole": "config",
    "DefaultMessageStore": "message_store",
    "FlushDiskType": "config",
    "GetMessageResult": "results",
    "GetMessageStatus": "results",
    "MessageStoreConfig": "config",
    "PutMessageFuture": "results",
    "PutMessageResult": "results",
    "PutMessageStatus": "results",
    "QueryMessageResult": "results",
    "ReadOnlyStore": "read_only",
    "RecoveryReport": "recovery",
    "TagFilter": "filter",
    "open_store": "message_store",
}

__all__ = [
    "AppendMessageResult",
    "AppendMessageStatus",
    "BoundaryType",
    "BrokerRole",
    "DefaultMessageStore",
    "FlushDiskType",
    "GetMessageResult",
    "GetMessageStatus",
    "MessageStoreConfig",
    "PutMessageFuture",
    "PutMessageResult",
    "PutMessageStatus",
    "QueryMessageResult",
    "ReadOnlyStore",
    "RecoveryReport",
    "TagFilter",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqlake.store.{_HOME[name]}"), name)
