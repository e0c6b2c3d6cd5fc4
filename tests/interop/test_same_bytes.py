"""The same puts at the same times make the same bytes, whichever of the two stores takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clock import Clock
from tests.golden import CASES, unpack
from tests.interop.agreement import index_files, log_files, queue_files
from tests.interop.java_peer import SMALL_FILES, JavaStore, Json
from tests.interop.mixes import TOPICS, JavaMix, at_the_limits
from tests.interop.mqlake_peer import Topics, open_store, put


def put_again(root: Path, config: dict[str, object], topics: Topics, puts: list[tuple[Json, Json]]) -> None:
    """Puts what Java has put, each at the time that Java has put it, and gets the same results."""
    clock = Clock(1)
    with open_store(root, config, topics=topics, clock_ms=clock) as store:
        for op, theirs in puts:
            if theirs["status"] == "TICK":
                continue
            clock.now = theirs.get("storeTimestamp", clock.now)
            (mine,) = put(store, [op])
            if theirs["status"] == "EXCEPTION":
                assert mine == {"status": "MESSAGE_ILLEGAL"}, theirs
            else:
                assert mine == theirs


@pytest.mark.parametrize("case", CASES)
def test_golden(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    mine = tmp_path / "mqlake"
    puts = [(each["op"], each["result"]) for each in golden.expected["puts"]]
    put_again(mine, golden.config, golden.topics, puts)
    assert log_files(mine) == log_files(golden.root)
    assert index_files(mine) == index_files(golden.root)
    # A bit map is the broker's filter's, so mqlake's extension units have none yet.
    if case != "cqext":
        assert queue_files(mine) == queue_files(golden.root)


def test_live(mixed_by_java: JavaMix, tmp_path: Path) -> None:
    put_again(tmp_path, mixed_by_java.config, mixed_by_java.topics, mixed_by_java.puts)
    assert log_files(tmp_path) == log_files(mixed_by_java.root)
    assert queue_files(tmp_path) == queue_files(mixed_by_java.root)
    assert index_files(tmp_path) == index_files(mixed_by_java.root)


@pytest.mark.parametrize("tails", [False, True], ids=["plain", "crc tails"])
def test_at_the_limits(java_store: JavaStore, tmp_path: Path, tails: bool) -> None:
    config = {**SMALL_FILES, "enabledAppendPropCRC": tails}
    ops = at_the_limits(config["maxMessageSize"])
    theirs, mine = tmp_path / "java", tmp_path / "mqlake"
    results = java_store.write(theirs, config, ops, topics=TOPICS)
    assert {result["status"] for result in results} == {
        "PUT_OK",
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "EXCEPTION",
    }
    put_again(mine, config, TOPICS, list(zip(ops, results, strict=True)))
    assert log_files(mine) == log_files(theirs)
    assert queue_files(mine) == queue_files(theirs)
    assert index_files(mine) == index_files(theirs)


@pytest.mark.parametrize(
    "way",
    [
        {"flushDiskType": "SYNC_FLUSH"},
        {"writeWithoutMmap": True},
        {"transientStorePoolEnable": True, "transientStorePoolSize": 2},
        {"warmMapedFileEnable": True},
    ],
    ids=lambda way: next(iter(way)),
)
def test_however_they_are_written(mixed_by_java: JavaMix, tmp_path: Path, way: Json) -> None:
    put_again(tmp_path, mixed_by_java.config | way, mixed_by_java.topics, mixed_by_java.puts)
    assert log_files(tmp_path) == log_files(mixed_by_java.root)
    assert queue_files(tmp_path) == queue_files(mixed_by_java.root)
    assert index_files(tmp_path) == index_files(mixed_by_java.root)
