"""The notebooks of examples/notebooks: every cell runs, on a store made for them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.spark.conftest import spark
from tests.spark.stores import SETTINGS

__all__ = ["spark"]

NOTEBOOKS = Path(__file__).parent.parent.parent / "examples" / "notebooks"


def shown_by(source: str, where: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(source, where)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return (
        eval(compile(ast.Expression(last.value), where, "eval"), names)
        if isinstance(last, ast.Expr)
        else None
    )


def run(path: Path) -> list[Any]:
    """The value of the last expression of each cell, as a notebook shows it."""
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(notebook["cells"]):
        assert not cell.get("outputs"), f"cell {number} of {path.name} is kept with outputs"
        if cell["cell_type"] == "code":
            shown.append(shown_by("".join(cell["source"]), f"{path.name}[{number}]", names))
    return shown


def test_the_log_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(tmp_path / "store", SETTINGS) as store:
        for n in range(30):
            body = b"not JSON" if n == 7 else b'{"id":%d,"price":%d.5}' % (n, n)
            assert store.put_message(MessageExtBrokerInner("Orders", body)).is_ok
    monkeypatch.setenv("MQLAKE_STORE", str(tmp_path / "store"))
    columns, by_topic, described, tail, schema, rows, undecoded = run(NOTEBOOKS / "log-without-spark.ipynb")
    assert "body" in columns and by_topic["messages"].tolist() == [30]
    assert described.height and len(tail) == 5 and schema is None
    assert capsys.readouterr().out == "id long, price double\n"
    assert rows["price"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert len(undecoded) == 1 and undecoded.iloc[0, 1] == 1


def orders(root: Path) -> None:
    """A store with 30 messages of 4 keys, the last of them without a body."""
    with open_store(root, SETTINGS) as store:
        for n in range(30):
            message = MessageExtBrokerInner("Orders", b"" if n == 29 else b"%d" % n, keys=f"key-{n % 4}")
            assert store.put_message(message).is_ok


def test_topics_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders(tmp_path / "store")
    monkeypatch.setenv("MQLAKE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MQLAKE_LAKE", str(tmp_path / "lake"))
    _, made, by_queue, verified, rows, latest = run(NOTEBOOKS / "topics-as-tables.ipynb")
    assert made == (30, "mqlake.Orders") and by_queue["messages"].tolist() == [30]
    assert verified == (True, 30, 30) and rows == 30
    assert latest["keys"].tolist() == ["key-0", "key-2", "key-3"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.nightly
def test_tables_with_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the session of the tests, which session() gives again."""
    orders(tmp_path / "store")
    monkeypatch.setenv("MQLAKE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MQLAKE_LAKE", str(tmp_path / "lake"))
    by_topic, ended, by_queue = run(NOTEBOOKS / "tables-with-spark.ipynb")
    assert by_topic["count"].tolist() == [30] and ended is None
    assert by_queue["count"].tolist() == [30]


def test_no_notebook_is_forgotten() -> None:
    assert [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))] == [
        "log-without-spark.ipynb",
        "tables-with-spark.ipynb",
        "topics-as-tables.ipynb",
    ]
