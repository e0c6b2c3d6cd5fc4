from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.consume_queue import CQ_DTYPE
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues.bridge_gaps import bridge_gaps
from mqlake.store.queues.consume_queue import ConsumeQueue


@settings(max_examples=60, deadline=None)
@given(present=st.sets(st.integers(1, 60), min_size=1))
def test_each_unit_of_a_gap_leads_to_the_message_after_it(
    tmp_path_factory: pytest.TempPathFactory, present: set[int]
) -> None:
    """Unit 0 and those of `present` are there, in files of seven units."""
    there = [0, *sorted(present)]
    queue = queue_with(tmp_path_factory.mktemp("queue"), there)
    had_gap = queue.first_gap is not None
    if had_gap:
        bridge_gaps(queue)
    assert queue.first_gap is None
    assert had_gap == (there != list(range(len(there))))
    for number in range(there[-1] + 1):
        unit = queue.get(number)
        if unit is None:  # a file that would hold no message at all is not made
            assert not {n // 7 for n in there} & {number // 7}
            continue
        assert unit.physical_offset == 100 * next(n for n in there if n >= number)
    assert queue.max_offset_in_queue == there[-1] + 1


def queue_with(directory: Path, numbers: list[int]) -> ConsumeQueue:
    queue = ConsumeQueue("T", 0, str(directory), 20 * 7, FilePool(8))
    for number in numbers:
        unit = np.array([(100 * number, 50, 0)], CQ_DTYPE)
        queue.put_units(number, unit, np.array([1], np.int64))
    return queue
