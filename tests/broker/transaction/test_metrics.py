from __future__ import annotations

from mqlake.broker.transaction.metrics import TransactionMetrics


def test_open_half_messages_are_counted_by_topic_and_kept_in_rocketmqs_shape(tmp_path):
    metrics = TransactionMetrics(str(tmp_path / "transactionMetrics"), lambda: 1_700_000_000_000)
    assert metrics.add_and_get("T", 1) == 1 and metrics.add_and_get("T", 1) == 2
    assert metrics.add_and_get("T", -1) == 1
    assert metrics.encode()["transactionCount"] == {"T": {"count": 1, "timeStamp": 1_700_000_000_000}}
    metrics.persist()

    again = TransactionMetrics(metrics.path, lambda: 1)
    again.load()
    assert again.transaction_counts["T"].count == 1
    assert again.data_version == metrics.data_version


def test_what_has_ended_is_counted_by_how_and_how_old_it_was(tmp_path):
    now = 1_700_000_000_000
    metrics = TransactionMetrics(str(tmp_path / "transactionMetrics"), lambda: now)
    metrics.add_and_get("T", 4)
    for age_s in (0, 5, 90_000):
        metrics.finished("T", now - age_s * 1000, committed=True)
    metrics.finished("T", now, committed=False)
    assert metrics.transaction_counts["T"].count == 0
    finished = metrics.finished_by_topic["T"]
    assert (finished.committed, finished.rolled_back) == (3, 1)
    assert (finished.ages.counts, finished.ages.sum) == ([2, 0, 0, 0, 0, 0, 1], 90_005)
