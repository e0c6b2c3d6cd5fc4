"""The master's end: what it sends, and which reports count. The frames are those that Java's master sends."""

import pytest

from mqlake.remoting.codec import encode_frame
from mqlake.remoting.command import RemotingCommand
from mqlake.store.ha.ha_connection import ConnectionSettings, HAConnection
from mqlake.store.ha.protocol import HEADER, REPORT
from tests.store.ha.logs import MemoryLog

FILE = 65536
END = 240335


def connected(report: int, log: MemoryLog | None = None, **settings: object) -> HAConnection:
    log = log or MemoryLog(bytes(END), file_size=FILE)
    connection = HAConnection(log, ConnectionSettings(**settings), 0.0)  # type: ignore[arg-type]
    connection.received(REPORT.pack(report), 0.0)
    return connection


def headers(connection: HAConnection, now: float = 0.0) -> list[tuple[int, int]]:
    return [HEADER.unpack(part) for part in connection.output(now) if len(part) == HEADER.size]


@pytest.mark.parametrize(
    ("report", "from_last_file", "expected"),
    [
        (0, True, [(196608, 32768), (229376, 10959)]),
        (0, False, [(0, 32768), (32768, 32768), (65536, 32768)]),
        (1, False, [(1, 32768), (32769, 32767), (65536, 32768)]),
        (100000, False, [(100000, 31072), (131072, 32768)]),
    ],
)
def test_frames_are_those_of_java(report: int, from_last_file: bool, expected: list[tuple[int, int]]) -> None:
    assert headers(connected(report, from_last_file=from_last_file))[: len(expected)] == expected


def test_a_slave_far_behind_gets_large_frames() -> None:
    connection = connected(END - 40_000, MemoryLog(bytes(END)), transfer_batch_size=1000)
    sizes = [size for _, size in headers(connection)]
    assert sizes == [32_000, *[1000] * 8]


def test_a_slave_that_has_all_gets_a_heartbeat_after_the_interval() -> None:
    connection = connected(END)
    assert connection.next_time(0.0) == 5.0
    assert headers(connection, 4.9) == []
    assert headers(connection, 5.0) == [(END, 0)]
    assert headers(connection, 5.1) == []


def test_nothing_is_sent_before_the_first_report() -> None:
    connection = HAConnection(MemoryLog(bytes(END)), ConnectionSettings(), 0.0)
    assert connection.output(100.0) == []
    connection.received(REPORT.pack(0)[:5], 0.0)
    assert connection.slave_request_offset == -1
    connection.received(REPORT.pack(0)[5:], 0.0)
    assert connection.slave_request_offset == 0


@pytest.mark.parametrize("report", [-5, -1, END + 1, 10**9, int.from_bytes(b"GET / HT", "big")])
def test_a_report_of_what_this_log_never_had_does_not_count(report: int) -> None:
    connection = connected(report)
    assert str(report) in connection.closed_because
    assert connection.slave_ack_offset == -1
    assert connection.output(100.0) == []


def test_a_client_of_another_port_is_not_taken_for_a_slave_that_is_ahead() -> None:
    connection = HAConnection(MemoryLog(bytes(END)), ConnectionSettings(), 0.0)
    connection.received(encode_frame(RemotingCommand(28)), 0.0)
    assert "commands, which belong to listenPort" in connection.closed_because
    assert "ahead" not in connection.closed_because
    assert connection.slave_ack_offset == -1


def test_a_later_report_beyond_the_end_does_not_count_either() -> None:
    connection = connected(1000)
    connection.received(REPORT.pack(END + 1), 1.0)
    assert "ahead of this master by 1 bytes" in connection.closed_because
    assert connection.slave_ack_offset == 1000


def test_reports_never_go_back() -> None:
    connection = connected(1000)
    connection.received(REPORT.pack(999), 1.0)
    assert connection.closed_because


def test_a_slave_below_the_beginning_is_told_by_the_end_of_its_connection() -> None:
    connection = connected(100, MemoryLog(bytes(1000), min_offset=FILE, file_size=FILE))
    assert connection.output(0.0) == []
    assert f"this log begins at {FILE}" in connection.closed_because


def test_flow_control_counts_bytes_and_waits_for_the_next_second() -> None:
    connection = connected(1, bytes_per_second=50_000)
    assert sum(size for _, size in headers(connection)) == 50_000
    assert headers(connection, 0.9) == []
    assert connection.next_time(0.9) == 1.0
    assert sum(size for _, size in headers(connection, 1.0)) == 50_000


def test_in_sync_is_a_matter_of_bytes() -> None:
    connection = connected(END - 100)
    assert connection.is_in_sync(101)
    assert not connection.is_in_sync(100)


def test_the_first_report_says_where_to_begin_and_counts_for_no_put() -> None:
    """A slave that was ahead of this master, and whose bytes are other ones, reports what this log has by now."""
    connection = connected(END - 300)
    assert (connection.slave_ack_offset, connection.confirmed_offset) == (END - 300, -1)
    connection.received(REPORT.pack(END - 300), 1.0)  # still comparing
    assert connection.confirmed_offset == -1
    connection.received(REPORT.pack(END), 2.0)
    assert connection.confirmed_offset == END


def test_a_superseded_connection_counts_again_when_it_goes_on_reporting() -> None:
    """What its slave had sent before it connected anew may come late, all at once."""
    connection = connected(100)
    connection.received(REPORT.pack(200), 1.0)
    connection.supersede()
    for now in (9.0, 9.1, 10.0):
        connection.received(REPORT.pack(300), now)
        assert connection.is_superseded
    connection.received(REPORT.pack(400), 12.0)
    assert not connection.is_superseded


def reported(connection: HAConnection, offset: int, now: float = 1.0) -> None:
    connection.received(REPORT.pack(offset), now)


def test_an_empty_slave_may_begin_one_byte_into_an_empty_log() -> None:
    """A report of 0 asks Java's master for its last file, so our slave says 1."""
    connection = connected(1, MemoryLog(file_size=FILE))
    assert (connection.closed_because, connection.slave_ack_offset) == ("", 0)
    assert connected(2, MemoryLog(file_size=FILE)).closed_because


@pytest.mark.parametrize("report", [END + 1, -1])
def test_who_is_ahead_and_who_is_no_slave_are_told_apart(report: int) -> None:
    text = connected(report).closed_because
    assert ("ahead of this master by 1 bytes" in text) == (report > 0)
    assert ("no slave speaks like this" in text) == (report < 0)


def test_reports_that_come_together_count_up_to_the_wrong_one() -> None:
    told: list[int] = []
    connection = HAConnection(
        MemoryLog(bytes(END)),
        ConnectionSettings(),
        0.0,
        on_report=lambda: told.append(connection.slave_ack_offset),
    )
    connection.received(b"".join(map(REPORT.pack, (10, 20, 20))), 0.0)
    assert (told, connection.slave_ack_offset) == ([20], 20)
    connection.received(b"".join(map(REPORT.pack, (30, 29, 40))), 0.0)
    assert (told, connection.slave_ack_offset) == ([20], 30)
    assert "it reports offset 29 after 30" in connection.closed_because


def test_pieces_of_reports_are_kept_until_they_are_whole() -> None:
    told: list[None] = []
    connection = HAConnection(
        MemoryLog(bytes(END)), ConnectionSettings(), 0.0, on_report=lambda: told.append(None)
    )
    data = REPORT.pack(10) + REPORT.pack(20)
    for at, count, offset in ((3, 0, -1), (11, 1, 10), (16, 2, 20)):
        connection.received(data[{3: 0, 11: 3, 16: 11}[at] : at], 0.0)
        assert (len(told), connection.slave_ack_offset) == (count, offset)


def test_what_a_put_waits_for_is_behind_where_the_slave_began() -> None:
    connection = connected(0)
    assert (connection.confirmed_offset, connection.needed_from) == (-1, 0)
    reported(connection, 1)
    assert (connection.confirmed_offset, connection.needed_from) == (1, 1)
    late = connected(0, MemoryLog(bytes(1000), min_offset=FILE, file_size=FILE))
    assert (late.slave_ack_offset, late.needed_from) == (0, FILE), "the file before is needed no more"


@pytest.mark.parametrize(("log_size", "begins"), [(FILE, FILE), (FILE - 1, 0), (FILE + 1, FILE)])
def test_the_last_file_is_the_one_that_the_log_ends_in(log_size: int, begins: int) -> None:
    connection = connected(0, MemoryLog(bytes(log_size), file_size=FILE), from_last_file=True)
    assert connection.next_transfer_offset == begins


def test_frames_end_where_the_log_and_its_files_end() -> None:
    log = MemoryLog(bytes(range(256)) * 1000, file_size=FILE)
    connection = connected(FILE - 100, log, transfer_batch_size=60)
    parts = connection.output(0.0)
    frames = [(HEADER.unpack(bytes(a)), bytes(b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    at = FILE - 100
    for (offset, size), data in frames:
        assert (offset, size) == (at, len(data)) and data == bytes(log.data[at : at + size])
        assert offset // FILE == (offset + size - 1) // FILE
        at += size
    assert at == log.max_offset == connection.next_transfer_offset
    assert connection.output(0.0) == []


def test_a_megabyte_is_given_at_once() -> None:
    """Reports and other connections have their turn after it."""
    log = MemoryLog(bytes(3 << 20), file_size=1 << 30)
    connection = connected(1, log)
    assert sum(size for _, size in headers(connection)) == 1 << 20
    assert connection.next_time(0.0) == 0.0, "there is more"
    assert sum(size for _, size in headers(connection)) == 1 << 20


@pytest.mark.parametrize(("lacking", "first"), [(31_999, 1000), (32_000, 32_000), (32_001, 32_000)])
def test_large_frames_begin_at_32_small_ones(lacking: int, first: int) -> None:
    connection = connected(END - lacking, MemoryLog(bytes(END), file_size=1 << 20), transfer_batch_size=1000)
    assert headers(connection)[0] == (END - lacking, first)


def test_a_heartbeat_waits_for_the_interval_after_what_was_sent_last() -> None:
    log = MemoryLog(bytes(1000))
    connection = connected(1, log)
    assert headers(connection, 3.0) == [(1, 999)]
    assert connection.next_time(3.0) == 8.0
    assert headers(connection, 7.9) == []
    assert headers(connection, 8.0) == [(1000, 0)]


def test_a_silent_slave_is_left_after_the_interval_and_why_is_said_once() -> None:
    connection = connected(END, housekeeping_s=20.0)
    reported(connection, END, 10.0)
    assert connection.next_time(100.0) == 5.0
    connection.tick(30.0)
    assert connection.closed_because == ""
    connection.tick(30.1)
    assert connection.closed_because == "no report for more than 20 s (haHousekeepingInterval)"
    wrong = connected(END + 5)
    before = wrong.closed_because
    wrong.tick(1000.0)
    assert wrong.closed_because == before


def test_before_its_first_report_a_slave_is_only_waited_for() -> None:
    connection = HAConnection(MemoryLog(bytes(END)), ConnectionSettings(), 0.0, peer="10.0.0.7:40000")
    assert (connection.host, connection.next_time(0.0)) == ("10.0.0.7", 20.0)
    assert not connection.is_in_sync(1 << 40), "nobody has reported anything"


def test_a_superseded_slave_that_pauses_less_than_half_an_interval_stays_so() -> None:
    connection = connected(100)
    connection.supersede()
    for now, superseded in ((10.0, True), (12.4, True), (12.5, False)):
        reported(connection, 100, now)
        assert connection.is_superseded is superseded
    connection.supersede()
    reported(connection, 100, 20.0)
    assert connection.is_superseded, "the time counts from the first report after it"
