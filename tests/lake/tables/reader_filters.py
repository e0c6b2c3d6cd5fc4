"""Each column × operator × reader of a table, against the rows that a read without a filter gives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.expressions as iceberg

from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.lake.tables.lakes import open_topic
from tests.spark.stores import SETTINGS

COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "uniqKey",
    "tags",
    "keys",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "body",
)
FILES: tuple[tuple[tuple[str | None, str | None], ...], ...] = (
    (("k" * 36, None), ("k" * 32 + "🚀" * 4, None)),
    ((None, "A"), ("short", "🚀")),
    (("k" * 31 + "\U0010ffff" * 3, "B"), ("\ud7ff" * 40, None), ("\U0010ffff" * 40, "C")),
    (("\ud7ff" * 15 + "\U0010ffff", "D" * 200), ("key " * 1500, "\uffff" * 33)),
    (("\ud7ff" * 40, None),),
)
"""Of each message of a file its keys and its tag."""
COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Filter = tuple[str, str, Any]
"""A column, an operator (of COMPARISONS, `is null` or `is not null`), and a value."""


def check_filters(tmp_path: Path, format: str) -> None:
    """A reader skips files by their statistics: what those misstate, its filters do not find."""
    path, table = filled(tmp_path, format)
    names = [name for name in COLUMNS if name in table.schema.names]
    rows = pa.Table.from_batches(table.scan(table.head().version, [*names, "properties"], None)).to_pylist()
    wrong = []
    for reader, count in (delta_readers(path) if format == "delta" else iceberg_readers(table)).items():
        for filter in filters(names, rows):
            expected = sum(holds(row, filter) for row in rows)
            if (found := count(filter)) != expected:
                wrong.append((reader, filter, found, expected))
    assert len(rows) == sum(map(len, FILES)) and wrong == []


def filled(tmp_path: Path, format: str) -> tuple[Path, Any]:
    """A table with a file for each of FILES, and where it is."""
    orders = None
    for file in FILES:
        with open_store(tmp_path / "store", {**SETTINGS}) as store:
            for keys, tags in file:
                message = MessageExtBrokerInner("Orders", b"body", keys=keys, tags=tags)
                if tags:
                    message.uniq_key = f"{tags * 20}{keys or ''}"[:300]
                assert store.put_message(message).is_ok
        orders = orders or open_topic(tmp_path, tmp_path / "store", format)
        orders.append_new()
    assert orders is not None
    return tmp_path / "lake" / "mqlake" / "Orders", orders.table


def filters(names: list[str], rows: list[dict[str, Any]]) -> Iterator[Filter]:
    for name in names:
        yield from ((name, "is null", None), (name, "is not null", None))
        values = {row[name] for row in rows if row[name] is not None}
        for value in sorted(values)[:: max(1, len(values) // 3)] if name != "keys" else values:
            yield from ((name, comparison, value) for comparison in COMPARISONS)


def holds(row: dict[str, Any], filter: Filter) -> bool:
    name, comparison, value = filter
    if comparison in COMPARISONS:
        return row[name] is not None and bool(COMPARISONS[comparison](row[name], value))
    return (row[name] is None) == (comparison == "is null")


def delta_readers(path: Path) -> dict[str, Callable[[Filter], int]]:
    table = deltalake.DeltaTable(path)
    dataset = table.to_pyarrow_dataset()
    lazy = pl.scan_delta(str(path))
    sql = deltalake.QueryBuilder().register("t", table)

    def datafusion(filter: Filter) -> int:
        found = pa.table(sql.execute(f"select count(*) as n from t where {in_sql(filter, '0x')}"))
        return int(found["n"][0].as_py())

    return {
        "pyarrow": lambda filter: int(dataset.count_rows(filter=in_arrow(filter))),
        "duckdb": lambda filter: in_duckdb(dataset, filter),
        "polars": lambda filter: lazy.filter(in_polars(filter)).select(pl.len()).collect().item(),
        "pandas": lambda filter: len(table.to_pandas(columns=["queueId"], filters=in_arrow(filter))),
        "datafusion": datafusion,
    }


def iceberg_readers(table: Any) -> dict[str, Callable[[Filter], int]]:
    native = table._native
    lazy = pl.scan_iceberg(native)

    def pyiceberg(filter: Filter) -> int:
        return int(
            native.scan(row_filter=in_iceberg(filter), selected_fields=("queueId",)).to_arrow().num_rows
        )

    def over_it(filter: Filter) -> int:
        return in_duckdb(native.scan(row_filter=in_iceberg(filter)).to_arrow(), filter)

    return {
        "pyiceberg": pyiceberg,
        "duckdb": over_it,
        "polars": lambda filter: lazy.filter(in_polars(filter)).select(pl.len()).collect().item(),
    }


def in_duckdb(messages: Any, filter: Filter) -> int:
    return int(duckdb.from_arrow(messages).filter(in_sql(filter)).aggregate("count(*)").fetchall()[0][0])


def in_sql(filter: Filter, hex: str = "") -> str:
    name, comparison, value = filter
    if isinstance(value, bytes):
        return f'"{name}" {comparison} ' + (f"x'{value.hex()}'" if hex else f"from_hex('{value.hex()}')")
    if comparison not in COMPARISONS or isinstance(value, int):
        return f'"{name}" {comparison} {"" if value is None else value}'
    if hasattr(value, "isoformat"):
        return f"\"{name}\" {comparison} cast('{value.isoformat()}' as timestamp with time zone)"
    return f"\"{name}\" {comparison} '{value}'"


def in_arrow(filter: Filter) -> pc.Expression:
    name, comparison, value = filter
    field = pc.field(name)
    if comparison in COMPARISONS:
        return COMPARISONS[comparison](field, value)
    return field.is_null() if comparison == "is null" else field.is_valid()


def in_polars(filter: Filter) -> pl.Expr:
    name, comparison, value = filter
    column = pl.col(name)
    if comparison in COMPARISONS:
        found: pl.Expr = COMPARISONS[comparison](column, value)
        return found
    return column.is_null() if comparison == "is null" else column.is_not_null()


def in_iceberg(filter: Filter) -> iceberg.BooleanExpression:
    name, comparison, value = filter
    value = value.isoformat() if hasattr(value, "isoformat") else value
    kinds: dict[str, Any] = {
        "=": iceberg.EqualTo,
        "!=": iceberg.NotEqualTo,
        "<": iceberg.LessThan,
        "<=": iceberg.LessThanOrEqual,
        ">": iceberg.GreaterThan,
        ">=": iceberg.GreaterThanOrEqual,
    }
    if comparison in kinds:
        found = kinds[comparison](name, value)
        return iceberg.And(found, iceberg.NotNull(name)) if comparison == "!=" else found
    return iceberg.IsNull(name) if comparison == "is null" else iceberg.NotNull(name)
