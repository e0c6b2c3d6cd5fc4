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
