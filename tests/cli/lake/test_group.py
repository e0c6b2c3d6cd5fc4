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
from tests.lake.tables.lakes import ORDERS, expected, open_topic, put, rows_in, save


def invoke(*arguments: object, status: int = 0) -> Any:
    result = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_run_again_and_again(tmp_path: Path, format: str) -> None:
    store = tmp_path / "store"
    put(store, 40)
    places = [f"broker-a={store}", "--warehouse", tmp_path / "lake", "--format", format, "--topic", ORDERS]
    [first] = json.loads(invoke("run", *places, "--json").stdout)
    assert (first["topic"], first["rows"], first["commits"]) == (ORDERS, 20, 1)
    assert "mqlake.Orders     0" in invoke("run", *places).stdout
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
    assert "did you mean 'Orders'" in invoke("run", file, "--topic", "Order", status=2).stderr
    assert "leave --catalog out" in invoke("run", file, "--catalog", "x", status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "give a lake.toml, a store directory, or name servers"),
        (["run", "STORE", "--warehouse", "W"], "name the topics"),
        (["run", "STORE", "--topic", ORDERS], "give a warehouse"),
        (["run", "STORE", "--topic", "Order", "--warehouse", "W"], "did you mean 'Orders'"),
        (["run", "W", "--topic", ORDERS, "--warehouse", "W"], "no such store|not a RocketMQ store"),
        (["run", "STORE", "--topic", ORDERS, "--warehouse", "W", "--columns", "topic"], "needs the column"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], says: str) -> None:
    put(tmp_path / "store", 4)
    places = {"STORE": str(tmp_path / "store"), "W": str(tmp_path / "w")}
    result = invoke(*[places.get(each, each) for each in arguments], status=2)
    assert any(each in result.stderr for each in says.split("|")), result.stderr
    assert not (tmp_path / "w").exists()


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(MissingPartError, match=r"mqlake\[delta\]"):
        require_modules("json", "no_such_package", command="pip install 'mqlake[delta]'")
