"""A table of a lake by its name, in the lake's format: the one place that imports pyiceberg or deltalake.

iceberg   a table of a catalog        delta   WAREHOUSE/NAMESPACE/TABLE
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa

from mqlake.lake.requirements import require_modules
from mqlake.lake.tables.config import ICEBERG, Lake
from mqlake.lake.tables.table import Table


def load_table(lake: Lake, name: str, names: Sequence[str] = ()) -> Table | None:
    """None if there is none. `names`: what a Delta table's state is looked up by, see State.from_transactions().

    Raises ConfigError for a catalog that cannot be opened, TableError, MissingPartError.
    """
    if lake.format == ICEBERG:
        require_modules("pyiceberg", "sqlalchemy", command="pip install 'mqlake[iceberg]'")
        from mqlake.lake.tables.iceberg import IcebergTable, open_catalog

        return IcebergTable.load(open_catalog(lake.catalog_name, lake.catalog_options()), name)
    require_modules("deltalake", command="pip install 'mqlake[delta]'")
    from mqlake.lake.tables.delta import DeltaTable

    return DeltaTable.load(_location(lake, name), name, names)


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
        require_modules("pyiceberg", "sqlalchemy", command="pip install 'mqlake[iceberg]'")
        from mqlake.lake.tables.iceberg import IcebergTable, open_catalog

        catalog = open_catalog(lake.catalog_name, lake.catalog_options())
        return IcebergTable.create(catalog, name, schema, properties, day=day)
    require_modules("deltalake", command="pip install 'mqlake[delta]'")
    from mqlake.lake.tables.delta import DeltaTable

    return DeltaTable.create(_location(lake, name), name, schema, properties, names, day=day)


def _location(lake: Lake, name: str) -> str:
    return os.path.join(lake.warehouse, *name.split("."))
