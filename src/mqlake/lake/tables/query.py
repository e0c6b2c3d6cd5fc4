"""SQL over table and live log: each topic of a lake is a DuckDB table of its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from mqlake.errors import ConfigError, NotThereError, TableError, did_you_mean, nearest
from mqlake.lake.requirements import require_modules
from mqlake.lake.tables.topic import TopicTable

_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")
_BEFORE_TABLES = "from|join|table|describe|desc|summarize|copy"
"""Words of SQL that a table's name follows."""


def query(
    sql: str,
    tables: Iterable[TopicTable],
    as_of: datetime | None = None,
    views: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of the columns and the rows of a SELECT. Only topics whose tables are named in the text are read; all
    of them as of the moment the query begins. `views`: other names, and what makes their datasets, for those that no
    table has and that are named where a table's name stands.

    Raises ConfigError for what DuckDB refuses, NotThereError for a table that is not there, TableError for what cannot
    be read, MissingPartError, and what union_of() raises.
    """
    require_modules("duckdb", command="pip install 'mqlake[lake]'")
    import duckdb

    tables = list(tables)
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    try:
        for table in tables:
            name = table.topic.table
            if name.lower() in words:
                connection.register(name, table.union() if as_of is None else table.at(as_of))
        named = {table.topic.table.lower() for table in tables}
        for name, make in views.items():
            if name.lower() not in named and re.search(
                rf'(?:\b(?:{_BEFORE_TABLES})\s|,)\s*"?{name}\b(?!\s*\()', sql, re.IGNORECASE
            ):
                connection.register(name, make())
        result = connection.execute(sql)
        if result is None:
            raise ConfigError("there is no statement in the text of the query")
        return [column[0] for column in result.description], result.fetchall()
    except duckdb.Error as error:
        reason, reading, _ = str(error).partition("Detail: Python exception:")
        if reading:  # of ours, which DuckDB gives with a traceback
            raise TableError(reason.removeprefix("Invalid Input Error: ").rstrip(". \n")) from error
        reason, _, _ = reason.partition(
            "\n\nLINE "
        )  # a line and a mark below it, which mean nothing in a sentence
        missing = _NO_TABLE.search(reason) if isinstance(error, duckdb.CatalogException) else None
        if missing is not None:  # DuckDB would suggest tables of its own
            names = dict.fromkeys([*(table.topic.table for table in tables), *views])
            there = f"there are {', '.join(names)}" if names else "there are none"
            raise NotThereError(
                f"there is no table {missing[1]}{did_you_mean(nearest(missing[1], names))}; {there}"
            ) from error
        raise ConfigError(reason.strip()) from error
    finally:
        connection.close()
