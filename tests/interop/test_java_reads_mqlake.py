"""mqlake writes, Java recovers and reads: every kind of message, after a clean end and after SIGKILL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.lake.heads.valid import open_valid
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.lake.log.storage import Storage
from mqlake.store.backup import back_up, restore
from mqlake.store.read_only import ReadOnlyStore
from tests.golden import CASES
from tests.interop.agreement import as_asked, log_files, questions, same_answers, same_contents
from tests.interop.java_peer import JavaStore, Json, put, seeded_body
from tests.interop.make_golden import CONFIG, cases
from tests.interop.mixes import MIXES, ONE_INDEX_FILE, SMALL, TOPICS, everything
from tests.interop.mqlake_peer import Writer, contents, numbered, open_store
from tests.interop.mqlake_peer import put as mqlake_put
from tests.waiting import PATIENCE_S


def settings(case: str) -> Json:
    known = cases()[case]
    stricter = {"forceVerifyPropCRC": True} if case == "propcrc" else {}
    return {**CONFIG, **known.config, **stricter}


def java_agrees(
    java: JavaStore, root: Path, config: Json, topics: dict[str, dict[str, str]], clean: bool
) -> None:
    """What a look at mqlake's files shows, without any recovery, is what Java has after its own."""
    log = log_files(root)
    with ReadOnlyStore(root, config) as view:
        assert view.is_clean == clean
        asked = questions(contents(view))
        found = java.read(root, config, asked, topics=topics)
        assert found.info["lastExitOk"] == clean
        assert log_files(root) == log
        same_contents(view, found)
        # An index of several files may be less when Java has made it again: see ONE_INDEX_FILE.
        full_index = clean or len(view.index.files if view.index else ()) < 2
        same_answers(view, found, zip(asked, found.answers, strict=True), full_index=full_index)


@pytest.mark.parametrize("case", CASES)
def test_a_clean_store(java_store: JavaStore, tmp_path: Path, case: str) -> None:
    ops, topics, config = cases()[case].ops, cases()[case].topics, settings(case)
    with open_store(tmp_path, config, topics=topics) as store:
        results = mqlake_put(store, ops)
        store.wait_until_dispatched(PATIENCE_S)
        as_asked(ops, results, contents(store).records)
    java_agrees(java_store, tmp_path, config, topics, clean=True)


@pytest.mark.parametrize("mix", MIXES)
def test_everything_in_one_store(java_store: JavaStore, tmp_path: Path, mix: str) -> None:
    ops = everything()
    with open_store(tmp_path, MIXES[mix], topics=TOPICS) as store:
        results = mqlake_put(store, ops)
        store.wait_until_dispatched(PATIENCE_S)
        as_asked(ops, results, contents(store).records)
    java_agrees(java_store, tmp_path, MIXES[mix], TOPICS, clean=True)


def test_a_store_with_heads(java_store: JavaStore, tmp_path: Path) -> None:
    """Java's store opens, reads and writes beside the folder, and leaves it as it is."""
    ops = everything()
    mix = next(iter(MIXES.values()))
    with open_store(tmp_path, mix, topics=TOPICS) as store:
        mqlake_put(store, ops)
        store.wait_until_dispatched(PATIENCE_S)
    assert HeadsWriter(str(tmp_path)).run().written > 0
    heads = {path.name: path.read_bytes() for path in (tmp_path / "heads").iterdir()}
    java_agrees(java_store, tmp_path, mix, TOPICS, clean=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "heads").iterdir()} == heads
    assert len(open_valid(Storage(str(tmp_path))).valid) == len(heads)


def test_a_restored_backup(java_store: JavaStore, tmp_path: Path) -> None:
    """Saved beside a writer, and again after more was put; Java reads all of it."""
    root, saved, restored = (tmp_path / name for name in ("store", "saved", "restored"))
    config = {**SMALL, **ONE_INDEX_FILE}
    ops = [
        put("T", seeded_body(n, 300), queue_id=n % 3, keys=f"key-{n}", tags="even"[n % 2 :])
        for n in range(200)
    ]
    with open_store(root, config) as store:
        results = mqlake_put(store, ops[:90])
        back_up(str(root), str(saved), config)
        results += mqlake_put(store, ops[90:])
        back_up(str(root), str(saved), config)
    restore(str(saved), str(restored), config)
    found = java_store.read(restored, config)
    as_asked(ops, results, found.records)
    with ReadOnlyStore(restored, config) as view:
        same_contents(view, found)


# --- killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Json]]]:
    """What a process had put into a store of each case, all of them open, when it was killed."""
    directory = tmp_path_factory.mktemp("killed")
    stores = {}
    with Writer() as writer:
        for case, known in cases().items():
            root = directory / case
            writer.open(root, settings(case), known.topics)
            stores[case] = root, writer.put(root, known.ops)
        writer.kill()
    return stores


@pytest.mark.parametrize("case", CASES)
def test_a_killed_store(java_store: JavaStore, killed: dict[str, tuple[Path, list[Json]]], case: str) -> None:
    root, results = killed[case]
    known = cases()[case]
    java_agrees(java_store, root, settings(case), known.topics, clean=False)
    with ReadOnlyStore(root, settings(case)) as view:
        as_asked(known.ops, results, contents(view).records)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_writer_killed_in_the_middle(java_store: JavaStore, tmp_path: Path, flush: str) -> None:
    config = {**SMALL, **ONE_INDEX_FILE, "flushDiskType": flush}
    op = put("T", size=300, queue_id=1)
    with Writer() as writer:
        writer.open(tmp_path, config)
        acknowledged = kill_after(writer, writer.put_until_killed(tmp_path, op), 300)

    found = java_store.read(tmp_path, config, questions_for(len(acknowledged)))
    assert not found.info["lastExitOk"]
    assert len(found.records) >= len(acknowledged) >= 300
    at = 0
    for n, record in enumerate(found.records):
        expected = numbered(op, n)
        assert (record["body"], record["properties"]) == (seeded_body(n, 300), {"KEYS": expected["keys"]})
        assert (record["queueOffset"], record["queueId"]) == (n, 1)
        # The next record, or, behind a blank one, the next file.
        assert record["physicalOffset"] in (at, -(-at // 16384) * 16384)
        at = record["physicalOffset"] + record["size"]
    for result, record in zip(acknowledged, found.records, strict=False):
        assert result["status"] == "PUT_OK"
        assert (result["wroteOffset"], result["storeTimestamp"]) == (
            record["physicalOffset"],
            record["storeTimestamp"],
        )
    assert found.queues["T", 1].messages == found.records
    for answer in found.answers:
        assert len(answer["physicalOffsets"]) == 1
    with ReadOnlyStore(tmp_path, config) as view:
        same_contents(view, found)


def kill_after(writer: Writer, answers: Iterator[Json], count: int) -> list[Json]:
    """The answers that had come when the writer died, in the middle of one more put."""
    known = list(itertools.islice(answers, count))
    writer.end()
    return known + list(answers)


def questions_for(count: int) -> list[Json]:
    key = {"kind": "key", "topic": "T", "max": 64, "begin": 0, "end": 2**63 - 1}
    return [{**key, "key": f"k{n}"} for n in (0, count // 2, count - 1)]
