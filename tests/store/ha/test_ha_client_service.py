"""The thread of a slave: connects, connects again, follows another address."""

import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqlake.store.ha.ha_client import Trouble
from tests.store.ha.pair import node, wait_equal
from tests.store.small_store import fill, message
from tests.waiting import PATIENCE_S, until


def test_it_waits_for_its_master_and_survives_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with node(tmp_path / "s", brokerRole="SLAVE") as slave:
        client = slave.follow(f"127.0.0.1:{port}")
        until(lambda: client.client.trouble is Trouble.UNREACHABLE)
        for round_number in range(3):
            with node(tmp_path / "m") as master:
                client.set_master_address(master.address)
                client.retry_now()
                for number in range(50):
                    master.store.put_message(message(50 * round_number + number))
                wait_equal(master, slave)
        assert slave.store.wait_until_dispatched(PATIENCE_S)
        assert slave.store.max_offset_in_queue("Orders", 0) == 38


def test_catching_up_in_large_frames(tmp_path: Path) -> None:
    """Records are received where they belong, with the incomplete ones between frames, and files that end anywhere."""
    size = {"mappedFileSizeCommitLog": 3 << 20}
    with node(tmp_path / "m", **size) as master, node(tmp_path / "s", brokerRole="SLAVE", **size) as slave:
        for number in range(2000):
            master.store.put_message(message(number, body_size=4000 + number % 7))
        client = slave.follow(master.address)
        wait_equal(master, slave)
        logs = [
            b"".join(file.array.tobytes() for file in each.store.commit_log_files.mapped_files)
            for each in (master, slave)
        ]
        assert logs[0][: master.store.max_phy_offset] == logs[1][: master.store.max_phy_offset]
        assert client.client.current_reported_offset == master.store.max_phy_offset > 8_000_000


def test_without_puts_that_wait_it_reports_and_then_lets_more_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, over = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        pauses.set()
        over.wait(seconds * 1e9)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr("mqlake.store.ha.ha_client_service.time", clock)
    with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        master.store.put_message(message(0))
        first = master.store.max_phy_offset
        client = slave.follow(master.address)
        client.is_awaited = lambda: False
        assert pauses.wait(PATIENCE_S)
        until(lambda: master.ha.ack_offsets() == [first], "what it has it has reported")
        for number in range(1, 20):
            master.store.put_message(message(number))
        until(lambda: master.ha.statuses()[0].transfer_from_where == master.store.max_phy_offset)
        assert slave.store.max_phy_offset == first
        over.set()
        wait_equal(master, slave)


def test_far_behind_it_makes_no_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the two: what has come is received, and what is there is sent."""
    size = {"mappedFileSizeCommitLog": 8 << 20}
    pauses: list[str] = []

    def clock(who: str) -> SimpleNamespace:
        return SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pauses.append(who))

    with node(tmp_path / "m", **size) as master, node(tmp_path / "s", brokerRole="SLAVE", **size) as slave:
        for number in range(1000):
            master.store.put_message(message(number, body_size=5000))
        until(lambda: master.ha._sleeping)
        monkeypatch.setattr("mqlake.store.ha.ha_client_service.time", clock("slave"))
        monkeypatch.setattr("mqlake.store.ha.ha_service.FAR_BYTES", 0)
        monkeypatch.setattr("mqlake.store.ha.ha_service.time", clock("master"))
        client = slave.follow(master.address)
        client.is_awaited = lambda: False
        client.lacking = lambda: max(master.store.max_phy_offset - slave.store.max_phy_offset, 1 << 20)
        wait_equal(master, slave)
    assert not pauses


def test_it_connects_when_it_may(tmp_path: Path) -> None:
    may, asked = False, threading.Event()

    def may_connect() -> bool:
        asked.set()
        return may

    with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        master.store.put_message(message(0))
        client = slave.follow("")
        client.may_connect = may_connect
        client.set_master_address(master.address)
        assert asked.wait(PATIENCE_S)
        assert not master.ha.statuses()
        may = True
        client.retry_now()
        wait_equal(master, slave)


def test_a_port_that_speaks_something_else_changes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        client = slave.follow(f"127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            until(lambda: client.client.trouble is Trouble.REFUSED)
        assert slave.store.max_phy_offset == 0


def test_a_slave_of_another_log_says_where_it_differs(tmp_path: Path) -> None:
    fill(tmp_path / "s", 1000, 100)
    with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        for number in range(100):
            master.store.put_message(message(number))
        client = slave.follow(master.address)
        until(lambda: client.client.trouble in (Trouble.DIVERGED, Trouble.AHEAD))
        assert client.client.diverged_at is not None
        assert "would have to be cut" in client.client.trouble_text


def test_bandwidth_is_held_by_reading_less(tmp_path: Path) -> None:
    with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        for number in range(200):
            master.store.put_message(message(number))
        client = slave.follow(master.address, bandwidth=10 << 20)
        wait_equal(master, slave)
        assert client.client.flow.allowance(0.0) is None
        assert slave.store.max_phy_offset > 0
