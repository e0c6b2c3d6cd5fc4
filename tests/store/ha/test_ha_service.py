"""The master's port: over sockets, with a slave of ours and with sockets of the test."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import ConfigError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.ha.ha_client import Trouble
from mqlake.store.ha.ha_service import HAService
from mqlake.store.ha.protocol import HEADER, REPORT
from mqlake.store.results import PutMessageStatus
from tests.store.ha.pair import Node, node, wait_equal
from tests.store.small_store import message
from tests.waiting import PATIENCE_S, until, until_async


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "master") as opened:
        for number in range(100):
            opened.store.put_message(message(number))
        yield opened


def log_bytes(root: Path) -> bytes:
    """All of the log, without files that were allocated ahead."""
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir())).rstrip(b"\0")


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def dial(master: Node, report: int | None = None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", master.ha.port), 10)
    if report is not None:
        sock.sendall(REPORT.pack(report))
    return sock


def test_a_slave_follows_through_rolled_files_and_has_the_same_ones(tmp_path: Path, master: Node) -> None:
    with node(tmp_path / "slave", brokerRole="SLAVE") as slave:
        slave.follow(master.address)
        for number in range(100, 400):
            master.store.put_message(message(number))
        wait_equal(master, slave)
        assert slave.store.wait_until_dispatched(PATIENCE_S)
        assert master.store.wait_until_dispatched(PATIENCE_S)
        until(lambda: [status.diff for status in master.ha.statuses()] == [0])
        assert master.ha.statuses()[0].in_sync
    assert log_bytes(tmp_path / "slave") == log_bytes(tmp_path / "master") != b""


def test_two_slaves_and_a_chain(tmp_path: Path, master: Node) -> None:
    with (
        node(tmp_path / "a", brokerRole="SLAVE") as a,
        node(tmp_path / "b", brokerRole="SLAVE") as b,
        node(tmp_path / "c", brokerRole="SLAVE") as c,
    ):
        a.follow(master.address)
        b.follow(master.address)
        c.follow(b.address)  # a slave's port serves its log, too
        wait_equal(master, a)
        wait_equal(master, c)
        # of one host: the older connection counts again when it has gone on reporting for a while
        until(lambda: master.ha.in_sync_slaves == 2)


def test_what_slaves_need_is_known_from_their_first_report_on(master: Node) -> None:
    assert master.ha.needed_from() is None
    end = master.store.max_phy_offset
    with dial(master, 100) as slow, dial(master, end):
        until(lambda: len(master.ha.statuses()) == 2)
        assert master.ha.needed_from() == 100
        slow.sendall(REPORT.pack(300))
        until(lambda: master.ha.needed_from() == 300)
        assert {each.before_deletion for each in master.ha.statuses()} == {300, end}
    until(lambda: master.ha.needed_from() is None)


def test_a_silent_slave_and_a_probe_cost_nothing(master: Node) -> None:
    for _ in range(20):
        dial(master).close()
    with dial(master), dial(master, 0) as slow:
        assert HEADER.unpack(slow.recv(HEADER.size)) == (0, 16384)
        until(lambda: len(master.ha.statuses()) == 1)
    until(lambda: not master.ha.statuses())


@pytest.mark.parametrize("report", [REPORT.pack(1 << 40), REPORT.pack(-1), b"GET / HTTP/1.1\r\n\r\n"])
def test_a_lie_ends_the_connection_and_counts_for_nothing(master: Node, report: bytes) -> None:
    with dial(master) as liar:
        liar.sendall(report)
        assert ended(liar)
        assert master.ha.ack_offsets() == []


def test_the_same_host_counts_once_until_the_older_connection_goes_on(tmp_path: Path) -> None:
    with node(tmp_path / "m", haSendHeartbeatInterval=20) as master:
        for number in range(10):
            master.store.put_message(message(number))
        with dial(master, 100) as old:
            old.sendall(REPORT.pack(200))
            until(lambda: master.ha.ack_offsets() == [200])
            with dial(master, 50) as new:
                new.sendall(REPORT.pack(100))
                until(lambda: master.ha.ack_offsets() == [100])

                def both_count() -> bool:
                    old.sendall(REPORT.pack(300))
                    return sorted(master.ha.ack_offsets()) == [100, 300]

                until(both_count)


def test_only_the_addresses_allowed_may_connect(tmp_path: Path) -> None:
    with (
        node(tmp_path / "m", haAllowedAddresses="10.1.0.0/16;192.168.3.4") as master,
        dial(master, 0) as sock,
    ):
        assert ended(sock)
    with node(tmp_path / "n", haAllowedAddresses="127.0.0.0/8") as master:
        master.store.put_message(message(0))
        with dial(master, 1) as sock:
            assert HEADER.unpack(sock.recv(HEADER.size))[0] == 1


def test_a_port_in_use_is_an_error_with_its_key(master: Node) -> None:
    other = HAService(MessageStoreConfig(), master.store.commit_log_files)
    with pytest.raises(ConfigError, match="haListenPort"):
        other.bind("127.0.0.1", master.ha.port)
    other.shutdown()


def test_sync_master_answers_when_the_slave_has_it(tmp_path: Path) -> None:
    with (
        node(tmp_path / "m", brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=60_000) as master,
        node(tmp_path / "s", brokerRole="SLAVE") as slave,
    ):
        results = []
        putting = threading.Thread(
            target=lambda: results.extend(master.store.put_message(message(n)) for n in range(50))
        )
        putting.start()
        slave.follow(master.address)
        putting.join(30)
        assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 50
        assert slave.store.max_phy_offset == master.store.max_phy_offset


def test_an_event_loop_reads_the_reports_that_its_puts_wait_for(tmp_path: Path) -> None:
    role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 60_000}

    async def put_all(master: Node, first: int) -> None:
        for number in range(first, first + 40):
            futures = [master.store.async_put_message(message(4 * number + each)) for each in range(4)]
            assert {(await future).status for future in futures} == {PutMessageStatus.PUT_OK}

    async def scene(master: Node, slave: Node) -> None:
        service = slave.follow(master.address)
        await put_all(master, 0)
        [peer] = master.ha._peers
        assert peer.loop is asyncio.get_running_loop()
        await asyncio.to_thread(service.shutdown)
        await until_async(lambda: not master.ha.statuses() and peer.sock.fileno() == -1)
        slave.follow(master.address)
        await put_all(master, 40)
        [peer] = master.ha._peers
        await asyncio.to_thread(master.ha.shutdown)
        await until_async(lambda: peer.sock.fileno() == -1)

    with node(tmp_path / "m", **role) as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
        asyncio.run(scene(master, slave))
        assert slave.store.max_phy_offset == master.store.max_phy_offset


def test_sync_master_says_when_no_slave_has_it(tmp_path: Path) -> None:
    role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 50}
    with node(tmp_path / "m", **role) as master:
        assert master.store.put_message(message(0)).status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        careless = message(1)
        careless.wait_store_msg_ok = False
        assert master.store.put_message(careless).is_ok
    with node(tmp_path / "n", **role, slaveNotAvailableAtOnce=True) as master:
        assert master.store.put_message(message(0)).status is PutMessageStatus.SLAVE_NOT_AVAILABLE
    with node(tmp_path / "o", **role, minInSyncReplicas=2) as master:
        result = master.store.put_message(message(0))
        assert result.status is PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert master.store.max_phy_offset == 0
    with node(tmp_path / "p", **role, enableAutoInSyncReplicas=True) as master:
        assert master.store.put_message(message(0)).is_ok


def test_sync_flush_and_sync_master_wait_for_both(tmp_path: Path) -> None:
    role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "flushDiskType": "SYNC_FLUSH"}
    with (
        node(tmp_path / "m", **role) as master,
        node(tmp_path / "s", brokerRole="SLAVE", flushDiskType="SYNC_FLUSH") as slave,
    ):
        slave.follow(master.address)
        until(lambda: master.ha.statuses() != [] or slave.clients[0].client.trouble is Trouble.NONE)
        futures = [master.store.async_put_message(message(number)) for number in range(100)]
        assert {future.result().status for future in futures} == {PutMessageStatus.PUT_OK}
        end = master.store.max_phy_offset
        assert master.store.flushed_where == slave.store.flushed_where == end
