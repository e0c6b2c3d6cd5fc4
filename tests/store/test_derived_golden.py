"""What RocketMQ 5.3.3 derived from its commit logs, derived again from the same logs: the same bytes."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from mqlake.formats.columns import dispatch_columns
from mqlake.message import parse_delay_levels
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import LogReader
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from tests.golden import CASES, unpack

QUEUES = ("consumequeue", "batchconsumequeue", "consumequeue_ext")


def files_under(root: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{path.relative_to(root / kind)}": path.read_bytes()
        for kind in QUEUES
        for path in sorted((root / kind).rglob("*"))
        if path.is_file()
    }


def keys_under(root: Path, slots: int, entries: int) -> list[tuple[bytes, bytes]]:
    """Per index file in order: header and entries that are in use, and the slots."""
    found = []
    for path in sorted((root / "index").glob("*")):
        data = path.read_bytes()
        count = max(1, struct.unpack_from(">i", data, 36)[0])
        first = 40 + slots * 4
        assert count <= entries
        found.append((data[:36], data[40 : first + count * 20]))
    return found


@pytest.fixture(params=CASES)
def golden(request, tmp_path):
    return unpack(request.param, tmp_path)


def queue_type_of(golden):
    return lambda topic: golden.topics.get(topic, {}).get("queue.type", "SimpleCQ")


def opened(golden, *, thorough=True):
    queues = ConsumeQueueStore(config_of(golden), queue_type_of=queue_type_of(golden))
    queues.load()
    queues.recover(thorough=thorough)
    queues.recover_queue_offsets(0)
    return queues


def config_of(golden):
    return MessageStoreConfig.from_mapping(
        {**golden.config, "storePathRootDir": str(golden.root)}, strict=False
    )


def derive(config, golden, chunk_records):
    """Dispatches the whole log to the queues and the index that are there."""
    log = MappedFileQueue(config.commit_log_dir, config.mapped_file_size_commit_log, read_only=True)
    log.load()
    queues = opened(golden)
    index = IndexService(config)
    index.load(True, None)
    for chunk in LogReader(log).scan(log.min_offset, chunk_records=chunk_records):
        columns = dispatch_columns(
            chunk.mapped_file.array, chunk.scan, delay_levels=parse_delay_levels(config.message_delay_level)
        )
        queues.dispatch(chunk.scan, columns)
        index.dispatch(chunk.scan, columns)
    queues.close()
    index.close()
    log.close()


@pytest.mark.parametrize("chunk_records", [1, 3, 65536])
def test_the_same_log_gives_the_same_files(golden, chunk_records):
    config = config_of(golden)
    expected = files_under(golden.root)
    expected_index = keys_under(golden.root, config.max_hash_slot_num, config.max_index_num)
    for kind in (*QUEUES, "index"):
        shutil.rmtree(golden.root / kind, ignore_errors=True)
    derive(config, golden, chunk_records)
    found = files_under(golden.root)
    if golden.expected["config"].get("enableConsumeQueueExt"):
        # the bit maps that a broker's filters put into the extension are not in the log
        check_units(golden, opened(golden))
    else:
        assert list(found) == list(expected)
        assert [name for name, data in found.items() if data != expected[name]] == []
    assert keys_under(golden.root, config.max_hash_slot_num, config.max_index_num) == expected_index


def check_units(golden, queues):
    for expected in golden.expected["queues"]:
        queue = queues.get(expected["topic"], expected["queue_id"])
        assert queue.min_offset_in_queue == expected["min_offset"]
        assert queue.max_offset_in_queue == expected["max_offset"]
        for unit in expected["units"]:
            found = queue.get(unit["queueOffset"])
            assert (found.physical_offset, found.size) == (unit["physicalOffset"], unit["size"])
            assert (found.tags_code, found.batch_num) == (unit["tagsCode"], unit["batchNum"])


@pytest.mark.parametrize("thorough", [True, False])
def test_java_s_queues_are_read(golden, thorough):
    before = files_under(golden.root)
    check_units(golden, opened(golden, thorough=thorough))
    assert files_under(golden.root) == before


def test_dispatching_java_s_log_again_changes_nothing(golden):
    config = config_of(golden)
    before = files_under(golden.root)
    index_before = keys_under(golden.root, config.max_hash_slot_num, config.max_index_num)
    derive(config, golden, 7)
    assert files_under(golden.root) == before
    assert keys_under(golden.root, config.max_hash_slot_num, config.max_index_num) == index_before
