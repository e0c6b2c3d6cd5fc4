"""The slave's end, against the master's end and against bytes that no master of its log sends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.store.ha.ha_client import ClientState, Trouble
from mqlake.store.ha.ha_connection import ConnectionSettings
from mqlake.store.ha.protocol import HEADER
from tests.store.ha.logs import MemoryLog, Pair, records

LOG = records(500)
BLANK_MAGIC = bytes.fromhex("cbd43194")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 500), st.integers(0, 1000), st.integers(1, 5000), st.sampled_from([1, 100, 1 << 16]))
def test_a_slave_becomes_its_master_wherever_frames_are_cut(
    had: int, seed: int, batch: int, verify: int
) -> None:
    size = len(LOG) // 500
    pair = Pair(
        MemoryLog(LOG),
        MemoryLog(LOG[: had * size]),
        seed=seed,
        settings=ConnectionSettings(transfer_batch_size=batch),
        verify_bytes=verify,
    )
    pair.run(10_000)
    assert pair.closed_because == ""
    assert bytes(pair.slave.data) == LOG
    assert pair.connection.slave_ack_offset == len(LOG)
    assert pair.client.current_reported_offset == len(LOG)
    # no byte twice, none left out
    assert [end for _, end in pair.slave.appends if end] or had == 500


def test_an_empty_slave_of_an_empty_master_gets_the_first_record() -> None:
    pair = Pair(MemoryLog(), MemoryLog())
    pair.run()
    pair.master.data += LOG
    pair.run()
    assert (bytes(pair.slave.data), pair.closed_because) == (LOG, "")


def test_a_slave_ahead_of_its_master_keeps_its_bytes_and_acknowledges_none() -> None:
    size = len(LOG) // 500
    pair = Pair(MemoryLog(LOG[: 480 * size]), MemoryLog(LOG))
    pair.run()
    pair.later(6)
    client = pair.client
    assert client.trouble is Trouble.AHEAD
    assert client.diverged_at == 480 * size
    assert f"{20 * size} bytes would have to be cut" in client.closed_because
    assert bytes(pair.slave.data) == LOG
    assert pair.connection.slave_ack_offset <= 480 * size


def test_other_bytes_in_the_same_place_stop_the_slave() -> None:
    size = len(LOG) // 500
    fork = LOG[: 490 * size] + records(30, base=490 * size, mark="other")
    pair = Pair(MemoryLog(fork), MemoryLog(LOG))
    pair.run()
    assert pair.client.trouble is Trouble.DIVERGED
    assert pair.client.diverged_at is not None
    assert 490 * size < pair.client.diverged_at < 491 * size
    assert bytes(pair.slave.data) == LOG
    assert not pair.slave.appends


def test_a_slave_whose_master_deleted_the_file_before_its_end_connects_without_that_file() -> None:
    file_size = len(LOG) // 5
    data = bytearray(LOG)
    slave = MemoryLog(bytes(data[: 2 * file_size]), file_size=file_size)
    master = MemoryLog(bytes(data[2 * file_size :]), min_offset=2 * file_size, file_size=file_size)
    pair = Pair(master, slave)
    pair.run()
    assert "has to start over" in pair.connection.closed_because
    pair.client.lost("the master closed the connection")
    pair.connect()
    pair.run()
    assert (bytes(pair.slave.data), pair.closed_because) == (LOG, "")


def test_the_first_offset_may_be_that_of_a_later_file() -> None:
    log = records(10, base=4096)
    pair = Pair(MemoryLog(log, min_offset=4096, file_size=4096), MemoryLog(file_size=4096), first_offset=4096)
    pair.run()
    assert (bytes(pair.slave.data), pair.slave.min_offset) == (log, 4096)


def test_it_does_not_connect_before_it_knows_where_to_begin() -> None:
    pair = Pair(MemoryLog(LOG), MemoryLog(LOG), first_offset=None)
    pair.client.lost()
    assert pair.client.may_connect  # a log that is not empty begins where it ends
    pair.slave.data.clear()
    assert not pair.client.may_connect


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (HEADER.pack(len(LOG) + 1, 0), "is next here"),
        (HEADER.pack(len(LOG), -2), "no RocketMQ master"),
        (HEADER.pack(len(LOG), 1 << 30), "mappedFileSizeCommitLog"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is next here"),
        (HEADER.pack(len(LOG), 200) + b"\0" * 200, "no record"),
    ],
)
def test_what_no_master_of_this_log_sends_is_refused(frame: bytes, why: str) -> None:
    pair = Pair(MemoryLog(LOG), MemoryLog(LOG))
    pair.run()
    pair.client.received(frame, pair.now)
    if "no record" in why:
        assert bytes(pair.slave.data) == LOG
    else:
        assert why in pair.client.closed_because
        assert pair.client.trouble is Trouble.REFUSED


def test_a_full_disk_ends_the_connection_and_a_later_one_goes_on() -> None:
    pair = Pair(MemoryLog(LOG), MemoryLog())
    pair.slave.full = True
    pair.run()
    assert pair.client.trouble is Trouble.DISK
    assert "No space left" in pair.client.closed_because
    assert pair.connection.slave_ack_offset <= 1
    pair.slave.full = False
    pair.client.lost("closed")
    pair.connect()
    pair.run()
    assert (bytes(pair.slave.data), pair.client.trouble) == (LOG, Trouble.NONE)


def test_both_sides_speak_while_nothing_happens_and_close_on_silence() -> None:
    pair = Pair(MemoryLog(LOG), MemoryLog(LOG))
    pair.run()
    for _ in range(20):
        pair.later(5)
    assert pair.closed_because == ""
    assert pair.client.is_following
    pair.now += 21
    pair.client.tick(pair.now)
    pair.connection.tick(pair.now)
    assert "haHousekeepingInterval" in pair.client.closed_because
    assert "haHousekeepingInterval" in pair.connection.closed_because


def test_a_client_that_is_shut_down_stays_so() -> None:
    pair = Pair(MemoryLog(LOG), MemoryLog())
    pair.client.shutdown()
    pair.client.lost("stopped")
    assert pair.client.state is ClientState.SHUTDOWN
    pair.client.received(LOG, pair.now)
    assert pair.slave.is_empty


def test_zeros_at_the_end_of_a_file_do_not_count_as_equal_bytes() -> None:
    """Two logs whose messages differ end their files with the same blank."""
    size = len(LOG) // 500
    file_size = 1024 * size
    other = records(500, mark="other")
    blank = (file_size - len(LOG)).to_bytes(4, "big") + BLANK_MAGIC
    pair = Pair(
        MemoryLog((LOG + blank).ljust(file_size, b"\0") + LOG, file_size=file_size),
        MemoryLog((other + blank).ljust(file_size, b"\0"), file_size=file_size),
        verify_bytes=1000,
    )
    pair.run()
    assert pair.client.trouble is Trouble.DIVERGED
    assert len(pair.slave.data) == file_size


def test_a_log_found_to_be_another_one_is_compared_however_its_connections_end() -> None:
    """A log that ends with a file may go on without the file before, which its master may have deleted."""
    other = records(100, mark="other")
    file_size = len(other)
    pair = Pair(MemoryLog(LOG, file_size=file_size), MemoryLog(other, file_size=file_size))
    pair.run()
    assert pair.client.trouble is Trouble.DIVERGED
    for _ in range(3):
        pair.client.lost()
        pair.connect()
        pair.client.lost("the connection broke")
        pair.connect()
        pair.run()
        assert bytes(pair.slave.data) == other


def test_a_master_known_to_have_the_file_before_is_asked_for_it() -> None:
    other = records(100, mark="other")
    master = MemoryLog(LOG, file_size=len(other))
    pair = Pair(master, MemoryLog(other, file_size=len(other)))
    pair.client._master_begin = lambda: master.min_offset
    for _ in range(3):  # each is lost before the master has sent anything
        pair.connect()
        pair.client.lost("the connection broke")
    pair.connect()
    pair.run()
    assert pair.client.trouble is Trouble.DIVERGED
    assert bytes(pair.slave.data) == other
