from __future__ import annotations

import os

import pytest

from mqlake.errors import FormatError, StoreCorruptError
from mqlake.namesrv.kv_config import KVConfigManager


def test_what_was_put_is_there_after_a_restart(tmp_path):
    path = str(tmp_path / "namesrv" / "kvConfig.json")
    config = KVConfigManager(path)
    config.load()
    assert config.get_namespace("n") is None
    config.put("n", "k", "v")
    config.put("n", "l", "w")
    config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    config.delete("n", "l")
    config.delete("n", "none")
    again = KVConfigManager(path)
    again.load()
    assert again.get("n", "k") == "v" and again.get("n", "l") is None
    assert again.get_namespace("n") == {"k": "v"}
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"


def test_a_file_as_java_writes_it(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"n":{"k":"v"\n\t\t}\n\t}\n}')
    config = KVConfigManager(str(path))
    config.load()
    assert config.get("n", "k") == "v"


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    with pytest.raises(StoreCorruptError, match=r"kvConfig\.json"):
        KVConfigManager(str(path)).load()
    path.write_text('{"configTable":[1]}')
    with pytest.raises(FormatError, match="namespaces"):
        KVConfigManager(str(path)).load()


def test_what_cannot_be_kept_does_not_hold(tmp_path):
    config = KVConfigManager(str(tmp_path / "file" / "kvConfig.json"))
    config.load()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        config.put("n", "k", "v")
    assert config.get("n", "k") is None
    assert os.path.isfile(tmp_path / "file")
