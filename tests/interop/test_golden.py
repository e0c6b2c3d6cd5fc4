"""Java's stores, kept: the live peer reads from them what their expected.json holds, and so does mqlake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.store_view import StoreView
from tests.golden import CASES, DIRECTORY, Golden, unpack
from tests.interop.agreement import (
    contents_of,
    files,
    index_files,
    log_files,
    queue_files,
    same_answers,
    same_contents,
)
from tests.interop.java_peer import JavaStore
from tests.interop.make_golden import plain, short
from tests.interop.mqlake_peer import open_store

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


def agrees(view: StoreView, golden: Golden) -> None:
    java = contents_of(golden)
    same_contents(view, java)
    same_answers(
        view,
        java,
        [(each["query"], each.get("afterRecovery", each["answer"])) for each in golden.expected["queries"]],
    )


@pytest.mark.parametrize("case", CASES)
def test_mqlake_reads_the_golden_and_leaves_it_alone(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    before = files(golden.root)
    # Sizes of files are seen from the files; how an index file is divided only when it is the usual way.
    settings = golden.config if case == "index-rolled" else None
    with ReadOnlyStore(golden.root, settings) as view:
        assert view.is_clean == (case != "killed")
        agrees(view, golden)
    assert files(golden.root) == before


@pytest.mark.parametrize("case", CASES)
def test_mqlake_opens_the_golden_and_changes_nothing_that_holds(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    log, queues, index = log_files(golden.root), queue_files(golden.root), files(golden.root, "index")
    content = index_files(golden.root)
    config = golden.config | STRICTER.get(case, {})
    with open_store(golden.root, config, topics=golden.topics) as store:
        agrees(store, golden)

    assert not (golden.root / "abort").exists()
    assert log_files(golden.root) == log
    assert queue_files(golden.root) == queues
    # After a crash the index file that was not known to be flushed is made again, under a new name.
    assert index_files(golden.root) == content
    kept = files(golden.root, "index").keys() & index.keys()
    assert len(kept) == len(content) - (case == "killed")
    with ReadOnlyStore(golden.root, config) as view:
        assert view.is_clean
        agrees(view, golden)
