"""Row for row what `mqlake store dump` shows, of every kind of record, in stores of Java and of mqlake, in Spark."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

import mqlake.spark
from mqlake.cli.main import cli
from mqlake.formats.compression import COMPRESSION_NAMES
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.message import MessageSysFlag as Flag
from mqlake.store import open_store
from tests.golden import CASES, unpack
from tests.spark.stores import SETTINGS, extremes, row_of, seen, time_of, write_inner_batches

EPOCH, MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
KINDS: dict[str, Any] = {
    "plain": lambda row: row["sysFlag"] == 0,
    "delayed": lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX",
    "prepared": lambda row: row["sysFlag"] & 0xC == Flag.TRANSACTION_PREPARED_TYPE,
    "committed": lambda row: row["sysFlag"] & 0xC == Flag.TRANSACTION_COMMIT_TYPE,
    "rolled back": lambda row: row["sysFlag"] & 0xC == Flag.TRANSACTION_ROLLBACK_TYPE,
    "inner batch": lambda row: row["sysFlag"] & Flag.INNER_BATCH_FLAG,
    "IPv6 born": lambda row: row["bornHost"].startswith("["),
    "IPv6 store": lambda row: row["storeHost"].startswith("["),
    "long topic": lambda row: len(row["topic"].encode()) > 127,
    "checksum": lambda row: "__CRC32#" in row["properties"],
    **{
        name: lambda row, bits=bits: row["sysFlag"] & 0x701 == Flag.COMPRESSED_FLAG | bits
        for name, bits in COMPRESSION_NAMES.items()
    },
}


@pytest.fixture(scope="module")
def stores(every_kind: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("stores")
    inner = directory / "inner-batches"
    write_inner_batches(inner)
    return [every_kind, inner, *(unpack(case, directory / case).root for case in CASES)]


def by_store(frame: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """In the order of each log."""
    found = defaultdict(list)
    for row in frame.toArrow().to_pylist(maps_as_pydicts="strict"):
        found[row["path"]].append(row)
    return {
        path: sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))
        for path, rows in found.items()
    }


def as_dumped(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("brokerName", "path")}
    for name in ("bornTimestamp", "storeTimestamp"):
        shown[name] = None if row[name] is None else (row[name] - EPOCH) // MS
    return {**shown, "body": base64.b64encode(row["body"]).decode()}


@pytest.mark.spark
def test_rows_are_what_the_dump_shows(spark: SparkSession, stores: list[Path]) -> None:
    found = by_store(mqlake.spark.read_log(spark, *map(str, stores), unpack=False, splitSize="50k"))
    kinds = set()
    for store in stores:
        done = CliRunner().invoke(cli, ["store", "dump", str(store), "--json"])
        assert done.exit_code == 0, done.output
        rows = [as_dumped(row) for row in found[str(store)]]
        for row, line in zip(rows, done.stdout.splitlines(), strict=True):
            shown = json.loads(line)
            if row["bornTimestamp"] is None:  # beyond what a timestamp can hold
                shown["bornTimestamp"] = None
            assert row == shown
        kinds |= {(store in stores[:2], name) for name, holds in KINDS.items() if any(map(holds, rows))}
    of_mqlake = set(KINDS) - {"checksum"}
    assert kinds >= {(False, name) for name in KINDS} | {(True, name) for name in of_mqlake}


@pytest.mark.spark
def test_unpacked_they_are_what_a_consumer_sees(spark: SparkSession, stores: list[Path]) -> None:
    frame = mqlake.spark.read_log(spark, *map(str, stores), mode="dropMalformed", splitSize="50k")
    found = by_store(frame.select(*COLUMNS))
    for store in stores:
        expected = [row_of(message, store) for message in seen(store)]
        for row, message in zip(found[str(store)], expected, strict=True):
            assert row == message


@pytest.mark.spark
def test_what_clients_set_at_its_limits(spark: SparkSession, tmp_path: Path) -> None:
    """A year beyond 9999 ended whatever collected the rows."""
    with open_store(tmp_path, {**SETTINGS, "mappedFileSizeCommitLog": 1 << 20}) as store:
        for message in extremes("Orders"):
            assert store.put_message(message).is_ok
    rows = by_store(mqlake.spark.read_log(spark, str(tmp_path)))[str(tmp_path)]
    found = {row["physicalOffset"]: row["bornTimestamp"] for row in rows}
    wanted = {message.physical_offset: time_of(message.born_timestamp) for message in seen(tmp_path)}
    assert found == wanted and None in wanted.values()
