"""A store written by the Spark jobs, opened by RocketMQ: every message, where the log and the queues say."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mqlake.message import PROPERTY_CRC32
from mqlake.spark.jobs import messages as job
from tests.interop.java_peer import JavaStore, by_key

SETTINGS = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 100, "maxIndexNum": 4000}
PROPERTIES = pa.map_(pa.string(), pa.string())
CHECKSUMS = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
COUNT = 500


@pytest.mark.parametrize("more", [{}, CHECKSUMS])
def test_a_store_of_rows(java_store: JavaStore, tmp_path: Path, more: dict[str, object]) -> None:
    """Of what was in a store before, too: the checksums of its records do not belong to these."""
    root, settings = tmp_path / "new", SETTINGS | more
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": [f"T{n % 2}" for n in range(COUNT)],
            "body": [b"body-%d" % n for n in range(COUNT)],
            "keys": [f"key-{n}" for n in range(COUNT)],
            "tags": [None if n % 3 else "third" for n in range(COUNT)],
            "flag": pa.array(range(COUNT), pa.int32()),
            "bornTimestamp": pa.array(
                [(1_700_000_000_000 + n // 7) * 1000 for n in range(COUNT)], pa.timestamp("us")
            ),
            "part": pa.array([0] * COUNT, pa.int32()),
            "properties": pa.array(
                [[("n", str(n)), (PROPERTY_CRC32, "1234567890")] for n in range(COUNT)], PROPERTIES
            ),
        }
    )
    list(job._write(job._encode(iter([rows]), queues=3), str(root), f"{root}.writing", settings))
    contents = java_store.read(root, settings, [by_key("T0", "key-6")])
    assert len(contents.records) == COUNT
    assert sum(queue.max_offset for queue in contents.queues.values()) == COUNT
    by_body = {record["body"]: record for record in contents.records}
    for n in range(COUNT):
        record = by_body[b"body-%d" % n]
        assert (record["topic"], record["flag"]) == (f"T{n % 2}", n)
        assert record["properties"]["n"] == str(n)
        assert (PROPERTY_CRC32 in record["properties"]) == bool(more)
        assert record["bornTimestamp"] == 1_700_000_000_000 + n // 7
    assert contents.answers[0]["physicalOffsets"] == [by_body[b"body-6"]["physicalOffset"]]
