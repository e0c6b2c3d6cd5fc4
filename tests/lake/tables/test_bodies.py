"""Tables with columns instead of bodies: made, filled, read together with the log, and changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable as NativeTable
from deltalake.schema import VariantType
from pyspark.sql.types import VariantVal

from mqlake.cli.main import cli
from mqlake.errors import ConfigError, OffsetOutOfRangeError, TableError
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.bodies.evolution import SchemaChangeError
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.tables import bodies as module
from mqlake.lake.tables.config import Topic
from mqlake.lake.tables.iceberg import IcebergTable
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.table import DECODER, Head, Version, earlier_decoders
from mqlake.lake.tables.topic import TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.lake.tables.lakes import FORMATS, ORDERS, lake_of, topic_of
from tests.spark.stores import SETTINGS


def put(root: Path, *bodies: bytes) -> None:
    with open_store(root, SETTINGS) as store:
        for body in bodies:
            assert store.put_message(MessageExtBrokerInner(ORDERS, body)).is_ok


def table(directory: Path, format: str, **bodies: Any) -> TopicTable:
    given = BodyFormat.given(**bodies)
    topic = topic_of(directory / "store", bodies=given.spec if given is not None else "")
    return TopicTable.open(lake_of(directory, format), topic)


def values(found: Any) -> list[Any]:
    rows = sorted(found.to_table().to_pylist(), key=lambda row: row["queueOffset"])
    return [row["value"] if row["undecoded"] is None else row["undecoded"] for row in rows]


@pytest.mark.parametrize("format", FORMATS)
def test_columns_are_kept_and_undecoded_bodies_too(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", b'{"id":1}', b"x", b'{"id":"y"}', b"")
    orders = table(tmp_path, format, json="infer")
    assert orders.append_new().rows == 4
    put(tmp_path / "store", b'{"id":2,"more":1}')
    again = table(tmp_path, format)  # nothing is said of bodies: as the table has it
    assert BodyFormat.from_spec(again.table.properties[DECODER]).schema == "id json"
    expected = [{"id": "1"}, b"x", {"id": "y"}, None]
    assert values(again.read()) == expected and values(again.union()) == [*expected, {"id": "2"}]
    assert again.append_new().rows == 1 and again.verify().is_sound
    assert values(again.read()) == [*expected, {"id": "2"}]


@pytest.mark.parametrize("format", FORMATS)
def test_a_schema_that_changes(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", b'{"id":1,"item":{"name":"a"}}')
    table(tmp_path, format, json="id int, item struct<name: string>").append_new()
    put(tmp_path / "store", b'{"id":5000000000,"item":{"name":"b","n":7},"at":"2024-02-28"}')
    wider = table(tmp_path, format, json="id long, item struct<n: int>, at date")
    found = values(wider.union())
    assert wider.append_new().rows == 1 and values(wider.read()) == found
    assert found[0] == {"id": 1, "item": {"name": "a", "n": None}, "at": None}
    assert found[1]["id"] == 5_000_000_000 and found[1]["item"] == {"name": None, "n": 7}
    with pytest.raises(SchemaChangeError, match="field 'id' is long in the table and string"):
        table(tmp_path, format, json="id string")
    with pytest.raises(TableError, match="were given: infer is for"):
        table(tmp_path, format, json="infer")


@pytest.mark.parametrize("format", FORMATS)
def test_files_of_before_a_schema_changed(tmp_path: Path, format: str) -> None:
    """They are read beside the later ones, compacted with them, and updated in a table of latest rows."""
    narrow, wide = "id int, item struct<name: string>", "id long, item struct<name: string, n: int>, at date"
    put(tmp_path / "store", b'{"id":1,"item":{"name":"a"}}')
    table(tmp_path, format, json=narrow).append_new()
    for n in range(2):
        put(
            tmp_path / "store", b'{"id":%d,"item":{"name":"b","n":7},"at":"2024-02-28"}' % (n + 5_000_000_000)
        )
        orders = table(tmp_path, format, json=wide)
        assert orders.append_new().rows == 1
    rows = values(orders.read())
    assert rows[0] == {"id": 1, "item": {"name": "a", "n": None}, "at": None} and len(rows) == 3
    if format == "iceberg":
        assert [row["value"] for row in pyiceberg_rows(orders)] == rows
        paths = orders.table.paths(orders.table.head().version)
        assert paths is not None and len(paths) == 3
        assert orders.table.compact(1 << 30) == (3, 1)
        assert [row["value"] for row in pyiceberg_rows(orders)] == rows
    else:  # wider numbers were written again
        assert orders.table.compact(1 << 30) == (3, 1)
    assert values(orders.read()) == rows and orders.verify().is_sound


def pyiceberg_rows(orders: TopicTable) -> list[dict[str, Any]]:
    """As another engine reads them, which goes by the fields' ids."""
    assert isinstance(orders.table, IcebergTable)
    found: list[dict[str, Any]] = orders.table._native.refresh().scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["queueOffset"])


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_verified_by_the_schema_that_made_them(tmp_path: Path, format: str) -> None:
    """What a body had before there was a column for it, or did not fit then, is no damage."""
    for schema in ("id int", "id long, more struct<a: int>", "id long, more struct<a: int, b: string>"):
        put(tmp_path / "store", b'{"id":1,"more":{"a":1,"b":"x"}}', b'{"id":5000000000}')
        orders = table(tmp_path, format, json=schema)
        assert orders.append_new().rows == 2
        assert orders.verify().is_sound
    assert len(earlier_decoders(orders.table.properties)) == 2
    kinds = [row["undecoded"] is None for row in sorted_rows(orders)]
    assert kinds == [True, False, True, True, True, True]
    assert [row["value"] and row["value"]["more"] for row in sorted_rows(orders)][::2] == [
        None,
        {"a": 1, "b": None},
        {"a": 1, "b": "x"},
    ]


def sorted_rows(orders: TopicTable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orders.read().to_table().to_pylist()
    return sorted(rows, key=lambda row: row["queueOffset"])


@pytest.mark.parametrize("format", FORMATS)
def test_latest_rows_of_before_a_schema_changed(tmp_path: Path, format: str) -> None:
    for number, (schema, keys) in enumerate((("id int", "abc"), ("id long, more string", "cd"))):
        with open_store(tmp_path / "store", SETTINGS) as store:
            for key in keys:
                body = b'{"id":%d,"more":"%s"}' % (number, key.encode())
                assert store.put_message(MessageExtBrokerInner(ORDERS, body, keys=key)).is_ok
        spec = BodyFormat.given(json=schema)
        assert spec is not None
        orders = TopicTable.open(
            lake_of(tmp_path, format), topic_of(tmp_path / "store", latest=True, bodies=spec.spec)
        )
        orders.append_new()
    rows = sorted((row["keys"], row["value"]) for row in orders.read().to_table().to_pylist())
    assert rows == [
        ("a", {"id": 0, "more": None}),
        ("b", {"id": 0, "more": None}),
        ("c", {"id": 1, "more": "c"}),
        ("d", {"id": 1, "more": "d"}),
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_inferred_once_more(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", b'{"id":1}')
    table(tmp_path, format, json="infer").append_new()
    put(tmp_path / "store", b'{"id":2,"new":true}')
    orders = table(tmp_path, format, json="infer")
    orders.append_new()
    assert values(orders.read()) == [{"id": 1, "new": None}, {"id": 2, "new": True}]


def test_a_delta_table_with_wider_numbers_is_written_again(tmp_path: Path) -> None:
    put(tmp_path / "store", b'{"id":1,"l":[{"x":1}]}')
    ints = table(tmp_path, "delta", json="id int, l array<struct<x: int>>")
    ints.append_new()
    put(tmp_path / "store", b'{"id":5000000000,"l":[{"x":5000000000}]}')
    longs = table(tmp_path, "delta", json="id long, l array<struct<x: long>>")
    assert longs.append_new().rows == 1 and longs.verify().findings == []
    found = [{"id": n, "l": [{"x": n}]} for n in (1, 5_000_000_000)]
    assert values(longs.read()) == found
    before = next(each.version for each in longs.table.versions() if each.state and each.state.rows == 1)
    assert ints.table.head().state == longs.table.head().state and before is not None
    longs.rewind(longs.rewind_plan(min(each.version for each in longs.table.versions() if each.state)))
    again = table(tmp_path, "delta", json="id long, l array<struct<x: long>>")
    again.append_new()
    assert values(again.read()) == found


def test_any_json_as_variants(tmp_path: Path) -> None:
    """Filled, united with the log, verified, compacted; read by deltalake. Iceberg's library has no such type."""
    put(tmp_path / "store", b'{"id":1}', b"x", b"[1, null]", b"", b"null")
    orders = table(tmp_path, "delta", variant=True)
    assert orders.append_new().rows == 5
    put(tmp_path / "store", b'{"other":{"id":2}}')

    def read(found: Any) -> list[Any]:
        return [
            [VariantVal(each["value"], each["metadata"]).toPython()] if isinstance(each, dict) else each
            for each in values(found)
        ]

    expected = [[{"id": 1}], b"x", [[1, None]], None, [None], [{"other": {"id": 2}}]]
    assert read(orders.union()) == expected
    again = table(tmp_path, "delta")
    assert again.append_new().rows == 1 and again.verify().findings == []
    assert again.table.compact(1 << 20) == (2, 1)
    assert read(again.read()) == expected and again.verify().is_sound
    kinds = {each.name: each.type for each in NativeTable(again.table.location).schema().fields}
    assert isinstance(kinds["value"], VariantType)
    with pytest.raises(ConfigError, match="which pyiceberg does not write"):
        TopicTable.open(
            lake_of(tmp_path / "other", "iceberg"),
            topic_of(tmp_path / "store", bodies=BodyFormat("variant").spec),
        )


def test_a_table_of_raw_bodies_stays_one(tmp_path: Path) -> None:
    put(tmp_path / "store", b'{"id":1}')
    table(tmp_path, "delta").append_new()
    with pytest.raises(TableError, match="has the bodies as they are"):
        table(tmp_path, "delta", json="id int")


def test_the_command(tmp_path: Path) -> None:
    put(tmp_path / "store", b'{"id":1}', b"x")
    run = ["lake", "run", str(tmp_path / "store"), "--warehouse", str(tmp_path / "lake"), "--topic", ORDERS]
    done = CliRunner().invoke(cli, [*run, "--bodies", "json:id long"])
    assert done.exit_code == 0, done.output
    query = [
        *run[:1],
        "query",
        "select value.id, undecoded_reason from Orders order by queueOffset",
        *run[2:],
        "--json",
    ]
    done = CliRunner().invoke(cli, query)
    assert done.exit_code == 0, done.output
    assert '"id": 1' in done.stdout and "no JSON" in done.stdout
    for bad, said in (("yaml:x", "yaml"), ("json:id lonk", "lonk")):
        done = CliRunner().invoke(cli, [*run, "--bodies", bad])
        assert done.exit_code != 0 and said in done.output


class Asked:
    """Scans, and what each was asked; one store cannot be read from the middle."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    def __call__(self, path: Any, topic: str, *, columns: list[str], namesrv: Any, start: Any) -> Any:
        assert (topic, columns) == (ORDERS, ["body"])
        self.calls.append((path, namesrv, start))
        if path == "/gone" or (path == "/cut" and start is not None):
            raise OffsetOutOfRangeError("the log begins later")
        return SimpleNamespace(head=lambda count: pa.table({"body": [b"%d" % count]}))


@pytest.mark.parametrize("place", [{"stores": {"a": "/a", "b": "/b"}}, {"namesrv": "n:1"}])
def test_which_bodies_a_schema_is_inferred_from(
    monkeypatch: pytest.MonkeyPatch, place: dict[str, Any]
) -> None:
    """The first ones of a new table; of one that there is, those that came after its last commit."""
    asked = Asked()
    monkeypatch.setattr(module, "scan", asked)
    topic = Topic(ORDERS, **place)
    at = [Version(3, 5000, "", None, None), Version(2, 1000, "", None, None)]
    state = TableState({"a": Mark(77)})

    def starts(state: TableState | None, versions: list[Version]) -> list[Any]:
        asked.calls.clear()
        table: Any = SimpleNamespace(head=lambda: Head(3, state), versions=lambda: versions)
        module._sample(topic, table)
        return [start for _, _, start in asked.calls]

    module._sample(topic, None)
    if topic.stores:
        assert asked.calls == [("/a", None, None), ("/b", None, None)]
        assert starts(state, at) == [77, None] and starts(None, at) == [None, None]
    else:
        assert asked.calls == [(None, "n:1", None)]
        assert starts(state, at) == [datetime.fromtimestamp(5, UTC)]
        assert starts(None, at) == [None] and starts(state, []) == [None]


def test_a_log_that_has_gone_on_without_its_table_is_sampled_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run says what is lost; one that cannot be read at all is an error."""
    asked = Asked()
    monkeypatch.setattr(module, "scan", asked)
    table: Any = SimpleNamespace(head=lambda: Head(3, TableState({"a": Mark(77)})))
    module._sample(Topic(ORDERS, {"a": "/cut"}), table)
    assert [start for _, _, start in asked.calls] == [77, None]
    with pytest.raises(OffsetOutOfRangeError):
        module._sample(Topic(ORDERS, {"b": "/gone"}), table)
