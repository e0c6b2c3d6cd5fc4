"""store_info: files, ranges, queues, index and checkpoint as they are, clean or not, running or not."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from mqlake.errors import NotAStoreError
from mqlake.store.check.info import store_info
from mqlake.store.message_store import open_store
from tests.store.small_store import (
    COUNT,
    QUEUES,
    SETTINGS,
    TOPICS,
    fill,
    fill_batches,
    log_file,
    pretend_crash,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def test_of_a_closed_store(root: Path) -> None:
    info = store_info(root)
    assert (info.path, info.clean_exit, info.writer) == (str(root), True, None)
    assert (info.topics, info.messages, info.file_size) == (len(TOPICS), COUNT, 16384)
    assert [(q.topic, q.queue_id, q.type, q.min_offset, q.max_offset) for q in info.queues] == [
        (topic, queue_id, "SimpleCQ", 0, COUNT // len(TOPICS) // QUEUES)
        for topic in sorted(TOPICS)
        for queue_id in range(QUEUES)
    ]
    files = [file for file in info.log_files if file.first_store_timestamp]
    assert [file.start_offset for file in files] == [n * 16384 for n in range(len(files))]
    assert all(a.end_offset == b.start_offset for a, b in itertools.pairwise(files))
    assert info.min_offset == 0 and info.max_offset == files[-1].end_offset
    # a key of its own, one of a group and the unique key
    assert sum(file.entries for file in info.index_files) == 3 * COUNT
    assert all(file.capacity == 79 and file.entries <= file.capacity for file in info.index_files)
    assert info.checkpoint is not None
    assert info.checkpoint.physic_msg_timestamp >= files[-1].first_store_timestamp
    assert info.size == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert info.disk_size > 0


def test_what_a_crash_and_a_writer_leave(root: Path) -> None:
    pretend_crash(root)
    info = store_info(root)
    assert (info.clean_exit, info.writer) == (False, None)
    with open_store(root, SETTINGS):
        info = store_info(root)
        assert (info.clean_exit, info.writer) == (False, os.getpid())


def test_after_cleaning_queues_begin_where_the_log_does(root: Path) -> None:
    log_file(root).unlink()
    info = store_info(root)
    assert info.min_offset == 16384 and 0 < info.messages < COUNT
    assert all(0 < queue.min_offset < queue.max_offset for queue in info.queues)
    assert sum(queue.count for queue in info.queues) == info.messages


def test_of_batches_and_of_nothing(tmp_path: Path) -> None:
    info = store_info(fill_batches(tmp_path / "batches", 4, 5))
    assert (info.messages, info.topics) == (20, 1)
    info = store_info(fill(tmp_path / "empty", count=0))
    assert (info.messages, info.queues, info.max_offset) == (0, [], 0)
    with pytest.raises(NotAStoreError):
        store_info(tmp_path / "missing")
