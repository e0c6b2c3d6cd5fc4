"""The log as Arrow rows, without Spark: what to read of it, how, and the rows made of it.

import duckdb, mqlake.lake
log = mqlake.lake.scan("/data/store")
duckdb.sql("select topic, count(*) from log group by 1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.base.lazy_exports import at_first_use


def _require_pyarrow() -> None:
    """ImportError, which says what to install, where it is missing."""
    try:
        import pyarrow.dataset  # noqa: F401
    except ImportError as error:
        raise ImportError("mqlake.lake needs pyarrow: pip install 'mqlake[arrow]'") from error


if TYPE_CHECKING:
    from mqlake.lake.bodies.body_format import BodyFormat, decode
    from mqlake.lake.dataset import LogDataset, scan
    from mqlake.lake.heads_dataset import scan_heads
    from mqlake.lake.tables.topic import TopicTable, topic_table
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "mqlake.lake.bodies.body_format": ["BodyFormat", "decode"],
            "mqlake.lake.dataset": ["LogDataset", "scan"],
            "mqlake.lake.heads_dataset": ["scan_heads"],
            "mqlake.lake.tables.topic": ["TopicTable", "topic_table"],
        },
        before=_require_pyarrow,
    )

__all__ = ["BodyFormat", "LogDataset", "TopicTable", "decode", "scan", "scan_heads", "topic_table"]
