"""The store engine: files, commit log, flush, dispatch, consume queues, index, recovery and cleaning.

The names below are the public face; each is imported when it is first asked for.

    from mqlake.store import open_store
    with open_store("/data/store", {"flushDiskType": "SYNC_FLUSH"}) as store:
        store.put_message(...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.base.lazy_exports import at_first_use

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
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "mqlake.store.config": ["BrokerRole", "FlushDiskType", "MessageStoreConfig"],
            "mqlake.store.filter": ["TagFilter"],
            "mqlake.store.message_store": ["DefaultMessageStore", "open_store"],
            "mqlake.store.read_only": ["ReadOnlyStore"],
            "mqlake.store.recovery": ["RecoveryReport"],
            "mqlake.store.results": [
                "AppendMessageResult",
                "AppendMessageStatus",
                "BoundaryType",
                "GetMessageResult",
                "GetMessageStatus",
                "PutMessageFuture",
                "PutMessageResult",
                "PutMessageStatus",
                "QueryMessageResult",
            ],
        },
    )

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
