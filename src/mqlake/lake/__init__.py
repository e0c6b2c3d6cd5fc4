"""The log as Arrow rows, without Spark: what to read of it, how, and the rows made of it.

import duckdb, mqlake.lake
log = mqlake.lake.scan("/data/store")
duckdb.sql("select topic, count(*) from log group by 1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqlake.lake.bodies.body_format import BodyFormat, decode
    from mqlake.lake.dataset import LogDataset, scan
    from mqlake.lake.tables.topic import TopicTable, topic_table

__all__ = ["BodyFormat", "LogDataset", "TopicTable", "decode", "scan", "topic_table"]


def __getattr__(name: str) -> Any:
    """Imports pyarrow only when it is needed. ImportError, which says what to install, where it is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pyarrow.dataset  # noqa: F401
    except ImportError as error:
        raise ImportError("mqlake.lake needs pyarrow: pip install 'mqlake[arrow]'") from error
    from mqlake.lake import dataset
    from mqlake.lake.bodies import body_format
    from mqlake.lake.tables import topic

    if name in ("TopicTable", "topic_table"):
        return getattr(topic, name)

    return getattr(body_format if name in ("BodyFormat", "decode") else dataset, name)
