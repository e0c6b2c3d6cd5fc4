"""The operations that failover needs, on three real members of etcd."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from mqlake.broker.failover.etcd import Etcd
from mqlake.errors import FailoverError, FailoverUnavailableError
from tests.broker.failover.etcd_cluster import EtcdCluster
from tests.waiting import trying


def test_a_value_is_swapped_only_at_the_version_that_was_read(etcd: EtcdCluster) -> None:
    client, other = etcd.client(), etcd.client()
    assert client.read("/t/swap") == (None, 0)
    version = client.swap("/t/swap", b"\x00one", 0)
    assert version
    assert other.read("/t/swap") == (b"\x00one", version)
    assert other.swap("/t/swap", b"two", 0) == other.swap("/t/swap", b"two", version - 1) == 0
    assert (later := other.swap("/t/swap", b"two", version)) > version
    assert client.swap("/t/swap", b"three", version) == 0
    assert client.read("/t/swap") == (b"two", later)


def test_of_many_writers_one_at_a_time_wins(etcd: EtcdCluster) -> None:
    def add() -> None:
        client, done = etcd.client(), 0
        for _ in trying("another number is added"):
            data, version = client.read("/t/count")
            done += bool(client.swap("/t/count", b"%d" % (int(data or b"0") + 1), version))
            if done == 10:
                return

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert etcd.client().read("/t/count").data == b"40"


def test_all_values_below_a_prefix(etcd: EtcdCluster) -> None:
    client = etcd.client()
    for name in ("/t/all/1", "/t/all/2", "/t/all0", "/t/al"):
        client.put(name, name.encode())
    assert client.read_all("/t/all/") == [b"/t/all/1", b"/t/all/2"]


def test_it_goes_on_with_two_members_of_three_and_says_so_without(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        client = cluster.client()
        version = client.swap("/x", b"1", 0)
        cluster.send_signal(0, signal.SIGSTOP)
        for _ in trying("two members of three answer"):
            try:
                version = client.swap("/x", b"2", version) or client.read("/x").version
                break
            except FailoverUnavailableError:
                continue
        assert client.read("/x").data == b"2"
        cluster.send_signal(1, signal.SIGSTOP)
        with pytest.raises(FailoverUnavailableError, match="etcd does not answer"):
            cluster.client(timeout_s=0.5).swap("/x", b"3", version)
        cluster.send_signal(0, signal.SIGCONT)
        cluster.send_signal(1, signal.SIGCONT)
        for _ in trying("three members answer"):
            try:
                assert client.read("/x").data in (b"2", b"3")  # nobody knows what became of the write
                break
            except FailoverUnavailableError:
                continue


def test_something_else_on_that_port_is_an_error_that_names_it(etcd: EtcdCluster) -> None:
    with pytest.raises(FailoverUnavailableError, match=r"127\.0\.0\.1:1: "):
        Etcd([("127.0.0.1", 1)], 1.0).read("/x")
    peer_port = etcd.ports[0] + 1
    with pytest.raises(FailoverError, match="is no etcd 3 that this broker may use"):
        Etcd([("127.0.0.1", peer_port)], 5.0).read("/x")
