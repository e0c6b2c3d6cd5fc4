"""Groups the records of a scan by queue: one stable sort, then a step for each queue instead of one for each record.

scan     A/0  B/1  A/0  A/1  B/1        rows    0 2 | 3 | 1 4        each queue's in the order of the log
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mqlake.formats.columns import Int32s, Int64s


def order_by_queue(
    topic_id: Int32s, queue_id: Int32s, rows: Int64s | None = None
) -> tuple[Int64s | slice, Int64s]:
    """The rows (None: all) sorted by queue, and where in them each queue begins.

    All rows of a single queue come as a slice, which indexes without a copy.
    """
    if rows is not None:
        topic_id, queue_id = topic_id[rows], queue_id[rows]
    keys = topic_id.astype(np.int64) << 32 | queue_id.astype(np.uint32)
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not (keys != keys[0]).any():
        return slice(None) if rows is None else rows, np.zeros(1, np.int64)
    order = _stable_order(keys)
    keys = keys[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return order if rows is None else rows[order], first


def rows_by_queue(topic_id: Int32s, queue_id: Int32s, rows: Int64s | None = None) -> Iterator[Int64s]:
    """The rows (None: all) of one queue after the other, in the order of the log."""
    order, first = order_by_queue(topic_id, queue_id, rows)
    if len(first):
        yield from np.split(np.arange(len(topic_id)) if isinstance(order, slice) else order, first[1:])


def _stable_order(keys: Int64s) -> npt.NDArray[np.intp]:
    """Stable argsort of (topic id << 32 | queue id). Keys that fit 16 bits are sorted by counting, not comparing."""
    topic_ids, queue_ids = keys >> 32, keys & 0xFFFFFFFF
    span = int(queue_ids.max()) + 1
    if (int(topic_ids.max()) + 1) * span <= 1 << 16:
        return np.argsort((topic_ids * span + queue_ids).astype(np.uint16), kind="stable")
    return np.argsort(keys, kind="stable")
