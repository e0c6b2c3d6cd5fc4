"""A table of a lake by its name, in the lake's format: the one place that imports pyiceberg or deltalake.

iceberg   a table of a catalog        delta   WAREHOUSE/NAMESPACE/TABLE

Both keep the files of a table in that directory, where the one would take the other's for garbage and delete them. So
a directory has a table of one format.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs

from mqlake.errors import ConfigError, TableError
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.requirements import require_modules
from mqlake.lake.tables.config import DELTA, ICEBERG, Lake
from mqlake.lake.tables.files import file_system_of
from mqlake.lake.tables.table import Table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from mqlake.lake.tables.delta import DeltaTable
    from mqlake.lake.tables.iceberg import IcebergTable


_shared: ContextVar[dict[tuple[object, ...], Catalog] | None] = ContextVar("_shared", default=None)


@contextlib.contextmanager
def shared_catalogs() -> Iterator[None]:
    """Tables that are opened meanwhile have one catalog, and one connection, for each lake."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def load_table(lake: Lake, name: str, names: Sequence[str] = ()) -> Table | None:
    """None if there is none. `names`: what a Delta table's state is looked up by, see State.from_transactions().

    Raises ConfigError for a catalog that cannot be opened, TableError, MissingPartError.
    """
    lake.check_warehouse()
    if lake.format == ICEBERG:
        if not lake.catalog and not os.path.exists(lake.own_catalog):
            return None  # a look makes nothing
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
    empty. Raises as load_table() does, and TableError where there is a table of the other format."""
    lake.check_warehouse()
    if lake.format == ICEBERG and any(field.type == VARIANT for field in schema):
        raise ConfigError(
            "Iceberg has Variants from format version 3 on, which pyiceberg does not write: use a Delta table "
            "(--format delta), or columns (--bodies json:…)"
        )
    _check_not_other(lake, name)
    if lake.format == ICEBERG:
        kind, catalog = _iceberg(lake)
        return kind.create(catalog, name, schema, properties, day=day)
    return _delta().create(_location(lake, name), name, schema, properties, names, day=day)


def _iceberg(lake: Lake) -> tuple[type[IcebergTable], Catalog]:
    require_modules("pyiceberg", "sqlalchemy", command="pip install 'mqlake[iceberg]'")
    from mqlake.lake.tables.iceberg import IcebergTable, open_catalog

    name, options = lake.catalog_name, lake.catalog_options()
    shared, key = _shared.get(), (name, *sorted(options.items()))
    catalog = None if shared is None else shared.get(key)
    if catalog is None:
        catalog = open_catalog(name, options)
        if shared is not None:
            shared[key] = catalog
    return IcebergTable, catalog


def _delta() -> type[DeltaTable]:
    require_modules("deltalake", command="pip install 'mqlake[delta]'")
    from mqlake.lake.tables.delta import DeltaTable

    return DeltaTable


def _location(lake: Lake, name: str) -> str:
    return os.path.join(lake.warehouse, *name.split("."))


_LOGS = {DELTA: "_delta_log", ICEBERG: "metadata"}


def _check_not_other(lake: Lake, name: str) -> None:
    """TableError if the directory of a new table has one of the other format."""
    if not lake.warehouse:
        return
    other = DELTA if lake.format == ICEBERG else ICEBERG
    place = _location(lake, name)
    file_system, inside = file_system_of(place)
    if file_system.get_file_info(f"{inside}/{_LOGS[other]}").type == pyarrow.fs.FileType.Directory:
        raise TableError(
            f"{place} is a table of the format {other}: say so (--format {other}), or give this one another name "
            "(--table) or warehouse"
        )
