from __future__ import annotations

import re

import pytest

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.spark.options import OPTIONS, LogOptions, Mode, parse_size
from mqlake.spark.schema import COLUMNS, CORRUPT_COLUMN


def test_defaults() -> None:
    options = LogOptions.parse({"path": "/s"})
    assert options == LogOptions(("/s",), tuple(COLUMNS))
    assert (options.verify, options.mode, options.split_size) == ("crc", Mode.FAIL_FAST, 64 << 20)


def test_all_of_them_and_no_care_for_case() -> None:
    given = {
        "PATH": "/a, file:///b",
        "paths": '["/c"]',
        "topics": "T1,T2",
        "columns": "topic, body,size",
        "includebody": "FALSE",
        "Verify": "Full",
        "mode": "PERMISSIVE",
        "splitsize": "8m",
    }
    assert len(given) == len(OPTIONS)
    options = LogOptions.parse(given)
    assert options.paths == ("/a", "/b", "/c")
    assert options.topics == {"T1", "T2"}
    assert options.columns == ("topic", "size", CORRUPT_COLUMN)
    assert (options.verify, options.mode, options.split_size) == ("full", Mode.PERMISSIVE, 8 << 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "T"}, "unknown option 'topic'; did you mean 'topics'?"),
        ({"colums": "T"}, "unknown option 'colums'; did you mean 'columns'?"),
        ({"columns": "topic,queue"}, "unknown column 'queue'; did you mean 'queueId'?"),
    ],
)
def test_unknown_names(options: dict[str, str], said: str) -> None:
    with pytest.raises(UnknownKeyError, match=re.escape(said)):
        LogOptions.parse({"path": "/s", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'path' is missing"),
        ({"path": " , "}, "option 'path' is missing"),
        ({"paths": "/c"}, "not a JSON list"),
        (
            {"path": "/s", "mode": "lenient"},
            "'mode' is 'lenient'; it can be failFast, permissive or dropMalformed",
        ),
        ({"path": "/s", "verify": "yes"}, "it can be none, crc or full"),
        ({"path": "/s", "includeBody": "no"}, "it can be true or false"),
        ({"path": "/s", "columns": "topic,topic"}, "each once"),
        ({"path": "/s", "columns": ""}, "must name columns"),
        ({"path": "/s", "splitSize": "big"}, "a number with k, m or g"),
        ({"path": "/s", "splitSize": "0"}, "a number with k, m or g"),
    ],
)
def test_values_that_cannot_be_used(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        LogOptions.parse(options)


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("64k", 65536), ("3 MB", 3 << 20), ("1g", 1 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size("splitSize", text) == size
