from __future__ import annotations

import re

import pytest

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import LogOptions, Mode
from mqlake.spark.options import OPTIONS, log_options


def test_defaults() -> None:
    options = log_options({"path": "/s"})
    assert options == LogOptions(stores=(Storage("/s"),))
    assert options.columns == tuple(COLUMNS)
    assert (options.unpack, options.skipping, options.fail_on_data_loss) == (True, True, True)
    assert (options.start.kind, options.end.kind) == (PositionKind.EARLIEST, PositionKind.LATEST)
    assert (options.verify, options.mode, options.split_size) == ("crc", Mode.FAIL_FAST, 64 << 20)


def test_all_of_them_and_no_care_for_case() -> None:
    given = {
        "PATH": "/a, file:///b",
        "paths": '["/c"]',
        "storageOptions": '{"key": "k"}',
        "topics": "T1,T2",
        "keys": '["a, b", "c"]',
        "startingOffsets": "4096",
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": "{}",
        "endingOffsets": '{"T1": {"0": 7, "1": -1}}',
        "columns": "topic, body,size",
        "includebody": "FALSE",
        "Verify": "Full",
        "mode": "PERMISSIVE",
        "splitsize": "8m",
        "unpack": "false",
        "skipping": "False",
        "maxBytesPerTrigger": "1g",
        "failOnDataLoss": "false",
    }
    unused = {"archive", "endingTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger"}
    assert {name.lower() for name in given} == {name.lower() for name in OPTIONS if name not in unused}
    options = log_options(given)
    assert options.paths == ("/a", "/b", "/c")
    assert options.stores[0].options == {"key": "k"}
    assert options.topics == {"T1", "T2"}
    assert options.keys == {"a, b", "c"}
    assert (options.start.kind, options.start.value) == (PositionKind.TIMESTAMP, 1000)
    assert options.end.queues == {("T1", "0"): 7, ("T1", "1"): -1}
    assert (options.unpack, options.skipping, options.fail_on_data_loss) == (False, False, False)
    assert (options.max_bytes_per_trigger, options.max_offsets_per_trigger) == (1 << 30, None)
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
        log_options({"path": "/s", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'path' is missing"),
        ({"path": "/s", "subscribe": "T"}, "unknown option 'subscribe'; did you mean 'topics'?"),
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
        ({"path": "/s", "skipping": "some"}, "'skipping' is 'some'; it can be true, false or known"),
        ({"path": "/s", "skipping": "Sampled"}, "write the log's heads (`mqlake store heads`)"),
        ({"path": "/s", "topics": ""}, "'topics' is '', which names none"),
        ({"path": "/s", "keys": "[]"}, "'keys' is '[]', which names none"),
        ({"path": "/s", "topics": "[1"}, "'topics' is not a JSON list"),
        ({"path": "/s", "storageOptions": "[]"}, "'storageOptions' is not a JSON object"),
        ({"path": "/s", "maxOffsetsPerTrigger": "0"}, "a number above 0"),
        ({"path": "/s", "maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "at most"),
    ],
)
def test_values_that_cannot_be_used(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        log_options(options)


def test_positions_that_only_a_stream_has() -> None:
    for options, said in (
        ({"startingOffsets": "latest"}, "cannot begin there"),
        ({"endingOffsets": "earliest"}, "cannot end there"),
    ):
        with pytest.raises(ConfigError, match=said):
            log_options({"path": "/s", **options}).check_batch()


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("64k", 65536), ("3 MB", 3 << 20), ("1g", 1 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size("splitSize", text) == size
