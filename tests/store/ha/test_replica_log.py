"""A slave's log takes whole records of its master, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.store.config import MessageStoreConfig
from mqlake.store.ha.protocol import ReplicationError
from mqlake.store.ha.replica_log import MappedReplicaLog
from mqlake.store.message_store import DefaultMessageStore
from tests.store.ha.logs import records
from tests.store.small_store import SETTINGS, contents, fill
from tests.waiting import PATIENCE_S, trying


def open_slave(root: Path, **settings: object) -> DefaultMessageStore:
    values = {**SETTINGS, "storePathRootDir": str(root), "brokerRole": "SLAVE", **settings}
    store = DefaultMessageStore(MessageStoreConfig.from_mapping(values))
    store.load()
    store.start()
    return store


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    store = open_slave(tmp_path / "slave")
    yield store
    store.shutdown()


def feed(log: MappedReplicaLog, data: bytes, offset: int, piece: int) -> None:
    """As HAClient does it, `piece` bytes at a time."""
    kept = b""
    for at in range(0, len(data), piece):
        kept += data[at : at + piece]
        for _ in trying("all is appended"):
            room = log.file_size - offset % log.file_size
            taken, _ = log.append(offset, memoryview(kept)[:room])
            kept, offset = kept[taken:], offset + taken
            if not taken or not kept:
                break
    assert kept == b""


@pytest.mark.parametrize("piece", [333, 4096, 100_000])
def test_the_slave_has_the_masters_files(tmp_path: Path, piece: int) -> None:
    master = fill(tmp_path / "master")
    files = sorted((master / "commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in files).rstrip(b"\0")
    slave = open_slave(tmp_path / "slave")
    feed(slave.replica_log(), data + b"\0" * 0, 0, piece)
    assert slave.wait_until_dispatched(PATIENCE_S)
    slave.shutdown()
    ours, theirs = contents(tmp_path / "slave"), contents(master)
    for name in theirs:
        if name.startswith(("commitlog", "consumequeue")):
            assert ours[name] == theirs[name], name


def test_a_log_that_begins_at_a_later_file_is_dispatched_and_recovered(tmp_path: Path) -> None:
    master = fill(tmp_path / "master")
    files = sorted((master / "commitlog").iterdir())
    base = int(files[1].name)
    data = b"".join(path.read_bytes() for path in files[1:]).rstrip(b"\0")
    slave = open_slave(tmp_path / "slave")
    feed(slave.replica_log(), data, base, 5000)
    assert slave.wait_until_dispatched(PATIENCE_S)
    assert slave.min_phy_offset == base
    end = slave.max_phy_offset
    assert slave.flush() == end
    low, high = slave.min_offset_in_queue("Orders", 0), slave.max_offset_in_queue("Orders", 0)
    assert 0 < low < high == 50
    slave.shutdown()
    again = open_slave(tmp_path / "slave")
    assert (again.min_phy_offset, again.max_phy_offset) == (base, end)
    assert again.get_message("G", "Orders", 0, low, 32).message_count > 0
    again.shutdown()


def test_a_file_that_was_only_allocated_is_no_beginning(slave: DefaultMessageStore) -> None:
    """Allocated for the master's first record, which the master has deleted by now."""
    log = slave.replica_log()
    assert slave.commit_log_files.get_last_mapped_file(start_offset=0) is not None
    base = 3 * log.file_size
    data = records(2, base=base)
    assert log.append(base, memoryview(data)) == (len(data), 0)
    assert (slave.min_phy_offset, slave.max_phy_offset) == (base, base + len(data))


def test_an_incomplete_record_is_not_in_the_log(slave: DefaultMessageStore) -> None:
    data = records(3)
    log = slave.replica_log()
    size = len(data) // 3
    assert log.append(0, memoryview(data)[: size - 1]) == (0, size)
    assert log.append(0, memoryview(data)[: 2 * size + 3]) == (2 * size, 0)
    assert log.append(2 * size, memoryview(data)[2 * size : 2 * size + 10]) == (0, size)
    assert log.max_offset == slave.max_phy_offset == 2 * size


def test_what_is_no_record_is_refused_and_the_log_stays(slave: DefaultMessageStore) -> None:
    data = bytearray(records(2))
    size = len(data) // 2
    data[size + 120] ^= 1  # in the body: its CRC is wrong
    log = slave.replica_log()
    assert log.append(0, memoryview(bytes(data))) == (size, size)
    with pytest.raises(ReplicationError, match="no record"):
        log.append(size, memoryview(bytes(data))[size:])
    with pytest.raises(ReplicationError, match="no record"):
        log.append(size, memoryview(bytes(100)))
    assert log.max_offset == size


def test_a_first_offset_inside_a_file_is_refused(slave: DefaultMessageStore) -> None:
    with pytest.raises(ReplicationError, match="no start of a file"):
        slave.replica_log().append(100, memoryview(records(1, base=100)))


def test_a_fenced_store_takes_nothing(slave: DefaultMessageStore) -> None:
    slave.running_flags.make_fenced("the disk failed")
    with pytest.raises(OSError, match="the disk failed"):
        slave.replica_log().append(0, memoryview(records(1)))


def test_under_sync_flush_only_what_the_disk_has_is_reported(tmp_path: Path) -> None:
    slave = open_slave(tmp_path / "slave", flushDiskType="SYNC_FLUSH")
    log = slave.replica_log()
    data = records(2)
    log.append(0, memoryview(data))
    assert (log.max_offset, log.acknowledged_offset) == (len(data), 0)
    log.sync()
    assert log.acknowledged_offset == len(data)
    slave.shutdown()
