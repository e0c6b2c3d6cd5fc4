"""`mqlake lake` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import MissingPartError
from mqlake.lake.requirements import require_modules
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.cli.terminal import on_a_terminal
from tests.lake.tables.lakes import ORDERS, expected, open_topic, put, rows_in, save
from tests.spark.stores import SETTINGS

RUN = ["run", "STORE", "--topic", ORDERS, "--warehouse", "W"]
LOOKS = (
    *(["status"], ["query", "select 1"], ["verify"], ["rewind", "--to-version", "1", "--yes"]),
    *(["compact"], ["expire"], ["orphans"]),
)


def invoke(*arguments: object, status: int = 0) -> Any:
    result = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_run_again_and_again(tmp_path: Path, format: str) -> None:
    store = tmp_path / "store"
    put(store, 40)
    places = [f"broker-a={store}", "--warehouse", tmp_path / "lake", "--format", format, "--topic", ORDERS]
    [first] = json.loads(invoke("run", *places, "--engine", "local", "--json").stdout)
    assert (first["topic"], first["rows"], first["commits"]) == (ORDERS, 20, 1)
    again = invoke("run", *places).stdout
    assert again.startswith("topic   table          messages") and "mqlake.Orders         0" in again
    put(store, 20, 40)
    [more] = json.loads(invoke("run", *places, "--step-bytes", "1k", "--json").stdout)
    assert more["rows"] == 10 and more["commits"] > 1
    assert rows_in(open_topic(tmp_path, store, format).table) == expected(store)


def test_run_of_a_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 20)
    file = save(tmp_path, store, "delta", ORDERS, "Other")
    found = json.loads(invoke("run", tmp_path, "--json").stdout)
    assert [(each["topic"], each["rows"]) for each in found] == [(ORDERS, 10), ("Other", 10)]
    [one] = json.loads(invoke("run", file, "--topic", "Other", "--json").stdout)
    assert one["rows"] == 0
    assert "did you mean 'Orders'" in invoke("run", file, "--topic", "Order", status=1).stderr
    assert "leave --catalog out" in invoke("run", file, "--catalog", "x", status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "give a lake.toml, a store directory, or name servers"),
        (["run", "STORE", "--warehouse", "W"], "name the topics"),
        (["run", "STORE", "--topic", ORDERS], "give a warehouse"),
        (["run", "STORE", "--topic", ORDERS, "--warehouse", "W", "--columns", "topic"], "needs the column"),
        ([*RUN, "--format", "delta", "--catalog", "sqlite:///x"], "leave the catalog out"),
        ([*RUN, "--catalog", "mysql://x/y"], "use sqlite, postgresql"),
        ([*RUN, "--catalog", "nobody"], "catalog nobody cannot be opened: URI missing"),
        (
            [*RUN, "--catalog", "sqlite:////no/such/catalog.db"],
            "cannot be opened: unable to open database file",
        ),
        ([*RUN[:-1], "s3://bucket/lake"], "name a catalog"),
        ([*RUN, "--namespace", "a b"], "cannot be a namespace"),
        ([*RUN, "--bodies", "json"], "json needs a schema: json:infer"),
        ([*RUN, "--bodies", "avro:"], "avro needs a schema: avro:FILE"),
        ([*RUN, "--bodies", "text:x"], "takes nothing after it"),
        ([*RUN, "--bodies", "json:id lng"], "did you mean 'long'"),
        ([*RUN, "--bodies", f"avro:{__file__}"], "test_group.py: no Avro schema"),
        ([*RUN, "--bodies", f"json-schema:{__file__}"], "test_group.py: no JSON Schema"),
        ([*RUN, "--bodies", f"protobuf:{__file__}"], "test_group.py: no Protobuf descriptor set"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], says: str) -> None:
    put(tmp_path / "store", 4)
    places = {"STORE": str(tmp_path / "store"), "W": str(tmp_path / "w")}
    result = invoke(*[places.get(each, each) for each in arguments], status=2)
    assert any(each in result.stderr for each in says.split("|")), result.stderr
    assert not (tmp_path / "w").exists()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    put(tmp_path / "store", 4)
    run = ["run", tmp_path / "store", "--warehouse", tmp_path / "w", "--topic"]
    for arguments, says in (
        ([*run, "Order"], "did you mean 'Orders'"),
        (["run", tmp_path / "w", *run[2:], ORDERS], "there is no such directory"),
        (["run", __file__, *run[2:], ORDERS], "a store is a directory"),
        ([*run, ORDERS, "--bodies", "avro:/no/such.avsc"], "/no/such.avsc: No such file"),
        ([*run, ORDERS, "--bodies", "confluent:/no/such"], "/no/such: No such file"),
    ):
        assert says in invoke(*arguments, status=1).stderr
        assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_look_makes_nothing(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", 4)
    (tmp_path / "file").touch()
    given = [tmp_path / "store", "--format", format, "--topic", ORDERS, "--warehouse"]
    for command in LOOKS:
        says = invoke(*command, *given, tmp_path / "none", status=1).stderr
        assert f"there is no {format} table mqlake.Orders in {tmp_path}/none yet" in says
        assert (
            "file is a file: name a directory" in invoke(*command, *given, tmp_path / "file", status=2).stderr
        )
    assert not (tmp_path / "none").exists()


def test_a_table_with_a_name_of_its_own_is_asked_by_it(tmp_path: Path) -> None:
    """Only a lake.toml could say that the topic's table has another name than the topic."""
    put(tmp_path / "store", 4)
    given = [
        f"broker-a={tmp_path}/store",
        "--warehouse",
        tmp_path / "w",
        "--topic",
        ORDERS,
        "--table",
        "Mine",
    ]
    invoke("run", *given, "--engine", "local")
    assert invoke("query", "select count(*) as n from Mine", *given).stdout.split() == ["n", "2"]
    shown = invoke("status", *given).stdout
    assert "mqlake.Mine" in shown and "messages behind" in shown


def test_a_catalog_that_is_away(tmp_path: Path) -> None:
    put(tmp_path / "store", 4)
    for command in (["run"], *LOOKS):
        given = [*command, tmp_path / "store", "--topic", ORDERS, "--catalog"]
        assert "127.0.0.1:9 does not answer" in invoke(*given, "http://127.0.0.1:9", status=1).stderr
    missing = invoke(*given, "postgresql+nobody://127.0.0.1:9/x", status=2).stderr
    assert "cannot be opened" in missing


@pytest.mark.parametrize(("format", "other"), [("iceberg", "delta"), ("delta", "iceberg")])
def test_tables_that_are_not_ours_or_are_damaged(tmp_path: Path, format: str, other: str) -> None:
    put(tmp_path / "store", 40)
    places = [f"broker-a={tmp_path}/store", "--warehouse", tmp_path / "lake"]
    given = [*places, "--topic", ORDERS, "--format", format]
    invoke("run", *given, "--engine", "local")
    rows = rows_in(open_topic(tmp_path, tmp_path / "store", format).table)
    # vacuum and orphans of the one would delete the other's files
    says = invoke("run", *places, "--topic", ORDERS, "--format", other, status=1).stderr
    assert f"lake/mqlake/Orders is a table of the format {format}: say so" in says
    says = invoke("run", *places, "--topic", "Other", "--table", ORDERS, "--format", format, status=1).stderr
    assert "is that of topic Orders: give Other another one" in says
    assert rows_in(open_topic(tmp_path, tmp_path / "store", format).table) == rows
    assert "no statement" in invoke("query", "", *given, status=2).stderr
    asked = "select count(distinct body) from Orders"
    [file] = (tmp_path / "lake").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:50])
    for command in (["verify"], ["query", asked]):
        says = invoke(*command, *given, status=1).stderr
        assert "a data file of the table is damaged" in says and file.name in says and "Traceback" not in says
    file.unlink()
    for command in (["verify"], ["query", asked]):
        says = invoke(*command, *given, status=1).stderr
        assert "a data file of the table is gone" in says and file.name in says and "Traceback" not in says


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(MissingPartError, match=r"mqlake\[delta\]"):
        require_modules("json", "no_such_package", command="pip install 'mqlake[delta]'")


def test_a_warehouse_without_a_lake_toml_says_how_to_make_it(tmp_path: Path) -> None:
    store, home = tmp_path / "store", tmp_path / "lake"
    put(store, 4)
    invoke("run", f"broker-a={store}", "--warehouse", home, "--topic", ORDERS, "--engine", "local")
    said = f"there is no lake.toml in {home}"
    for command in (["verify"], ["status"], ["query", "select 1"], ["run"]):
        assert said in (told := invoke(*command, home, status=1).stderr)
        assert f"mqlake lake add NAME=STORE --warehouse {home} --topic TOPIC" in told
    invoke("add", f"broker-a={store}", "--warehouse", home, "--topic", ORDERS)
    assert "each message once" in invoke("verify", home).stdout


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_life(tmp_path: Path, format: str) -> None:
    """Added, filled, asked, checked, compacted, taken back, filled again."""
    store, home = tmp_path / "store", tmp_path / "lake"
    put(store, 40)
    invoke("add", f"broker-a={store}", "--warehouse", home, "--format", format, "--topic", ORDERS)
    invoke("add", f"broker-a={store}", "--warehouse", home, "--format", format, "--topic", "Other")
    [empty, _] = json.loads(invoke("status", home, "--json").stdout)
    assert (empty["rows"], empty["lag"]["messages"], empty["committedAt"]) == (0, 20, 0)
    for first in (40, 60, 80):
        invoke("run", home)
        put(store, 20, first)
    [orders, _] = json.loads(invoke("status", home, "--json").stdout)
    assert (orders["rows"], orders["files"], orders["lag"]["messages"]) == (40, 3, 10)
    sql = "select count(*) as n, count(distinct o.physicalOffset) as d from Orders o join Other t on t.keys > o.keys"
    [counted] = json.loads(invoke("query", sql, home, "--json").stdout)
    assert counted["d"] <= 50 < counted["n"]
    moment = expected(store)[45]["storeTimestamp"].isoformat()
    earlier = len([row for row in expected(store) if row["storeTimestamp"].isoformat() < moment])
    asked = invoke("query", "select count(*) as n from Orders", home, "--as-of", moment)
    assert asked.stdout.split() == ["n", str(earlier)]
    when = "select max(storeTimestamp)::varchar as t from Orders"  # in UTC, wherever the shell is
    assert json.loads(invoke("query", when, home, "--json").stdout)[0]["t"].endswith("+00")
    assert "each message once" in invoke("verify", home).stdout
    found = json.loads(invoke("compact", home, "--topic", ORDERS, "--json").stdout)
    assert found == [{"table": "mqlake.Orders", "before": 3, "after": 1}]
    table = open_topic(tmp_path, store, format).table
    first = [each.version for each in table.versions() if each.state][-1]
    given = [home, "--topic", ORDERS, "--to-version", first]
    [plan] = json.loads(invoke("rewind", *given, "--dry-run", "--json").stdout)
    assert (plan["rows"], plan["left"], plan["lost"]) == (20, 20, "")
    invoke("rewind", *given, "--yes")
    assert json.loads(invoke("run", home, "--topic", ORDERS, "--json").stdout)[0]["rows"] == 30
    assert rows_in(table) == expected(store)
    assert json.loads(invoke("orphans", home, "--json").stdout) == []
    assert "no table has files" in invoke("orphans", home).stderr
    invoke("expire", home, "--older-than", "1h")
    assert "NOT SOUND" not in invoke("verify", home, "--sample", "0").stdout


LONG_WORK = """
import sys
from mqlake.cli.main import cli

store, home = sys.argv[1:]
for format in ("iceberg", "delta"):
    place = f"{home}/{format}"
    given = [f"broker-a={store}", "--warehouse", place, "--format", format, "--topic", "Orders", "--json"]
    cli(["lake", "run", *given, "--engine", "local", "--step-bytes", "1k"], standalone_mode=False)
    for command in ("compact", "verify"):
        cli(["lake", command, *given], standalone_mode=False)
    for command in ("expire", "orphans"):
        cli(["lake", command, *given, "--older-than", "0s"], standalone_mode=False)
cli(["store", "offload", store, f"local://{home}/archive", "--json"], standalone_mode=False)
"""


def test_long_work_shows_how_far_it_is(tmp_path: Path) -> None:
    put(tmp_path / "store", 200)
    shown, results = on_a_terminal(LONG_WORK, str(tmp_path / "store"), str(tmp_path))
    for what in (
        "reading",
        "compacting",
        "expiring",
        "looking through",
        "reading mqlake.Orders",
        "offloading",
    ):
        assert what in shown, what
    assert "Error" not in results and results.count("mqlake.Orders") >= 8


def test_a_query_that_cannot_be_answered(tmp_path: Path) -> None:
    put(tmp_path / "store", 4)
    file = save(tmp_path, tmp_path / "store", "delta", ORDERS)
    assert (
        "there is no delta table mqlake.Orders in"
        in invoke("query", "select 1 from Orders", file, status=1).stderr
    )
    invoke("run", file)
    assert "nothing" in invoke("query", "select nothing from Orders", file, status=2).stderr
    (tmp_path / "lake/mqlake/Orders/stray.parquet").write_bytes(b"x")
    listed = invoke("orphans", file, "--older-than", "0s", "--delete", "--yes")
    assert "stray.parquet" in listed.stdout and "1 file deleted" in listed.stderr


def test_bodies_to_columns(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_store(store, SETTINGS) as opened:
        for n in range(30):
            body = b'{"id": %d, "item": {"price": 1.5}}' % n if n % 10 else b"no JSON"
            assert opened.put_message(MessageExtBrokerInner(ORDERS, body, queue_id=0)).is_ok
    places = [f"a={store}", "--warehouse", tmp_path / "lake", "--topic", ORDERS]
    given = [*places, "--bodies", "json:infer", "--engine", "local"]
    [first] = json.loads(invoke("run", *given, "--json").stdout)
    assert (first["rows"], first["undecoded"]) == (30, 3)
    with open_store(store, SETTINGS) as opened:
        assert opened.put_message(MessageExtBrokerInner(ORDERS, b'{"id": 30, "new": 1}', queue_id=0)).is_ok
    sql = "select sum(value.id) as s, sum(value.item.price) as p, count(undecoded) as u from Orders"
    [found] = json.loads(invoke("query", sql, *places, "--json").stdout)
    assert found == {"s": sum(n for n in range(31) if n % 10 or n == 30), "p": 40.5, "u": 3}
    assert "unknown format of bodies 'xml'" in invoke("run", *places, "--bodies", "xml:x", status=2).stderr


def test_query_of_a_store_and_what_is_archived_of_it(tmp_path: Path) -> None:
    """Without its archive a store has no more than its broker has kept."""
    store, archive = tmp_path / "store", f"file://{tmp_path}/archive"
    put(store, 400)
    assert CliRunner().invoke(cli, ["store", "offload", str(store), archive]).exit_code == 0
    first, *others = sorted((store / "commitlog").iterdir())
    assert others
    first.unlink()
    sql = "select count(*) as n from log where topic = 'Orders'"
    [kept] = json.loads(invoke("query", sql, store, "--json").stdout)
    [whole] = json.loads(invoke("query", sql, store, "--archive", archive, "--json").stdout)
    assert kept["n"] < whole["n"] == 200
    places = [store, "--topic", ORDERS, "--warehouse", tmp_path / "lake"]
    assert "give the store alone" in invoke("query", sql, *places, "--archive", archive, status=2).stderr


def test_query_of_a_store_without_tables(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 40)
    for view in ("log", "heads"):
        rows = json.loads(
            invoke(
                "query", f"select topic, count(*) as n from {view} group by 1 order by 1", store, "--json"
            ).stdout
        )
        assert [row["n"] for row in rows if row["topic"] == ORDERS] == [20]
    assert CliRunner().invoke(cli, ["store", "heads", str(store)]).exit_code == 0
    found = json.loads(invoke("query", "select count(bodySize) as n from heads", store, "--json").stdout)
    assert found == [{"n": 40}]
    result = invoke("query", "select 1 from heads", tmp_path / "nowhere", status=1)
    assert "no such directory" in result.output
