"""Options of the table sinks: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.spark.lake.options import SinkOptions

GIVEN = {"table": "shop.Orders", "warehouse": "/w"}


def test_names_in_any_case() -> None:
    given = {
        "queryname": "handed on by Spark",
        "TABLE": "Orders",
        "warehouse": "/w",
        "partitionby": "day(at)",
        "onreplay": "SKIP",
        "filebytes": "1m",
    }
    options = SinkOptions.parse({**given, "catalogProperties": '{"token": 7}'}, "iceberg")
    assert (options.table, options.day, options.on_replay, options.file_bytes) == (
        "mqlake.Orders",
        "at",
        "skip",
        1 << 20,
    )
    assert options.lake.catalog_properties == {"token": "7"} and options.lake.warehouse == "/w"
    deeper = SinkOptions.parse(
        {**GIVEN, "table": "a.b.Orders", "mergeSchema": "true", "appId": "mine"}, "delta"
    )
    assert (deeper.lake.namespace, deeper.table, deeper.merge_schema, deeper.app) == (
        "a.b",
        "a.b.Orders",
        True,
        "mine",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "'table' is missing"),
        ({**GIVEN, "table": "shop.a-b"}, "letters, digits"),
        ({"table": "Orders"}, "'warehouse' is missing"),
        ({**GIVEN, "onReplay": "again"}, "fail, skip or append"),
        ({**GIVEN, "partitionBy": "a,b"}, "a column of times"),
        ({**GIVEN, "partitionBy": "hour(a)"}, "a column of times"),
        ({**GIVEN, "appId": " "}, "'appId' is empty"),
        ({**GIVEN, "catalogProperties": "x"}, "not a JSON object"),
        ({**GIVEN, "warehous": "/w"}, "warehouse"),
    ],
)
def test_what_cannot_be(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SinkOptions.parse(given, "iceberg")
    assert SinkOptions.parse({"table": "t", "catalog": "http://h"}, "iceberg").lake.warehouse == ""
    with pytest.raises(ConfigError, match="catalog"):
        SinkOptions.parse({**GIVEN, "catalog": "http://h"}, "delta")
