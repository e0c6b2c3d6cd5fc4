from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import RemotingConnectError
from mqlake.metaq.config import ZKConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.metaq.zookeeper.session import ZkSession


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
    while two.children("/a"):
        pass
    while not changed:
        pass
    two.close()


def test_nobody_answers() -> None:
    with pytest.raises(RemotingConnectError, match="no ZooKeeper answers"):
        ZkSession(ZKConfig(zk_connect="127.0.0.1:1", zk_connection_timeout_ms=100))
