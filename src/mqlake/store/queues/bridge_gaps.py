"""Gaps of a consume queue, whose messages the log has lost, in a form that RocketMQ reads across.

unit   [ 4 ][ 5 ][blank][blank][ 8 ][ 9 ]   as dispatch leaves it
       [ 4 ][ 5 ][  8  ][  8  ][ 8 ][ 9 ]   bridged
"""

from __future__ import annotations

import numpy as np

from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.unit_queue import UnitQueue


def bridge_gaps(queue: UnitQueue) -> None:
    """Lets the units of messages that are lost point to the message after them.

    A pre-blank there would be what dispatch leaves, but RocketMQ searches units by physical offset, which has
    to ascend, and skips good messages after a unit whose record it cannot find. So a consumer that reads across
    gets the next message more than once. A batch consume queue has no pre-blanks.
    """
    if not isinstance(queue, ConsumeQueue):
        return
    assert queue.first_gap is not None
    size, files = queue.unit_size, queue.files
    start = max(queue.first_gap, queue.min_offset_in_queue)
    following = np.empty(0, queue.dtype)
    for file in reversed(files.files):
        first = max(start * size, file.file_from_offset)
        units = np.frombuffer(files.read(first, files.file_size), queue.dtype).copy()
        if not len(units):
            continue
        blank = units["size"] == PRE_BLANK_SIZE
        source = np.where(blank, len(units), np.arange(len(units)))
        source = np.minimum.accumulate(source[::-1])[::-1]
        bridged = blank & ((source < len(units)) | (len(following) > 0))
        if bridged.any():
            units[bridged] = np.concatenate((units, following))[source[bridged]]
            files.pool.pwrite(file, units.view(np.uint8).data, first - file.file_from_offset)
        following = units[:1]
    queue.first_gap = None
