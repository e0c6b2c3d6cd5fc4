"""RocketMQ's known faults of replication, each with the number it has in its tracker: what the Java master 5.3.3 does
when a slave of this test speaks to it, live, and what mqlake's does.

docs/reliability.md is the table; its last column names these tests.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.message import MessageExtBrokerInner
from mqlake.store.ha.protocol import HEADER, REPORT
from mqlake.store.results import PutMessageStatus
from tests.interop.java_peer import SMALL_FILES, JavaStore, Json, OpenJavaStore, put
from tests.ports import free_port
from tests.store.ha.pair import Node, node
from tests.waiting import PATIENCE_S, trying, until

FILE_SIZE = SMALL_FILES["mappedFileSizeCommitLog"]
FAR_AHEAD = 10**9
BODY = 5000
"""Bytes; a dozen such messages fill a file."""


@contextlib.contextmanager
def java_master(java_store: JavaStore, root: Path, **settings: object) -> Iterator[tuple[OpenJavaStore, int]]:
    port = free_port()
    config = {**SMALL_FILES, "haListenPort": port, "haSendHeartbeatInterval": 200, **settings}
    with java_store.open(root, config) as java:
        yield java, port


@contextlib.contextmanager
def mqlake_master(root: Path, **settings: object) -> Iterator[Node]:
    with node(root, mappedFileSizeCommitLog=FILE_SIZE, haSendHeartbeatInterval=200, **settings) as master:
        yield master


def slave_of(port: int, report: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    sock.sendall(REPORT.pack(report))
    return sock


def next_frame(sock: socket.socket) -> tuple[int, int] | None:
    """Offset and size of what the master sends next; None when it closes instead."""
    head = b""
    while len(head) < HEADER.size:
        data = sock.recv(HEADER.size - len(head))
        if not data:
            return None
        head += data
    offset, size = HEADER.unpack(head)
    left = size
    while left and (data := sock.recv(left)):
        left -= len(data)
    return offset, size


def follow(sock: socket.socket) -> None:
    """Reports all that comes, as if it were stored."""
    with contextlib.suppress(OSError):
        while (frame := next_frame(sock)) is not None:
            sock.sendall(REPORT.pack(sum(frame)))


def is_closed(sock: socket.socket) -> bool:
    for _ in trying("the other end closes"):
        try:
            if not sock.recv(1 << 16):
                break
        except ConnectionResetError:
            break
    return True


def filled(count: int) -> list[Json]:
    return [put("T", seed=n, size=BODY) for n in range(count)]


def fill(master: Node, count: int) -> None:
    for _ in range(count):
        assert master.store.put_message(MessageExtBrokerInner("T", bytes(BODY))).is_ok


class TestReportBeyondTheEnd:
    """#1155 #3015: a report of more than the master has acknowledges puts that no slave has."""

    SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 2000}  # noqa: RUF012

    @pytest.mark.nightly
    def test_java(self, java_store: JavaStore, tmp_path: Path) -> None:
        with java_master(java_store, tmp_path, **self.SYNC) as (java, port):
            (alone,) = java.put(filled(1))
            assert alone["status"] == "FLUSH_SLAVE_TIMEOUT"
            with slave_of(port, FAR_AHEAD) as liar:
                assert next_frame(liar) == (FAR_AHEAD, 0)
                (result,) = java.put(filled(1))
            assert result["status"] == "PUT_OK"

    def test_mqlake(self, tmp_path: Path) -> None:
        with (
            mqlake_master(tmp_path, totalReplicas=2, **self.SYNC) as master,
            slave_of(master.ha.port, FAR_AHEAD) as liar,
        ):
            assert is_closed(liar)
            result = master.store.put_message(MessageExtBrokerInner("T", b"body"))
            assert result.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT


class TestBelowTheBeginning:
    """#3388: a slave that needs a file which the master has deleted waits for ever, and nobody says so."""

    @pytest.mark.nightly
    def test_java(self, java_store: JavaStore, tmp_path: Path) -> None:
        with java_master(java_store, tmp_path) as (java, _):
            java.put(filled(30))
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        with java_master(java_store, tmp_path) as (_, port), slave_of(port, 100) as slave:
            assert [next_frame(slave) for _ in range(3)] == [(100, 0)] * 3

    def test_mqlake(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with mqlake_master(tmp_path) as master:
            fill(master, 30)
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        with mqlake_master(tmp_path) as master, slave_of(master.ha.port, 100) as slave:
            assert is_closed(slave)
            until(lambda: f"this log begins at {FILE_SIZE}" in caplog.text)


class TestNewSlave:
    """#3661 #9580: a new slave gets the last file only, and has no more when the master is lost."""

    @pytest.mark.nightly
    def test_java(self, java_store: JavaStore, tmp_path: Path) -> None:
        with java_master(java_store, tmp_path) as (java, port):
            java.put(filled(30))
            with slave_of(port, 0) as slave:
                first = next_frame(slave)
            assert first is not None
            assert first[0] == 2 * FILE_SIZE

    def test_mqlake(self, tmp_path: Path) -> None:
        with mqlake_master(tmp_path) as master:
            fill(master, 30)
            with slave_of(master.ha.port, 0) as slave:
                first = next_frame(slave)
            assert first is not None
            assert first[0] == 0


class TestOtherBytesInTheSamePlace:
    """A master that lost its end and goes on: its slave appends to a tail that is not its master's, without a word, and
    acknowledges puts. The slave of this test reports, as RocketMQ's does, where its own log ends."""

    @pytest.mark.nightly
    def test_java(self, java_store: JavaStore, tmp_path: Path) -> None:
        sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 2000}
        with java_master(java_store, tmp_path, **sync) as (java, port):
            stored = java.put(filled(3))
            end = stored[-1]["wroteOffset"] + stored[-1]["wroteBytes"]
            # a slave with other messages before that end, which nobody compares
            with slave_of(port, end) as slave:
                following = threading.Thread(target=follow, args=(slave,))
                following.start()
                results = java.put(filled(2))
                slave.shutdown(socket.SHUT_RDWR)
                following.join()
            assert results[-1]["status"] == "PUT_OK"

    def test_mqlake_master(self, tmp_path: Path) -> None:
        sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2, "slaveTimeout": 2000}
        with mqlake_master(tmp_path, **sync) as master:
            master.store.put_message(MessageExtBrokerInner("T", bytes(BODY)))
            # in the range of the log, and still not a word for what is before it
            with slave_of(master.ha.port, master.store.max_phy_offset) as slave:
                until(lambda: master.ha.statuses())
                result = master.store.put_message(MessageExtBrokerInner("T", bytes(BODY)))
                assert result.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                assert slave.fileno() >= 0

    def test_mqlake_slave(self, tmp_path: Path) -> None:
        with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="ASYNC_MASTER") as other:
            for each, body in ((master, b"master"), (other, b"others")):
                for _ in range(3):
                    each.store.put_message(MessageExtBrokerInner("T", body))
        with node(tmp_path / "m") as master, node(tmp_path / "s", brokerRole="SLAVE") as slave:
            fill_small(master)
            before = slave.store.max_phy_offset
            service = slave.follow(master.address)
            until(lambda: "not its master's" in service.client.trouble_text)
            assert slave.store.max_phy_offset == before


def fill_small(master: Node) -> None:
    for _ in range(5):
        master.store.put_message(MessageExtBrokerInner("T", b"later"))
