"""The slave's end, against the master's end and against bytes that no master of its log sends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.store.ha import ha_client
from mqlake.store.ha.ha_client import ClientSettings, ClientState, HAClient, Trouble
from mqlake.store.ha.ha_connection import ConnectionSettings
from mqlake.store.ha.protocol import HEADER, REPORT
from tests.store.ha.logs import MemoryLog, Pair, give, records

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


# --- a client alone, whose master is this test

SIZE = len(LOG) // 500


def following(log: MemoryLog, **settings: float) -> HAClient:
    """A client that has compared its log with its master's, which has nothing more."""
    client = HAClient(log, ClientSettings(**settings))  # type: ignore[arg-type]
    client.connected(0.0)
    (begin,) = REPORT.unpack(client.take_output())
    client.received(HEADER.pack(begin, log.max_offset - begin) + bytes(log.data[begin:]), 0.0)
    assert client.is_following and client.take_output() == REPORT.pack(log.max_offset)
    client.received(HEADER.pack(log.max_offset, 0), 0.0)
    assert client.take_output() == b""
    return client


def framed(offset: int, data: bytes) -> bytes:
    return HEADER.pack(offset, len(data)) + data


@pytest.mark.parametrize("piece", [1, 7])
def test_a_record_is_stored_with_its_last_byte_and_not_looked_for_before(piece: int) -> None:
    """A byte that is waited for in vain delays an acknowledgement until the next message."""
    log = MemoryLog(LOG)
    client = following(log)
    more = framed(len(LOG), records(2, base=len(LOG)))
    for at in range(0, HEADER.size + SIZE - 1, piece):
        client.received(more[at : min(at + piece, HEADER.size + SIZE - 1)], 1.0)
    assert bytes(log.data) == LOG
    assert 1 <= len(log.appends) <= 4 + 1, "the size is known from its fourth byte on"
    client.received(more[HEADER.size + SIZE - 1 : HEADER.size + SIZE], 1.0)
    assert bytes(log.data) == LOG + records(1, base=len(LOG))
    assert client.take_output() == REPORT.pack(len(LOG) + SIZE)
    client.received(more[HEADER.size + SIZE :], 1.0)
    assert bytes(log.data) == LOG + records(2, base=len(LOG))


def test_what_follows_a_record_in_one_piece_is_stored_at_once_too() -> None:
    """A large record, then a small one: what the first needed is no measure for the second."""
    log = MemoryLog(LOG)
    client = following(log)
    large = records(1, base=len(LOG), size=5000)
    small = records(3, base=len(LOG) + len(large))
    more = framed(len(LOG), large + small)
    client.received(more[:100], 1.0)
    client.received(more[100:], 1.0)
    assert bytes(log.data) == LOG + large + small


@pytest.mark.parametrize("cut", [None, HEADER.size, HEADER.size + 1])
@pytest.mark.parametrize("before", [0, 1])
def test_a_frame_may_end_with_a_file_and_not_behind_it(before: int, cut: int | None) -> None:
    """Whole in one piece, behind another frame, or cut after its header: all ways look at it."""
    file_size = len(LOG) + (2 + before) * SIZE
    for count in (2, 3):
        log = MemoryLog(LOG, file_size=file_size)
        client = following(log)
        first = records(before, base=len(LOG))
        data = framed(len(LOG), first) if before else b""
        begin = len(data)
        data += framed(len(LOG) + len(first), records(count, base=len(LOG) + len(first)))
        pieces = [data] if cut is None else [data[: begin + cut], data[begin + cut :]]
        for piece in pieces:
            client.received(piece, 1.0)
        if count == 2:
            assert (len(log.data), client.closed_because) == (file_size, "")
            assert client.master_offset == file_size
        else:
            assert "crosses the end of a commit log file" in client.closed_because
            assert client.trouble is Trouble.REFUSED and bytes(log.data) == LOG


@pytest.mark.parametrize("whole", [True, False])
def test_a_frame_from_another_offset_is_refused(whole: bool) -> None:
    for wrong in (len(LOG) - SIZE, len(LOG) + SIZE):
        log = MemoryLog(LOG)
        client = following(log)
        data = framed(wrong, records(1, base=wrong))
        for piece in [data] if whole else [data[:15], data[15:]]:
            client.received(piece, 1.0)
        assert f"the master sends from offset {wrong}, and {len(LOG)} is next here" in client.closed_because
        assert bytes(log.data) == LOG


def test_where_the_master_ends_is_what_it_sent_or_announced() -> None:
    log = MemoryLog(LOG)
    client = HAClient(log, ClientSettings())
    client.connected(0.0)
    assert (client.master_offset, client.is_following) == (-1, False)
    (begin,) = REPORT.unpack(client.take_output())
    client.received(HEADER.pack(begin, len(LOG) - begin), 0.0)
    assert (client.master_offset, client.is_following) == (len(LOG), False)
    client.received(LOG[begin:], 0.0)
    assert client.is_following
    more = framed(len(LOG), records(1, base=len(LOG)))
    client.received(more + framed(len(LOG) + SIZE, records(1, base=len(LOG) + SIZE))[:-1], 1.0)
    assert client.master_offset == len(LOG) + 2 * SIZE


def test_who_must_not_be_followed_is_not_called() -> None:
    client = HAClient(MemoryLog(LOG), ClientSettings())
    assert client.may_connect
    client.refuse("it is another cluster's")
    assert (client.may_connect, client.trouble) == (False, Trouble.REFUSED)
    assert client.trouble_text == "it is another cluster's"
    client.refuse("")
    assert client.may_connect
    client.connected(0.0)
    assert not client.may_connect


def test_reports_keep_the_connection_alive_and_silence_ends_it() -> None:
    client = following(MemoryLog(LOG), heartbeat_s=5.0, housekeeping_s=20.0)
    assert client.next_time() == 5.0
    client.tick(4.9)
    assert client.take_output() == b""
    client.tick(5.0)
    assert client.take_output() == REPORT.pack(len(LOG))
    assert client.next_time() == 10.0
    client.tick(18.0)
    assert client.take_output() == REPORT.pack(len(LOG)) and client.next_time() == 20.0
    client.tick(20.0)
    assert client.closed_because == ""
    client.tick(20.1)
    assert "more than 20 s" in client.closed_because and client.trouble is Trouble.UNREACHABLE
    client.lost("closed")
    assert client.may_connect
    client.tick(1000.0)
    assert client.take_output() == b""


def test_nothing_is_acknowledged_while_bytes_are_compared() -> None:
    client = HAClient(MemoryLog(LOG), ClientSettings(verify_bytes=1000))
    client.connected(0.0)
    (begin,) = REPORT.unpack(client.take_output())
    assert begin == len(LOG) - 1000
    client.received(HEADER.pack(begin, 1000) + LOG[begin:-1], 0.0)
    client.tick(6.0)
    assert client.take_output() == REPORT.pack(begin) and not client.is_following
    client.received(LOG[-1:], 6.0)
    assert client.take_output() == REPORT.pack(len(LOG)) and client.is_following


def test_bytes_of_a_large_frame_may_be_received_in_place() -> None:
    """Only where they are appended: not while bytes are compared, between frames, or for the rest of a small one."""
    log = MemoryLog(LOG)
    client = HAClient(log, ClientSettings(in_place_min=2 * SIZE))
    assert client.room() is None
    client.connected(0.0)
    (begin,) = REPORT.unpack(client.take_output())
    client.received(HEADER.pack(begin, len(LOG) - begin), 0.0)
    assert client.room() is None
    client.received(LOG[begin:], 0.0)
    assert client.room() is None
    more = records(3, base=len(LOG))
    client.received(HEADER.pack(len(LOG), len(more)), 1.0)
    room = client.room()
    assert room is not None and len(room) == len(more)
    give(client, more[:SIZE], 1.0)
    assert len(client.room() or b"") == 2 * SIZE and len(log.data) == len(LOG) + SIZE
    give(client, more[SIZE : SIZE + 1], 1.0)
    assert client.room() is None, "less than in_place_min is left"
    give(client, more[SIZE + 1 :], 1.0)
    assert bytes(log.data) == LOG + more


@pytest.mark.parametrize("zeros", [0, 500, 3000])
def test_comparing_begins_where_there_are_bytes_that_tell_something(zeros: int) -> None:
    """At least 64 bytes that are not zero, or the beginning of the file."""
    data = records(100) + bytes(zeros)
    client = HAClient(MemoryLog(data), ClientSettings(verify_bytes=100))
    client.connected(0.0)
    (begin,) = REPORT.unpack(client.take_output())
    told = sum(1 for byte in data[begin:] if byte)
    assert told >= 64 and begin >= 0
    assert len(data) - begin <= max(100, 4 * (zeros + 300))
    short = HAClient(MemoryLog(bytes(2000)), ClientSettings(verify_bytes=100))
    short.connected(0.0)
    assert REPORT.unpack(short.take_output()) == (1,), (
        "all zeros: from the beginning, which is asked for as 1"
    )


def test_64_kib_are_compared_unless_somebody_says_otherwise() -> None:
    data = b"\1" * 300_000
    client = HAClient(MemoryLog(data), ClientSettings())
    client.connected(0.0)
    assert REPORT.unpack(client.take_output()) == (300_000 - 65_536,)


def again(client: HAClient, log: MemoryLog) -> None:
    """Another connection, with the same master."""
    client.lost("the connection broke")
    client.connected(10.0)
    assert (client.master_offset, client.is_following) == (-1, False)
    (begin,) = REPORT.unpack(client.take_output())
    client.received(framed(begin, bytes(log.data[begin:])), 10.0)
    client.take_output()


def test_half_a_record_is_forgotten_with_its_connection() -> None:
    log = MemoryLog(LOG)
    client = following(log)
    more = records(2, base=len(LOG))
    client.received(framed(len(LOG), more)[: HEADER.size + SIZE // 2], 1.0)
    client.tick(6.0)
    again(client, log)
    client.received(framed(len(LOG), more), 10.0)
    assert (bytes(log.data), client.closed_because) == (LOG + more, "")
    client.received(HEADER.pack(len(LOG) + 2 * SIZE, 0)[:5], 11.0)
    again(client, log)
    assert client.closed_because == "" and client.is_following


def test_trouble_is_over_when_the_master_sends() -> None:
    log = MemoryLog()
    client = HAClient(log, ClientSettings())
    client.lost("connection refused")
    assert (client.trouble, client.trouble_text) == (Trouble.UNREACHABLE, "connection refused")
    client.connected(0.0)
    assert REPORT.unpack(client.take_output()) == (1,)
    client.received(HEADER.pack(1, SIZE - 1) + records(1)[1:], 0.0)
    assert (bytes(log.data), client.trouble, client.trouble_text) == (records(1), Trouble.NONE, "")


def test_what_is_reported_has_been_brought_to_the_disk() -> None:
    log = MemoryLog(LOG)
    client = following(log)
    before = log.synced
    client.received(framed(len(LOG), records(1, base=len(LOG))), 1.0)
    assert log.synced == before + 1 and client.take_output() == REPORT.pack(len(LOG) + SIZE)


def test_a_connection_begins_with_where_to_begin() -> None:
    """Its master takes the first report for that, so nothing that was left to say may come before it."""
    client = HAClient(MemoryLog(LOG), ClientSettings())
    client.connected(0.0)
    client.tick(6.0)
    client.connected(7.0)
    assert len(client.take_output()) == REPORT.size


def test_a_connection_that_could_not_be_made_changes_nothing_of_the_next() -> None:
    """Only a master that sent nothing from there may have deleted the file before."""
    data = records(100)
    client = HAClient(MemoryLog(data, file_size=len(data)), ClientSettings(verify_bytes=500))
    assert (client.master_offset, client.is_following) == (-1, False)
    for _ in range(3):
        client.lost("connection refused")
        client.connected(0.0)
        assert REPORT.unpack(client.take_output()) == (len(data) - 500,)
        client.received(framed(len(data) - 500, data[-500:]), 0.0)
        client.lost("the connection broke")
    client.connected(0.0)
    client.lost("the connection broke")
    client.connected(0.0)
    assert REPORT.unpack(client.take_output()) == (len(data),), "without the file that it may not have"


def test_an_empty_slave_takes_the_masters_last_file_where_it_begins() -> None:
    """And nothing that begins elsewhere, which would be no start of a file."""
    for offset, is_taken in ((8192, True), (8193, False)):
        log = MemoryLog(file_size=4096)
        client = HAClient(log, ClientSettings(), first_offset=lambda: -1)
        client.connected(0.0)
        assert REPORT.unpack(client.take_output()) == (0,)
        client.received(framed(offset, records(2, base=offset)), 0.0)
        assert (log.data, log.min_offset) == ((records(2, base=8192), 8192) if is_taken else (b"", 0))
        assert ("no start of a file of 4096 bytes" in client.closed_because) is not is_taken


def test_a_connection_that_is_closed_has_no_room() -> None:
    log = MemoryLog(LOG)
    client = following(log, in_place_min=SIZE)
    client.received(HEADER.pack(len(LOG), 3 * SIZE), 1.0)
    assert client.room() is not None
    client.tick(30.0)
    assert client.closed_because and client.room() is None


def test_what_was_received_in_the_last_second_is_told() -> None:
    client = following(MemoryLog(LOG), in_place_min=SIZE)
    client.received(HEADER.pack(len(LOG), 3 * SIZE), 1.0)
    give(client, records(3, base=len(LOG)), 1.5)
    assert client.flow.transferred_byte_in_second(2.0) == HEADER.size + 3 * SIZE


def test_what_would_have_to_be_cut_is_told() -> None:
    log = MemoryLog(LOG)
    client = HAClient(log, ClientSettings(verify_bytes=1000))
    client.connected(0.0)
    (begin,) = REPORT.unpack(client.take_output())
    theirs = bytearray(LOG[begin:])
    theirs[100] ^= 1
    client.received(framed(begin, bytes(theirs)), 0.0)
    said = f"other bytes at offset {begin + 100}; the last {len(LOG) - begin - 100} bytes, up to {len(LOG)}, or more"
    assert client.trouble is Trouble.DIVERGED and said in client.closed_because


@pytest.mark.parametrize("by_room", [False, True])
def test_a_record_that_is_larger_than_any_before(monkeypatch: pytest.MonkeyPatch, by_room: bool) -> None:
    """What has come of it stays in its order while room is made, and the room is given back with the connection."""
    monkeypatch.setattr(ha_client, "PARTIAL_BYTES", 64)
    partial, sent = ha_client._Partial(), bytes(range(256)) * 4

    def add(data: bytes) -> None:
        if not by_room:
            partial.add(memoryview(data))
            return
        while data:
            room = partial.room(len(data))
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            partial.grow(taken)
            data = data[taken:]

    add(sent[:60])
    partial.drop(10)
    for at in range(60, 1000, 47):
        add(sent[at : min(at + 47, 1000)])
        assert partial.view() == sent[10 : min(at + 47, 1000)]
    partial.drop(990)
    assert len(partial) == 0 and len(partial._buffer) > 64
    partial.clear()
    assert len(partial._buffer) == 64


@pytest.mark.parametrize("piece", [1, 7, SIZE - 1, SIZE + HEADER.size, 10 * SIZE])
def test_no_bytes_are_given_to_the_log_across_a_files_end(piece: int) -> None:
    """A file ends with a blank, after which the next record has to be looked for in the next file."""

    class Watched(MemoryLog):
        def append(self, offset: int, data: memoryview) -> tuple[int, int]:
            assert offset % self.file_size + len(data) <= self.file_size
            return super().append(offset, data)

    log = Watched(LOG, file_size=len(LOG) + 2 * SIZE)
    client = following(log)
    more = records(6, base=len(LOG))
    frames = framed(len(LOG), more[: 2 * SIZE]) + framed(len(LOG) + 2 * SIZE, more[2 * SIZE :])
    for at in range(0, len(frames), piece):
        client.received(frames[at : at + piece], 1.0)
    assert (bytes(log.data), client.closed_because) == (LOG + more, "")
    assert sum(size for _, size in log.appends) == len(more)
