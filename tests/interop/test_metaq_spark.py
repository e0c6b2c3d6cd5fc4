"""The Spark source `metaq` reads live brokers, mqlake's and the original: the task's side, without a JVM of Spark's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqlake.errors import ConfigError
from mqlake.metaq.config import MetaConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.spark.metaq.live import live_ranges
from mqlake.spark.metaq.options import COLUMNS, MetaqOptions
from mqlake.spark.metaq.source import MetaqReader
from mqlake.spark.metaq.stream import MetaqStreamReader
from tests.interop.metaq_peer import MetaqPeer, chroot, write_ini
from tests.metaq.brokers import BrokerThread
from tests.metaq.records import fill
from tests.ports import free_port
from tests.spark.metaq.test_source import expected

pytestmark = pytest.mark.java


@pytest.mark.parametrize("side", ["mqlake", "java"])
def test_what_a_broker_gives_is_what_its_directory_holds(
    side: str, metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    zk = chroot(metaq_zookeeper, f"spark-{side}")
    data = tmp_path / "data"
    data.mkdir()
    for partition in (0, 2):
        fill(data, "orders", partition, 300)
    topics = {"orders": {"numPartitions": "3"}, "other": {}}
    port = free_port()
    ini = write_ini(tmp_path / "server.ini", broker_id=3, port=port, data=data, zk=zk, topics=topics)
    # beside the partitions the journal's directory keeps the original from loading them
    (tmp_path / "log").mkdir()
    ini.write_text(ini.read_text().replace(f"dataLogPath={data}", f"dataLogPath={tmp_path / 'log'}"))
    running = metaq_peer.broker(ini) if side == "java" else BrokerThread(MetaConfig.load(str(ini)))
    with running:
        options = MetaqOptions.parse({"zookeeper": zk, "columns": ",".join(COLUMNS)})
        reader = MetaqReader(options, options.columns)
        partitions = reader.partitions()
        limited = MetaqStreamReader(options, options.columns)
        begun = {"orders": {}}
        middle = limited.latestOffset(begun, ReadMaxRows(100))
        end = limited.latestOffset(middle, ReadAllAvailable())
        streamed = [
            row
            for span in ((begun, middle), (middle, end))
            for part in limited.partitions(*span)
            for each in limited.read(part)
            for row in each.to_pylist()
        ]
        found = [pa.Table.from_batches(reader.read(each)).to_pylist() for each in partitions]
        assert live_ranges(zk, "/meta", frozenset({"other"})) == []
        with pytest.raises(ConfigError, match="there is no topic 'order'; did you mean 'orders'"):
            live_ranges(zk, "/meta", frozenset({"other", "order"}))
    assert list(end["orders"]) == ["3:0", "3:2"]
    assert sorted(map(repr, streamed)) == sorted(repr(row) for part in found for row in part)
    rows = [row for part in found for row in part]
    assert {row.pop("path") for row in rows} == {f"meta://127.0.0.1:{port}"}
    assert all(row.pop("checksum") >= 0 for row in rows)
    assert rows == expected(data)
