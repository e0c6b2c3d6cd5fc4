"""Table: rows as a table or as JSON, from one list of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mqlake.cli.formats import is_wide
from mqlake.cli.output import print_json, print_table

Row = TypeVar("Row")


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One field of a row. `show` makes a table's cell of the value."""

    name: str
    """In JSON; empty: not in JSON."""
    value: Callable[[Row], Any]
    header: str | None = ""
    """In tables; empty: the name; None: in wide ones only."""
    show: Callable[[Any], object] = _unchanged


class Table(Generic[Row]):
    def __init__(self, *columns: Column[Row]) -> None:
        self._columns = columns
        self._shown = [column for column in columns if column.header is not None]

    def objects(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        named = [column for column in self._columns if column.name]
        return [{column.name: column.value(row) for column in named} for row in rows]

    def print(self, rows: Iterable[Row], *, indent: int = 0) -> None:
        shown = list(self._columns) if is_wide() else self._shown
        header = [column.header or column.name for column in shown]
        cells = [[column.show(column.value(row)) for column in shown] for row in rows]
        print_table(header, cells, indent=indent)

    def show(self, rows: Iterable[Row], *, as_json: bool) -> None:
        """A list of objects, or a table."""
        if as_json:
            print_json(self.objects(rows))
        else:
            self.print(rows)


def or_dash(value: object) -> object:
    """`-` for an empty value."""
    return value if value or value == 0 else "-"


def two_digits(value: float) -> str:
    return f"{value:.2f}"
