from __future__ import annotations

from mqlake.broker.transaction.metrics import TransactionMetrics


def test_open_half_messages_are_counted_by_topic_and_kept_in_rocketmqs_shape(tmp_path):
    metrics = TransactionMetrics(str(tmp_path / "transactionMetrics"), lambda: 1_700_000_000_000)
    assert metrics.add_and_get("T", 1) == 1 and metrics.add_and_get("T", 1) == 2
    assert metrics.add_and_get("T", -1) == 1 and metrics.get_transaction_count("U") == 0
    assert metrics.encode()["transactionCount"] == {"T": {"count": 1, "timeStamp": 1_700_000_000_000}}
    metrics.persist()

    again = TransactionMetrics(metrics.path, lambda: 1)
    again.load()
    assert again.get_transaction_count("T") == 1
    assert again.data_version == metrics.data_version
