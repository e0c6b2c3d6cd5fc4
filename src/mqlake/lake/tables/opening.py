"""A table of a lake by its name, in the lake's format: the one place that imports pyiceberg or deltalake.

iceberg   a table of a catalog        delta   WAREHOUSE/NAMESPACE/TABLE
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mqlake.lake.requirements import require_modules
from mqlake.lake.tables.config import ICEBERG, Lake
from mqlake.lake.tables.table import Table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from mqlake.lake.tables.delta import DeltaTable
    from mqlake.lake.tables.iceberg import IcebergTable


def load_table(lake: Lake, name: str, names: Sequence[str] = ()) -> Table | None:
    """None if there is none. `names`: what a Delta table's state is looked up by, see State.from_transactions().

    Raises ConfigError for a catalog that cannot be opened, TableError, MissingPartError.
    """
    if lake.format == ICEBERG:
        kind, catalog = _iceberg(lake)
        return kind.load(catalog, name)
    return _delta().load(_location(lake, name), name, names)


def make_table(
    lake: Lake,
    name: str,
    schema: pa.Schema,
    properties: Mapping[str, str],
    day: str,
    names: Sequence[str] = (),
) -> Table:
    """A new table, or the one that another process made meanwhile. `day`: the column of times whose days part it, or
    empty. Raises as load_table() does."""
    if lake.format == ICEBERG:
        kind, catalog = _iceberg(lake)
        return kind.create(catalog, name, schema, properties, day=day)
    return _delta().create(_location(lake, name), name, schema, properties, names, day=day)


def _iceberg(lake: Lake) -> tuple[type[IcebergTable], Catalog]:
    require_modules("pyiceberg", "sqlalchemy", command="pip install 'mqlake[iceberg]'")
    from mqlake.lake.tables.iceberg import IcebergTable, open_catalog

    return IcebergTable, open_catalog(lake.catalog_name, lake.catalog_options())


def _delta() -> type[DeltaTable]:
    require_modules("deltalake", command="pip install 'mqlake[delta]'")
    from mqlake.lake.tables.delta import DeltaTable

    return DeltaTable


def _location(lake: Lake, name: str) -> str:
    return os.path.join(lake.warehouse, *name.split("."))
