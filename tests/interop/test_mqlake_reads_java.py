"""Java writes, mqlake reads: live, after a clean end, after a crash, and beside the running writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import StoreLockedError
from mqlake.store.read_only import ReadOnlyStore
from tests.interop.agreement import (
    as_asked,
    index_files,
    log_files,
    questions,
    queue_files,
    same_answers,
    same_contents,
)
from tests.interop.java_peer import JavaPeerError, JavaStore, Json, OpenJavaStore, put, seeded_body
from tests.interop.mixes import MIXES, SMALL, TOPICS, JavaMix, everything
from tests.interop.mqlake_peer import answer, contents, open_store, record_line, records
from tests.waiting import PATIENCE_S, until


def test_a_clean_store(mixed_by_java: JavaMix, tmp_path: Path) -> None:
    mix = mixed_by_java
    ops, results = zip(*mix.puts, strict=True)
    with ReadOnlyStore(mix.root) as view:
        same_contents(view, mix.contents)
        same_answers(view, mix.contents, mix.answers)
        as_asked(list(ops), list(results), contents(view).records)
    root = mix.copy(tmp_path)
    with open_store(root, mix.config, topics=mix.topics) as store:
        same_contents(store, mix.contents)
        same_answers(store, mix.contents, mix.answers)
    assert log_files(root) == log_files(mix.root)
    assert queue_files(root) == queue_files(mix.root)
    assert index_files(root) == index_files(mix.root)


@pytest.mark.parametrize("mix", MIXES)
def test_a_store_that_a_crash_left(java_store: JavaStore, tmp_path: Path, mix: str) -> None:
    config, ops = MIXES[mix], everything()
    with java_store.new_peer() as peer:
        java = OpenJavaStore(peer, tmp_path, config, topics=TOPICS)
        results = java.put(ops)
        expected = java.contents()
        asked = questions(expected)
        answers = list(zip(asked, java.query(asked), strict=True))
        peer.halt()

    log, queues, index = log_files(tmp_path), queue_files(tmp_path), index_files(tmp_path)
    with ReadOnlyStore(tmp_path) as view:
        assert not view.is_clean
        same_contents(view, expected)
        same_answers(view, expected, answers)
    with open_store(tmp_path, config, topics=TOPICS) as store:
        same_contents(store, expected)
        same_answers(store, expected, answers)
        as_asked(ops, results, contents(store).records)
    assert log_files(tmp_path) == log
    assert queue_files(tmp_path) == queues
    assert index_files(tmp_path) == index


# --- one topic, numbered messages


def numbered(first: int, count: int) -> list[Json]:
    return [put("Live", seed=n, size=size_of(n), queue_id=n % 2, keys=f"k{n}") for n in range(first, count)]


def size_of(n: int) -> int:
    return 10 + n * 37 % 900


def check_numbered(found: list[Json]) -> None:
    for n, record in enumerate(found):
        assert (record["topic"], record["queueId"], record["queueOffset"]) == ("Live", n % 2, n // 2)
        assert record["body"] == seeded_body(n, size_of(n))
        assert record["properties"] == {"KEYS": f"k{n}"}


def test_a_store_whose_writer_was_killed_in_the_middle(java_store: JavaStore, tmp_path: Path) -> None:
    with java_store.new_peer() as peer:
        java = OpenJavaStore(peer, tmp_path, SMALL)
        known = len(java.put(numbered(0, 200)))
        writing = threading.Thread(target=put_until_it_dies, args=(java, known))
        writing.start()
        until(lambda: len(os.listdir(tmp_path / "commitlog")) > 25)
        peer.kill()
        writing.join()

    with open_store(tmp_path, SMALL) as store:
        found = contents(store)
        check_numbered(found.records)
        count = len(found.records)
        assert count > known
        for queue_id in (0, 1):
            queue = found.queues["Live", queue_id]
            assert queue.messages == found.records[queue_id::2]
            assert (queue.min_offset, queue.max_offset) == (0, (count + 1 - queue_id) // 2)
        for n in (0, known, count - 1):
            (record,) = store.query_message("Live", f"k{n}", 64).buffers
            assert record_line(record) == found.records[n]
    with java_store.open(tmp_path, SMALL) as java:
        assert java.contents().records == found.records


def put_until_it_dies(java: OpenJavaStore, known: int) -> None:
    with pytest.raises(JavaPeerError, match="ended"):
        for first in range(known, 100_000, 100):
            java.put(numbered(first, first + 100))


# --- beside a running writer


@pytest.fixture
def running(java_store: JavaStore, tmp_path: Path) -> Iterator[OpenJavaStore]:
    with java_store.open(tmp_path, SMALL) as store:
        yield store


def test_beside_a_running_writer(running: OpenJavaStore, tmp_path: Path) -> None:
    """Whatever is seen at a moment is a prefix of what is written; queues and index never lead astray."""
    running.put(numbered(0, 20))
    turns = threading.Semaphore(2)
    writing = threading.Thread(target=put_in_turns, args=(running, turns, 20, 820))
    found: list[Json] = []
    with ReadOnlyStore(tmp_path) as view:
        writing.start()
        while len(found) < 820:
            end = found[-1]["physicalOffset"] + found[-1]["size"] if found else 0
            view.refresh()
            more = [record_line(record) for record in records(view, end)]
            found += more
            for queue_id in (0, 1):
                check_queue(view, queue_id, found)
            newest = answer(view, {**ONE_KEY, "key": f"k{len(found) - 1}"})["physicalOffsets"]
            assert newest in ([], [found[-1]["physicalOffset"]])
            if more:
                turns.release()
        writing.join()

        check_numbered(found)
        running.settle()
        view.refresh()
        expected = running.contents()
        assert found == expected.records
        same_contents(view, expected)
        asked = questions(expected)[:200]
        same_answers(view, expected, zip(asked, running.query(asked), strict=True))


def put_in_turns(java: OpenJavaStore, turns: threading.Semaphore, first: int, last: int) -> None:
    """Goes on while it is being read, but not far ahead of the reader."""
    for n in range(first, last, 20):
        assert turns.acquire(timeout=PATIENCE_S)
        java.put(numbered(n, n + 20))


def check_queue(view: ReadOnlyStore, queue_id: int, found: list[Json]) -> None:
    """What is in a queue is in the log: whoever pulls never has to skip a message."""
    last = view.max_offset_in_queue("Live", queue_id)
    mine = found[queue_id::2]
    assert last <= len(mine)
    at = max(0, last - 10)
    while at < last:
        got = view.get_message("peer", "Live", queue_id, at, 32)
        assert at < got.next_begin_offset <= last
        assert [record_line(record) for record in got.records()] == mine[at : got.next_begin_offset]
        at = got.next_begin_offset


ONE_KEY = {"kind": "key", "topic": "Live", "max": 64, "begin": 0, "end": 2**63 - 1}


def test_a_reader_takes_no_lock_and_writes_nothing(running: OpenJavaStore, tmp_path: Path) -> None:
    running.put(numbered(0, 50))
    running.settle()
    root = tmp_path.resolve()
    with ReadOnlyStore(root) as view:
        assert len(list(records(view))) == 50
        assert not our_locks(root)
        assert not our_writable_files(root)
        running.put(numbered(50, 60))
        running.settle()
        view.refresh()
        assert len(list(records(view))) == 60
        assert not our_locks(root)
    # To write is another matter: the lock that Java holds is seen.
    with pytest.raises(StoreLockedError), open_store(root, SMALL):
        pass


def our_locks(root: Path) -> list[str]:
    inodes = {path.stat().st_ino for path in root.rglob("*") if path.is_file()}
    held = []
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.replace("-> ", "").split()
        if int(fields[4]) == os.getpid() and int(fields[5].split(":")[2]) in inodes:
            held.append(line)
    return held


def our_writable_files(root: Path) -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
            flags = int(
                Path(f"/proc/self/fdinfo/{descriptor.name}").read_text().split("flags:")[1].split()[0], 8
            )
        except FileNotFoundError:  # the one that lists them
            continue
        if target.startswith(f"{root}/") and flags & os.O_ACCMODE != os.O_RDONLY:
            found.append(target)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return found + [line for line in maps if f" {root}/" in line and "w" in line.split()[1]]
