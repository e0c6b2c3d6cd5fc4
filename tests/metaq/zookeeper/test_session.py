from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import ConfigError, RemotingConnectError
from mqlake.metaq.config import ZKConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.metaq.zookeeper.session import RECONNECT_MAX_S, ZkSession
from tests.ports import free_port
from tests.waiting import until


def test_nodes(zookeeper: EmbeddedZookeeper, tmp_path: Path) -> None:
    root = f"/{tmp_path.name}"
    one = ZkSession(ZKConfig(zk_connect=zookeeper.connect_string))
    two = ZkSession(ZKConfig(zk_connect=f"{zookeeper.connect_string}{root}/sub"))
    assert one.create_ephemeral(f"{root}/sub/a/b", b"1")
    assert not two.create_ephemeral("/a/b", b"2")
    assert one.is_own(f"{root}/sub/a/b") and not two.is_own("/a/b") and not two.is_own("/nosuch")
    two.put_ephemeral("/a/b", b"3")
    assert one.read(f"{root}/sub/a/b") == b"3" and one.read("/nosuch") is None
    changed: list[object] = []
    assert two.children("/a", changed.append) == ["b"] and two.children("/nosuch") == []
    two.put_persistent("/p/q", b"x")
    two.put_persistent("/p/q", b"y")
    two.put("/p/nosuch", b"y")
    assert two.read("/p/q") == b"y" and two.read("/p") == b""
    assert not two.delete("/p") and two.delete("/p/q") and two.delete("/p") and two.delete("/p")
    one.close()
    until(lambda: not two.children("/a"))
    until(lambda: changed)
    two.close()


def test_nobody_answers() -> None:
    with pytest.raises(RemotingConnectError, match="no ZooKeeper answers"):
        ZkSession(ZKConfig(zk_connect="127.0.0.1:1", zk_connection_timeout_ms=100))


@pytest.mark.parametrize("address", ["host:port", "host:70000", ","])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ZkSession(ZKConfig(zk_connect=address))


def test_a_zookeeper_that_returns_is_found_again(tmp_path: Path) -> None:
    """Soon, however long it was away: the time between two tries is bounded, which kazoo does not do by itself."""
    server = EmbeddedZookeeper(str(tmp_path), free_port())
    server.start()
    config = ZKConfig(
        zk_connect=server.connect_string, zk_session_timeout_ms=4000, zk_connection_timeout_ms=120_000
    )
    session = ZkSession(config)
    assert session.client._conn_retry.max_delay <= RECONNECT_MAX_S
    server.kill()
    until(lambda: not session.connected, "that it is away is seen")
    server.start()
    until(lambda: session.connected, "it is found again")
    session.put_persistent("/a", b"1")
    assert session.read("/a") == b"1"
    session.close()
    server.stop()
