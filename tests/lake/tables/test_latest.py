"""Tables of the latest row of each key, against a dictionary: upserts, deletions, killed runs, unions, and verify."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import ConfigError, TableError
from mqlake.lake.tables import latest as latest_module
from mqlake.lake.tables.config import LakeFile, Topic
from mqlake.lake.tables.latest import newest
from mqlake.lake.tables.topic import RunOptions, TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.lake.tables.conftest import Runs
from tests.lake.tables.lakes import FORMATS, ORDERS, lake_of, rows_in, topic_of
from tests.spark.stores import SETTINGS

Rows = dict[str, bytes]


def change(root: Path, latest: Rows, chosen: random.Random, count: int) -> None:
    """Appends messages of few keys, some without a body; `latest` follows."""
    with open_store(root, {**SETTINGS}) as store:
        for n in range(count):
            key = f"k{chosen.randrange(30)}"
            body = b"" if chosen.random() < 0.2 else b"%s %d " % (key.encode(), n) * chosen.randrange(1, 9)
            keys = "" if n % 11 == 10 else key
            queue_id = int(key[1:]) % 3
            assert store.put_message(MessageExtBrokerInner(ORDERS, body, keys=keys, queue_id=queue_id)).is_ok
            if keys and body:
                latest[key] = body
            elif keys:
                latest.pop(key, None)


def opened(root: Path, format: str, **options: Any) -> TopicTable:
    given = RunOptions(options.get("step_bytes", 1 << 30), options.get("file_bytes", 1 << 20))
    return TopicTable.open(lake_of(root, format), topic_of(root / "store", latest=True), given)


def found_in(table: TopicTable) -> Rows:
    return {row["keys"]: row["body"] for row in rows_in(table.table)}


@pytest.mark.parametrize("format", FORMATS)
def test_the_table_follows_its_keys(tmp_path: Path, format: str) -> None:
    latest: Rows = {}
    chosen = random.Random(7)
    table: TopicTable | None = None
    for number in range(4):
        change(tmp_path / "store", latest, chosen, 80)
        table = opened(tmp_path, format, step_bytes=9000, file_bytes=2000)
        everything = duckdb.from_arrow(table.union())
        asked = everything.filter("queueId = 1").project("keys, body").fetchall()
        assert dict(asked) == {key: body for key, body in latest.items() if int(key[1:]) % 3 == 1}
        made = table.append_new()
        assert made.rows == 80 and made.unkeyed == 7 and made.commits >= 1
        assert found_in(table) == latest and len(rows_in(table.table)) == len(latest), number
        assert table.verify().findings == []
    assert table is not None and table.append_new().rows == 0
    assert dict(duckdb.from_arrow(table.union().to_table(["keys", "body"])).fetchall()) == latest
    table.table.compact(1 << 20)
    assert found_in(table) == latest and table.verify().findings == []
    kept = found_in(table)
    version = next(each.version for each in table.table.versions()[1:] if each.state is not None)
    table.rewind(table.rewind_plan(version))
    table.append_new()
    assert found_in(table) == kept and table.verify().findings == []


@pytest.mark.parametrize("format", FORMATS)
def test_killed_runs_leave_whole_upserts(tmp_path: Path, format: str, runs: Runs) -> None:
    latest: Rows = {}
    chosen = random.Random(8)
    change(tmp_path / "store", latest, chosen, 60)
    opened(tmp_path, format).append_new()
    topic = topic_of(tmp_path / "store", latest=True)
    LakeFile(lake_of(tmp_path, format), {ORDERS: topic}).save(str(tmp_path / "lake.toml"))
    for point, when in (("a file is closed", "after"), ("committed", "before"), ("committed", "after")):
        change(tmp_path / "store", latest, chosen, 60)
        case = {"file": str(tmp_path / "lake.toml"), "point": point, "nth": 1, "when": when}
        assert [each["status"] for each in runs(case)] == [-9]
        two = [{"file": str(tmp_path / "lake.toml")}] * 2
        assert [each["status"] for each in runs(*two)] == [0, 0]
        table = opened(tmp_path, format)
        assert found_in(table) == latest
        assert table.verify().findings == []


def test_verify_finds_what_others_did(tmp_path: Path) -> None:
    import deltalake

    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(9), 80)
    table = opened(tmp_path, "delta")
    table.append_new()
    native = deltalake.DeltaTable(table.table.location)
    some, other = sorted(latest)[:2]
    twice = pa.table(native.to_pyarrow_table()).filter(pc.field("keys") == other)
    native.delete(f"keys = '{some}'")
    deltalake.write_deltalake(native, twice, mode="append")
    report = table.verify()
    findings = "\n".join(report.findings)
    assert sum(each.rows for each in report.queues) == report.rows > 0 and not report.is_sound
    assert f"key {some!r}: missing" in findings and "is there 2 times" in findings
    with pytest.raises(TableError, match="latest rows only"):
        table.at(datetime.now(UTC))


def test_verify_finds_a_row_that_is_not_the_latest(tmp_path: Path) -> None:
    """And one that lies beyond what the table says it has."""
    import deltalake

    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(9), 80)
    table = opened(tmp_path, "delta")
    table.append_new()
    key = min(latest)
    native = deltalake.DeltaTable(table.table.location)
    native.update({"queueOffset": "queueOffset + 1000", "physicalOffset": "1"}, predicate=f"keys = '{key}'")
    queue, findings = f"broker-a:{int(key[1:]) % 3}", table.verify().findings
    assert any(
        line.startswith(f"queue {queue}: the rows end at 10") and "its position says" in line
        for line in findings
    )
    [line] = [line for line in findings if line.startswith(f"key {key!r}: the table has {queue} offset 10")]
    assert f", the latest is {queue} offset " in line


def test_verify_finds_another_message_at_the_same_queue_offset(tmp_path: Path) -> None:
    """As a topic has it that was deleted and made again."""
    import deltalake

    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(9), 80)
    table = opened(tmp_path, "delta")
    table.append_new()
    key = min(latest)
    native = deltalake.DeltaTable(table.table.location)
    native.update({"physicalOffset": "physicalOffset + 1"}, predicate=f"keys = '{key}'")
    [line] = table.verify().findings
    assert line.startswith(f"key {key!r}: broker-a:{int(key[1:]) % 3} offset ") and "another message" in line


def test_the_commands(tmp_path: Path) -> None:
    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(3), 60)

    def invoke(*arguments: object) -> Any:
        done = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done

    home = tmp_path / "lake"
    invoke("add", f"broker-a={tmp_path / 'store'}", "--warehouse", home, "--topic", ORDERS, "--latest")
    assert "mqlake.Orders_latest: 5 messages without a key left out" in invoke("run", home).stderr
    asked = invoke("query", "select count(*) as n from Orders_latest", home, "--json")
    assert json.loads(asked.stdout) == [{"n": len(latest)}]
    [found] = json.loads(invoke("verify", home, "--json").stdout)
    assert found["sound"] and found["rows"] == len(latest)


def test_a_table_is_of_one_kind(tmp_path: Path) -> None:
    change(tmp_path / "store", {}, random.Random(1), 5)
    lake = lake_of(tmp_path, "delta")
    TopicTable.open(lake, topic_of(tmp_path / "store"))
    with pytest.raises(TableError, match="has all messages: give the latest row of each key another one"):
        TopicTable.open(lake, topic_of(tmp_path / "store", latest=True, table=ORDERS))
    latest = TopicTable.open(lake, topic_of(tmp_path / "store", latest=True))
    assert latest.table.name == "mqlake.Orders_latest"
    known = TopicTable.open(lake, topic_of(tmp_path / "store", table="Orders_latest"))
    assert known.topic.latest, "the table says what it is"
    with pytest.raises(ConfigError, match="needs the column 'keys'"):
        Topic(ORDERS, {"a": "/s"}, columns=("topic", "body"), latest=True)


def test_the_newest_row_of_a_key() -> None:
    """Of one broker by its offsets, whatever its clock said; between brokers by the store time."""
    names = ("keys", "brokerName", "physicalOffset", "queueOffset", "storeTimestamp")
    rows = [
        ("x", "a", 1, 1, 50),
        ("x", "a", 2, 2, 40),
        ("y", "a", 3, 3, 60),
        ("y", "b", 1, 1, 70),
        ("z", "b", 2, 2, 1),
    ]
    found = newest(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))
    assert sorted(zip(*(found[name].to_pylist() for name in names), strict=True)) == [
        rows[1],
        rows[3],
        rows[4],
    ]
    assert newest(found.slice(0, 0)).num_rows == 0
    for stored, of in ((20, "a"), (5, None)):  # a row that does not say its broker is of none of the others'
        some = [("x", "a", 1, 1, stored), ("x", None, 9, 1, 10)]
        found = newest(pa.table(dict(zip(names, map(list, zip(*some, strict=True)), strict=True))))
        assert found["brokerName"].to_pylist() == [of]


def test_verify_knows_what_came_after_the_table(tmp_path: Path) -> None:
    """Also to a queue that the table has nothing of; and it tells how far it is."""
    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(5), 40)
    table = opened(tmp_path, "delta")
    table.append_new()
    with open_store(tmp_path / "store", {**SETTINGS}) as store:
        assert store.put_message(MessageExtBrokerInner(ORDERS, b"new", keys="new", queue_id=7)).is_ok
    told: list[tuple[int, int]] = []
    report = table.verify(report=lambda done, total: told.append((done, total)))
    assert report.findings == [] and report.is_sound
    assert told[-1] == (len(latest), len(latest))
    table.append_new()
    assert table.verify().rows == len(latest) + 1


def test_changes_that_others_replaced_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_module, "REDUCE_BYTES", 4000)
    writer, held = latest_module.LatestWriter(), 0
    for n in range(200):
        writer.add(
            pa.record_batch(
                {
                    "keys": ["a", "b", "", None],
                    "brokerName": ["x"] * 4,
                    "physicalOffset": [n] * 4,
                    "queueOffset": [n] * 4,
                    "storeTimestamp": [n] * 4,
                    latest_module.DELETED: [n == 199] * 4,
                }
            )
        )
        held = max(held, sum(each.nbytes for each in writer._batches))
    assert held <= 4000
    changes, written = writer.changes(), writer.close()
    assert changes is not None and written.changes == changes and written.unkeyed == 400
    assert changes.to_pydict()["queueOffset"] == [199, 199] and changes[
        latest_module.DELETED
    ].to_pylist() == [
        True,
        True,
    ]
    assert latest_module.LatestWriter().changes() is None


@pytest.mark.parametrize("format", FORMATS)
def test_an_upsert_that_another_one_came_before_leaves_no_file(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest: Rows = {}
    change(tmp_path / "store", latest, random.Random(4), 40)
    table, other = opened(tmp_path, format), opened(tmp_path, format)
    commit = table.table.commit

    def too_late(*given: Any) -> None:
        monkeypatch.setattr(table.table, "commit", commit)
        other.append_new()
        commit(*given)

    monkeypatch.setattr(table.table, "commit", too_late)
    table.append_new()
    paths = table.table.paths(table.table.head().version)
    assert paths is not None and found_in(table) == latest
    there = {str(path) for path in (tmp_path / "lake").rglob("*.parquet")}
    assert there == {path.removeprefix("file://") for path in paths}
