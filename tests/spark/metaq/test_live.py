"""A task that reads from a live MetaQ broker, when what it was to read is not there as planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import ConfigError, OffsetOutOfRangeError
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.client.fetch import PartitionClosedError
from mqlake.metaq.config import MetaConfig, SystemConfig, ZKConfig
from mqlake.metaq.config.values import parse_delete_policy
from mqlake.spark.metaq.live import LiveRange
from mqlake.spark.metaq.options import MetaqOptions
from mqlake.spark.metaq.partition import read_pieces
from tests.metaq.brokers import HOST, BrokerThread
from tests.metaq.records import record


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MetaMorphosisBroker]:
    """Ten records of 50 bytes, six a segment."""
    system = SystemConfig(
        data_path=str(tmp_path), server_port=0, host_name=HOST, unflush_threshold=0, max_segment_size=300
    )
    with BrokerThread(MetaConfig(system, ZKConfig(zk_enable=False), {"t": {}})) as running:
        store = running.manager.get_or_create("t", 0)
        for i in range(10):
            store.append(record(b"%030d" % i, i + 1))
        store.flush()
        yield running


def offsets(broker: MetaMorphosisBroker, start: int, end: int, **given: str) -> list[int]:
    options = MetaqOptions.parse({"zookeeper": "not asked:1", **given})
    wanted = LiveRange(broker.broker_string, "t", 0, 0, start, end, options.fail_on_data_loss)
    batches = read_pieces((wanted,), options, ["offset"])
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def test_retention_passes_a_reader(broker: MetaMorphosisBroker) -> None:
    assert offsets(broker, 0, 500) == list(range(0, 500, 50))
    store = broker.manager.get("t", 0)
    assert store is not None
    store.delete_policy = parse_delete_policy("delete,0s")
    store.run_delete_policy(at_ms=1 << 60)
    with pytest.raises(OffsetOutOfRangeError, match="offset 0 is gone, the broker continues at 300"):
        offsets(broker, 0, 500)
    assert offsets(broker, 0, 500, failOnDataLoss="false") == list(range(300, 500, 50))


def test_a_partition_that_ends_before(broker: MetaMorphosisBroker) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="offset 500 is gone, the partition ends before it"):
        offsets(broker, 400, 1000)
    assert offsets(broker, 400, 1000, failOnDataLoss="false") == [400, 450]


def test_a_closed_partition(broker: MetaMorphosisBroker) -> None:
    broker.config.close_partitions("t", 0, 0)
    with pytest.raises(PartitionClosedError, match="has been closed"):
        offsets(broker, 0, 500)


@pytest.mark.parametrize(("option", "word"), [("startingOffsets", "begins"), ("endingOffsets", "ends")])
def test_an_offset_inside_a_message(broker: MetaMorphosisBroker, option: str, word: str) -> None:
    given = {option: json.dumps({"t": {"0": 157}})}
    with pytest.raises(ConfigError, match=f"no record {word} at offset 157, which '{option}' names"):
        offsets(broker, *((157, 500) if word == "begins" else (0, 157)), **given)
