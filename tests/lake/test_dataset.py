"""A log as an Arrow dataset: the rows of the oracle, asked for by tools that nobody here wrote."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import mqlake.lake
from mqlake.errors import ConfigError, MqlakeError, NotAStoreError, StoreCorruptError, UnknownKeyError
from mqlake.lake import dataset as module
from mqlake.lake.arrow.expressions import conditions_of
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.dataset import LogDataset
from mqlake.lake.log.storage import Storage
from mqlake.lake.plan import plan_read
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.spark.stores import SETTINGS, body_position, copy_store, decoded, flip_bit, log_files, row_of, seen

QUESTIONS = 60


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["physicalOffset"], row["queueOffset"]


def test_all_rows(every_kind: Path) -> None:
    log = mqlake.lake.scan(every_kind)
    assert isinstance(log, pyarrow.dataset.Dataset) and log.schema.names == list(COLUMNS)
    expected = sorted((row_of(message, every_kind) for message in seen(every_kind)), key=place)
    assert rows_of(log.to_table()) == expected
    assert log.count_rows() == len(expected) == sum(batch.num_rows for batch in log.to_reader())
    raw = mqlake.lake.scan(every_kind, unpack=False).to_table()
    assert rows_of(raw) == sorted((row_of(m, every_kind) for m in decoded(every_kind)), key=place)


def test_columns_in_the_order_that_is_asked_for(every_kind: Path) -> None:
    log = mqlake.lake.scan(every_kind)
    assert log.to_table(columns=["size", "topic"]).schema.names == ["size", "topic"]
    named = log.to_table(columns={"bytes": pc.field("size") * 2, "t": pc.field("topic")})
    assert named.schema.names == ["bytes", "t"]
    assert sum(named["bytes"].to_pylist()) == 2 * sum(log.to_table()["size"].to_pylist())
    assert mqlake.lake.scan(every_kind, columns=["topic", "size"]).schema.names == ["topic", "size"]


def test_only_what_a_query_needs_is_read(every_kind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, asked = mqlake.lake.scan(every_kind), []
    read_task = module.read_task
    monkeypatch.setattr(module, "read_task", lambda *given: asked.append(given[-1]) or read_task(*given))
    log.to_table(columns=["size"], filter=pc.field("queueId") == 1)
    assert asked[-1] == ["queueId", "size"]
    log.count_rows()
    assert asked[-1] == ["topic"]
    duckdb.sql("select sum(size) from log where topic = 'Topic-1'").fetchall()
    assert asked[-1] == ["topic", "size"]


def expression(rows: list[dict[str, Any]], rng: random.Random, depth: int = 0) -> pc.Expression:
    kind = rng.random()
    if depth < 3 and kind < 0.45:
        left, right = expression(rows, rng, depth + 1), expression(rows, rng, depth + 1)
        return left & right if kind < 0.3 else left | right
    if depth < 3 and kind < 0.55:
        return ~expression(rows, rng, depth + 1)
    column = rng.choice(
        ["topic", "tags", "keys", "uniqKey", "queueId", "queueOffset", "size", "storeTimestamp"]
    )
    field, values = pc.field(column), [rng.choice(rows)[column] for _ in range(3)]
    if None in values or kind < 0.6:
        return field.is_null() if kind < 0.8 else field.is_valid()
    if kind < 0.75:
        return field.isin(values)
    compare = rng.choice(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
    found: pc.Expression = getattr(field, compare)(pc.scalar(values[0]))
    return found


def test_random_filters_change_nothing_but_what_is_read(every_kind: Path) -> None:
    log, rng = mqlake.lake.scan(every_kind), random.Random(3)
    whole = log.to_table()
    rows, told = whole.to_pylist(), 0
    for _ in range(QUESTIONS):
        wanted = expression(rows, rng)
        told += bool(conditions_of(wanted))
        assert rows_of(log.to_table(filter=wanted)) == rows_of(whole.filter(wanted)), str(wanted)
    assert told > QUESTIONS / 5


def test_duckdb(every_kind: Path) -> None:
    log = mqlake.lake.scan(every_kind)  # DuckDB finds it by its name
    assert log.schema is not None
    expected = seen(every_kind)
    counted = duckdb.sql("select topic, count(*), sum(size) from log group by 1").fetchall()
    by_topic = {m.topic: [n for n in expected if n.topic == m.topic] for m in expected}
    assert {topic: count for topic, count, _ in counted} == {t: len(found) for t, found in by_topic.items()}
    chosen = duckdb.sql(
        "select l.queueOffset from log l join log r using (physicalOffset, queueOffset) "
        "where l.topic in ('Topic-1', 'Topic-2') and l.queueId = 0 order by l.physicalOffset limit 5"
    ).fetchall()
    wanted = [m for m in expected if m.topic in ("Topic-1", "Topic-2") and m.queue_id == 0]
    wanted.sort(key=lambda m: (m.physical_offset, m.queue_offset))
    assert [offset for (offset,) in chosen] == [m.queue_offset for m in wanted[:5]]


def test_duckdb_tells_what_to_skip(every_kind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, told = mqlake.lake.scan(every_kind), []
    scanner = LogDataset.scanner

    def listening(self: LogDataset, columns: Any = None, filter: Any = None, **more: Any) -> Any:
        told.append({(each.column, each.values) for each in conditions_of(filter)})
        return scanner(self, columns, filter, **more)

    monkeypatch.setattr(LogDataset, "scanner", listening)
    duckdb.sql("select count(*) from log where topic = 'Topic-1' and queueId = 1").fetchall()
    assert told[-1] == {("topic", ("Topic-1",)), ("queueId", (1,))}
    pl.scan_pyarrow_dataset(log).filter((pl.col("topic") == "Topic-1") & (pl.col("size") > 7)).collect()
    assert {("topic", ("Topic-1",)), ("size", (7,))} == told[-1]


def test_polars_pandas_and_the_c_stream(every_kind: Path) -> None:
    log = mqlake.lake.scan(every_kind, columns=["topic", "queueId", "queueOffset", "size", "body"])
    total = len(seen(every_kind))
    lazy = pl.scan_pyarrow_dataset(log).filter(pl.col("queueId") == 0).select("topic", "size").collect()
    assert lazy.height == sum(m.queue_id == 0 for m in seen(every_kind)) and lazy.columns == ["topic", "size"]
    assert pl.DataFrame(log).height == pa.table(log).num_rows == len(log.to_pandas()) == total


def test_starts_and_ends(every_kind: Path) -> None:
    rows = rows_of(mqlake.lake.scan(every_kind, unpack=False).to_table())
    half = rows[len(rows) // 2]["physicalOffset"]
    found = rows_of(mqlake.lake.scan(every_kind, start=half, unpack=False).to_table())
    assert found == [row for row in rows if row["physicalOffset"] >= half]
    time = rows[len(rows) // 2]["storeTimestamp"]
    found = rows_of(mqlake.lake.scan(every_kind, end=time, unpack=False).to_table())
    assert found == [row for row in rows if row["storeTimestamp"] < time]
    offsets = {"Topic-1": {"0": 3}}
    found = rows_of(mqlake.lake.scan(every_kind, "Topic-1", start=offsets).to_table())
    assert {row["queueOffset"] for row in found if row["queueId"] == 0} == set(
        range(3, 1 + max(row["queueOffset"] for row in found if row["queueId"] == 0))
    )
    assert mqlake.lake.scan(every_kind, start=datetime.now(UTC) + timedelta(days=9)).count_rows() == 0


def test_several_stores_and_remote_ones(every_kind: Path, tmp_path: Path, remote: Storage) -> None:
    copy = copy_store(every_kind, tmp_path / "store, with a comma")
    both = mqlake.lake.scan([every_kind, copy], columns=["path", "physicalOffset"]).to_table()
    assert set(both["path"].to_pylist()) == {str(every_kind), str(copy)}
    assert mqlake.lake.scan(remote.root).count_rows() * 2 == both.num_rows


def test_messages_that_come_later_are_in_the_next_scan(every_kind: Path, tmp_path: Path) -> None:
    copy = copy_store(every_kind, tmp_path / "store")
    log = mqlake.lake.scan(copy)
    before = log.count_rows()
    with open_store(copy, SETTINGS) as store:
        assert store.put_message(MessageExtBrokerInner("Topic-1", b"more")).is_ok
        assert log.count_rows() == before + 1
    assert pickle.loads(pickle.dumps(log)).count_rows() == before + 1


def test_damage_says_file_and_offset(every_kind: Path, tmp_path: Path) -> None:
    copy = copy_store(every_kind, tmp_path / "store")
    message = next(m for m in seen(copy) if m.body and m.topic == "Topic-1")
    flip_bit(log_files(copy)[0], message.physical_offset + body_position(message))
    log = mqlake.lake.scan(copy)
    said = f"{log_files(copy)[0]}: corrupt at byte {message.physical_offset}"
    with pytest.raises(StoreCorruptError, match=said):
        log.to_table()
    with pytest.raises(duckdb.Error, match=said):
        duckdb.sql("select count(*) from log").fetchall()
    found = mqlake.lake.scan(copy, mode="permissive").to_table()
    assert [text for text in found["_corrupt"].to_pylist() if text] and found.num_rows == len(
        seen(every_kind)
    )
    assert mqlake.lake.scan(copy, mode="dropMalformed").count_rows() == len(seen(every_kind)) - 1


def test_bad_input(every_kind: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownKeyError, match="topik"):
        mqlake.lake.scan(every_kind, columns=["topik"])
    with pytest.raises(ConfigError, match="there is no topic 'Topic-77'"):
        mqlake.lake.scan(every_kind, "Topic-77").to_table()
    with pytest.raises(NotAStoreError):
        mqlake.lake.scan(tmp_path / "nothing")
    log = mqlake.lake.scan(every_kind)
    for call in (log.get_fragments, lambda: log.filter(pc.scalar(True)), lambda: log.sort_by("topic")):
        with pytest.raises(NotImplementedError):
            call()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"start": "latest"}, "start is 'latest'; a batch cannot begin there"),
        ({"end": "earliest"}, "end is 'earliest'; a batch cannot end there"),
        ({"end": "tomorrow"}, "end is 'tomorrow'; it can be a datetime"),
        ({"start": -5}, "start is -5; it can be"),
        ({"start": {"Topic-1": {"0": -3}}}, "start is {'Topic-1': {'0': -3}}; offsets of queues are such as"),
        ({"start": {"Topic-1": 7}}, "start is {'Topic-1': 7}; offsets of queues are such as"),
        ({"start": 1 << 40}, "start is 1099511627776, but the log of"),
        ({"topics": [], "end": 0}, "topics names none"),
        ({"columns": ["topic", "topic"]}, "columns must name columns, each once"),
        ({"verify": "maybe"}, "verify is 'maybe'; it can be none, crc or full"),
        ({"mode": "lenient"}, "mode is 'lenient'; it can be failFast, permissive or dropMalformed"),
        ({"unpack": "false"}, "unpack is 'false'; it can be True or False"),
        ({"skipping": "sampled"}, "skipping is 'sampled'; it can be True, False or 'known'"),
    ],
)
def test_errors_name_the_argument(every_kind: Path, given: dict[str, Any], said: str) -> None:
    """They named options of Spark's, such as startingOffsets, which nobody had given."""
    with pytest.raises(MqlakeError, match=f"^{re.escape(said)}"):
        mqlake.lake.scan(every_kind, **given).count_rows()


def test_a_place_that_nothing_opens() -> None:
    with pytest.raises(ConfigError, match=r"^path is 's4://bucket/store': Protocol not known: s4"):
        mqlake.lake.scan("s4://bucket/store")


def test_offsets_of_numpy(every_kind: Path) -> None:
    """As they come out of a DataFrame."""
    offsets = mqlake.lake.scan(every_kind, unpack=False).to_table(columns=["physicalOffset"]).to_pandas()
    half = offsets["physicalOffset"].iloc[len(offsets) // 2]
    assert (
        mqlake.lake.scan(every_kind, start=half, unpack=False).count_rows()
        == len(offsets) - len(offsets) // 2
    )


def test_a_filter_on_offsets_reads_less(every_kind: Path) -> None:
    log = mqlake.lake.scan(every_kind)
    planned = plan_read(log._options, conditions_of(pc.field("physicalOffset") < 1000))
    assert planned.bytes_to_read < planned.bytes_of_log / 2


def test_without_spark(every_kind: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import mqlake.lake\n"
        f"print(mqlake.lake.scan({str(every_kind)!r}).count_rows())"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120)
    assert int(said) == len(seen(every_kind))


def test_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import mqlake.lake\n"
        "try: mqlake.lake.scan\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120)
    assert said == "mqlake.lake needs pyarrow: pip install 'mqlake[arrow]'\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bodies that are JSON objects, but for some."""
    root = tmp_path_factory.mktemp("shop") / "store"
    with open_store(root, SETTINGS) as store:
        for n in range(200):
            body = (
                b"not JSON"
                if n % 50 == 7
                else b'{"id":%d,"item":{"price":%d.5},"at":"2024-02-28T10:00:00Z"}' % (n, n)
            )
            assert store.put_message(MessageExtBrokerInner("Orders", body)).is_ok
    return root


def test_bodies_as_columns(shop: Path) -> None:
    log = mqlake.lake.scan(shop, "Orders", bodies={"json": "infer"})
    assert log.body_format is not None
    assert log.body_format.schema == "id long, item struct<price: double>, at timestamp"
    assert "body" not in log.schema.names and log.to_table().schema == log.schema
    assert duckdb.sql("select sum(value.item.price) from log where value.id >= 100").fetchall() == [
        (sum(n + 0.5 for n in range(100, 200) if n % 50 != 7),)
    ]
    bad = log.to_table(columns=["undecoded"], filter=pc.field("undecoded_reason").is_valid())
    assert bad["undecoded"].to_pylist() == [b"not JSON"] * 4
    assert pickle.loads(pickle.dumps(log)).count_rows() == 200
    with pytest.raises(UnknownKeyError, match="body"):
        log.to_table(columns=["body"])


def test_bodies_are_not_read_unless_asked_for(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, asked = mqlake.lake.scan(shop, bodies={"json": "id long"}), []
    read_task = module.read_task
    monkeypatch.setattr(module, "read_task", lambda *given: asked.append(given[-1]) or read_task(*given))
    log.to_table(columns=["size"])
    assert asked[-1] == ["size"]
    assert (
        log.to_table(columns={"id": pc.field("value", "id")}, filter=pc.field("queueId") >= 0).num_rows == 200
    )
    assert asked[-1] == ["queueId", "body"]


def test_a_table_decoded_alone(shop: Path) -> None:
    raw = mqlake.lake.scan(shop, columns=["queueOffset", "body", "topic"]).to_table()
    for bodies in ({"json": "infer"}, {"json": "id long"}, mqlake.lake.BodyFormat.given(json="id long")):
        assert bodies is not None
        table = mqlake.lake.decode(raw, bodies)
        assert table.schema.names == ["queueOffset", "value", "undecoded", "undecoded_reason", "topic"]
        assert table["undecoded"].null_count == 196 and pc.struct_field(table["value"], "id").null_count == 4
    with pytest.raises(ConfigError, match="no column 'body'"):
        mqlake.lake.decode(raw.drop_columns("body"), {"json": "id long"})
