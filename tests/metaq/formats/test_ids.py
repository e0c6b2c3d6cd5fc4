from __future__ import annotations

import itertools

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.formats.ids import EPOCH_MS, IdWorker


def test_the_parts_of_an_id() -> None:
    assert IdWorker(5, lambda: EPOCH_MS + 7).next_id() == 7 << 22 | 5 << 12
    assert IdWorker(0).next_id() > 0


def test_ids_grow_when_the_clock_stands_still_or_goes_back() -> None:
    times = itertools.chain([EPOCH_MS + 10] * 9000, [EPOCH_MS + 2] * 9000, [EPOCH_MS + 50] * 5)
    worker = IdWorker(1023, lambda: next(times))
    ids = [worker.next_id() for _ in range(18005)]
    assert all(a < b for a, b in itertools.pairwise(ids))
    assert {i >> 12 & 1023 for i in ids} == {1023}


def test_brokers_of_one_moment_give_different_ids() -> None:
    workers = [IdWorker(worker_id, lambda: EPOCH_MS + 1) for worker_id in (0, 20, 21, 1023)]
    ids = [worker.next_id() for _ in range(5000) for worker in workers]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("worker_id", [-1, 1024])
def test_brokers_without_a_place_in_the_id_are_refused(worker_id: int) -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        IdWorker(worker_id)
