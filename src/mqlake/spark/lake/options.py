"""The options of the sinks `mqlake-iceberg` and `mqlake-delta`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError
from mqlake.lake.tables.config import DEFAULT_NAMESPACE, ICEBERG, Lake
from mqlake.lake.tables.files import TARGET_BYTES
from mqlake.lake.tables.sink import FAIL, ON_REPLAY
from mqlake.spark.options import flag, named, one_of

OPTIONS = (
    "table",
    "warehouse",
    "partitionBy",
    "mergeSchema",
    "appId",
    "onReplay",
    "fileBytes",
    "checkpointLocation",
    "queryName",
)
"""The last two are Spark's own, which it hands on."""
CATALOG_OPTIONS = ("catalog", "catalogProperties")


@dataclass(frozen=True)
class SinkOptions:
    """`day`: the column of times whose days part a new table, or empty; `app`: empty for the query's own id."""

    lake: Lake
    table: str
    day: str = ""
    merge_schema: bool = False
    app: str = ""
    on_replay: str = FAIL
    file_bytes: int = TARGET_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str], format: str) -> SinkOptions:
        """Raises UnknownKeyError and ConfigError."""
        given = named(options, (*OPTIONS, *CATALOG_OPTIONS) if format == ICEBERG else OPTIONS)
        if not given.get("table", "").strip():
            raise ConfigError("option 'table' is missing: NAME, or NAMESPACE.NAME")
        namespace, _, table = given["table"].strip().rpartition(".")
        if not table.isidentifier():
            raise ConfigError(f"option 'table' is {given['table']!r}: letters, digits and _, as shop.Orders")
        if not given.get("warehouse", "") and not given.get("catalog", ""):
            raise ConfigError("option 'warehouse' is missing: the directory or URL where tables are made")
        namespace = namespace or DEFAULT_NAMESPACE
        return cls(
            Lake(given.get("warehouse", ""), format, given.get("catalog", ""), namespace, _catalog(given)),
            f"{namespace}.{table}",
            _day(given.get("partitionBy", "")),
            flag(given, "mergeSchema", default=False),
            _app(given),
            one_of(given, "onReplay", ON_REPLAY, FAIL),
            parse_size("fileBytes", given["fileBytes"]) if "fileBytes" in given else TARGET_BYTES,
        )


def _catalog(given: Mapping[str, str]) -> dict[str, str]:
    text = given.get("catalogProperties", "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"option 'catalogProperties' is not a JSON object: {text!r}")
    return {str(name): str(value) for name, value in found.items()}


def _day(text: str) -> str:
    """Parses `storeTimestamp`, `day(storeTimestamp)`; empty: no partitions."""
    text = text.strip()
    if text.lower().startswith("day(") and text.endswith(")"):
        text = text[4:-1].strip()
    if "," in text or "(" in text:
        raise ConfigError(f"option 'partitionBy' is {text!r}: a column of times, whose days part the table")
    return text


def _app(given: Mapping[str, str]) -> str:
    found = given.get("appId", "").strip()
    if "appId" in given and not found:
        raise ConfigError("option 'appId' is empty: give the stream a name, or leave it out")
    return found
