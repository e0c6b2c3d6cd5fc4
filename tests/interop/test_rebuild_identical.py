"""Consume queues and index are derived from the log: made again by mqlake they are Java's, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake.store.read_only import ReadOnlyStore
from tests.golden import CASES, unpack
from tests.interop.agreement import contents_of, files, index_files, log_files, queue_files, same_contents
from tests.interop.mixes import JavaMix
from tests.interop.mqlake_peer import Topics, open_store

DERIVED = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


def rebuild(root: Path, config: dict[str, object], topics: Topics) -> None:
    for name in DERIVED:
        shutil.rmtree(root / name, ignore_errors=True)
    with open_store(root, config, topics=topics):
        pass


# A bit map is the broker's filter's, not the log's: the extension units of cqext had some.
@pytest.mark.parametrize("case", [case for case in CASES if case != "cqext"])
def test_golden(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    log, queues, index = log_files(golden.root), queue_files(golden.root), index_files(golden.root)
    rebuild(golden.root, golden.config, golden.topics)
    assert log_files(golden.root) == log
    assert queue_files(golden.root) == queues
    assert index_files(golden.root) == index


def test_golden_with_an_extension_but_for_bit_maps(tmp_path: Path) -> None:
    golden = unpack("cqext", tmp_path)
    index = index_files(golden.root)
    rebuild(golden.root, golden.config, golden.topics)
    assert index_files(golden.root) == index
    java = contents_of(golden)
    for queue in java.queues.values():
        for unit in queue.units:
            unit["extBitMap"] = ""
    with ReadOnlyStore(golden.root) as view:
        same_contents(view, java)


# One queue alone may be missing because its topic was deleted; a whole directory never is.
@pytest.mark.parametrize("gone", ["consumequeue", "batchconsumequeue", "index"])
def test_golden_with_a_directory_lost(tmp_path: Path, gone: str) -> None:
    golden = unpack("propcrc", tmp_path)
    queues, index = queue_files(golden.root), index_files(golden.root)
    shutil.rmtree(golden.root / gone)
    with open_store(golden.root, golden.config, topics=golden.topics):
        pass
    assert queue_files(golden.root) == queues
    assert index_files(golden.root) == index


def test_live(mixed_by_java: JavaMix, tmp_path: Path) -> None:
    root = mixed_by_java.copy(tmp_path)
    before = files(root, *DERIVED)
    assert {Path(name).parts[0] for name in before} >= {"consumequeue", "batchconsumequeue", "index"}
    assert len(index_files(root)) > 2
    queues, index = queue_files(root), index_files(root)
    rebuild(root, mixed_by_java.config, mixed_by_java.topics)
    assert queue_files(root) == queues
    assert index_files(root) == index
