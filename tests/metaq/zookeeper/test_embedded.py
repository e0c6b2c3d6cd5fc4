from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake.errors import ConfigError, MissingPartError, StoreLockedError
from mqlake.metaq.zookeeper import embedded
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper, find_jars


def test_a_port_that_is_taken_is_said(zookeeper: EmbeddedZookeeper, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"port {zookeeper.port} is in use; .*--zookeeper"):
        EmbeddedZookeeper(str(tmp_path), zookeeper.port).start()


def test_two_do_not_write_to_one_directory(zookeeper: EmbeddedZookeeper) -> None:
    with pytest.raises(StoreLockedError, match="is in use"):
        EmbeddedZookeeper(zookeeper.directory).start()


def test_parts_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert any("zookeeper" in jar for jar in find_jars())
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MissingPartError, match="default-jre-headless"):
        EmbeddedZookeeper(str(tmp_path)).start()
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(embedded, "DEBIAN_JARS", str(tmp_path))
    with pytest.raises(MissingPartError, match="libzookeeper-java"):
        find_jars()


def test_a_server_that_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_jars", lambda: ["nosuch.jar"])
    with pytest.raises(Exception, match=r"ZooKeeper has ended: .*ZooKeeperServerMain"):
        EmbeddedZookeeper(str(tmp_path)).start()
