"""The goldens are what they say: the live peer reads from them what their expected.json holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import CASES, DIRECTORY, unpack
from tests.interop.java_peer import JavaStore
from tests.interop.make_golden import plain, short

# A store whose records all carry __CRC32# passes the stricter check too.
STRICTER = {"propcrc": {"forceVerifyPropCRC": True}}


def test_every_case_is_there() -> None:
    assert {path.name for path in DIRECTORY.iterdir() if path.is_dir()} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_java_reads_the_golden(java_store: JavaStore, tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    queries = golden.expected["queries"]
    config = golden.config | STRICTER.get(case, {})
    contents = java_store.read(golden.root, config, [each["query"] for each in queries], topics=golden.topics)

    assert contents.info["lastExitOk"] == (case != "killed")
    assert (contents.min_physical_offset, contents.max_physical_offset) == (
        golden.expected["info"]["minPhysicalOffset"],
        golden.expected["info"]["maxPhysicalOffset"],
    )
    assert plain(contents.records) == golden.expected["records"]
    assert [
        {**vars(queue), "messages": [message["physicalOffset"] for message in queue.messages]}
        for queue in contents.queues.values()
    ] == golden.expected["queues"]
    for asked, answer in zip(queries, contents.answers, strict=True):
        expected = asked.get("afterRecovery", asked["answer"])
        found = short(answer)
        if asked["query"]["kind"] == "key":
            expected, found = expected["physicalOffsets"], found["physicalOffsets"]
        assert found == expected, asked["query"]
