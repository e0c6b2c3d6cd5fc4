"""Grouping by queue against a loop over the records."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mqlake.store.queues.by_queue import order_by_queue, rows_by_queue

records = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 70_000, -1]), st.booleans()), max_size=40
)


@given(records)
def test_each_queues_rows_in_the_order_of_the_log(found: list[tuple[int, int, bool]]) -> None:
    topic_id = np.array([topic for topic, _, _ in found], np.int32)
    queue_id = np.array([queue for _, queue, _ in found], np.int32)
    for rows in (None, np.array([n for n, (_, _, chosen) in enumerate(found) if chosen], np.int64)):
        expected: dict[tuple[int, int], list[int]] = {}
        for row in range(len(found)) if rows is None else rows.tolist():
            expected.setdefault(found[row][:2], []).append(row)
        groups = [group.tolist() for group in rows_by_queue(topic_id, queue_id, rows)]
        assert {found[group[0]][:2]: group for group in groups} == expected
        assert len(groups) == len(expected)


def test_a_single_queue_is_not_copied() -> None:
    ids = np.zeros(5, np.int32)
    rows, first = order_by_queue(ids, ids)
    assert rows == slice(None)
    assert first.tolist() == [0]
