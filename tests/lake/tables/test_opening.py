"""Tables by their names: one format in a directory, a warehouse that can hold them, nothing made by a look."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from mqlake.errors import ConfigError, MissingPartError, TableError
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.tables.config import Lake
from mqlake.lake.tables.opening import load_table, make_table, shared_catalogs
from tests.lake.tables.lakes import FORMATS, lake_of

SCHEMA = pa.schema([("topic", pa.string())])


@pytest.mark.parametrize("format", FORMATS)
def test_a_look_makes_nothing(tmp_path: Path, format: str) -> None:
    lake = Lake(str(tmp_path / "lake"), format)
    assert load_table(lake, "n.t") is None and not (tmp_path / "lake").exists()
    made = make_table(lake, "n.t", SCHEMA, {"k": "v"}, "")
    found = load_table(lake, "n.t")
    assert found is not None and found.schema == made.schema == SCHEMA
    assert found.properties["k"] == "v" and found.name == "n.t"
    assert load_table(lake, "n.other") is None


@pytest.mark.parametrize("format", FORMATS)
def test_a_directory_has_a_table_of_one_format(tmp_path: Path, format: str) -> None:
    other = next(each for each in FORMATS if each != format)
    make_table(Lake(str(tmp_path), format), "n.t", SCHEMA, {}, "")
    make_table(Lake(str(tmp_path), format), "n.t", SCHEMA, {}, "")  # its own
    with pytest.raises(TableError, match=rf"{tmp_path}/n/t is a table of the format {format}"):
        make_table(Lake(str(tmp_path), other), "n.t", SCHEMA, {}, "")


@pytest.mark.parametrize("format", FORMATS)
def test_a_warehouse_that_is_a_file(tmp_path: Path, format: str) -> None:
    (tmp_path / "file").touch()
    lake = Lake(str(tmp_path / "file"), format)
    with pytest.raises(ConfigError, match=r"file is a file: name a directory"):
        load_table(lake, "n.t")
    with pytest.raises(ConfigError, match=r"file is a file: name a directory"):
        make_table(lake, "n.t", SCHEMA, {}, "")


def test_variants_are_for_delta(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("value", VARIANT))
    with pytest.raises(ConfigError, match=r"use a Delta table \(--format delta\)"):
        make_table(Lake(str(tmp_path / "i"), "iceberg"), "n.t", schema, {}, "")
    assert make_table(Lake(str(tmp_path / "d"), "delta"), "n.t", schema, {}, "").schema.names == [
        "topic",
        "value",
    ]


def test_one_catalog_for_many_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqlake.lake.tables import iceberg

    opened: list[str] = []
    open_catalog = iceberg.open_catalog
    monkeypatch.setattr(
        iceberg, "open_catalog", lambda name, options: opened.append(name) or open_catalog(name, options)
    )
    lake = Lake(str(tmp_path), "iceberg")
    with shared_catalogs():
        for name in "abc":
            make_table(lake, f"n.{name}", SCHEMA, {}, "")
        assert len(opened) == 1
    load_table(lake, "n.a")
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("format", "module"), [("iceberg", "pyiceberg"), ("iceberg", "sqlalchemy"), ("delta", "deltalake")]
)
def test_without_the_formats_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    lake = lake_of(tmp_path, format)
    with pytest.raises(MissingPartError, match=rf"package {module}.*pip install 'mqlake\[{format}\]'"):
        make_table(lake, "mqlake.T", pa.schema([("n", pa.int64())]), {}, "")
