import dataclasses
import os

import pytest

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.store.config import (
    KEYS,
    SETTINGS,
    BrokerRole,
    FlushDiskType,
    MessageStoreConfig,
)


def test_defaults_are_rocketmqs():
    config = MessageStoreConfig()
    assert config.store_path_root_dir == os.path.expanduser("~/store")
    assert config.mapped_file_size_commit_log == 1073741824
    assert config.mapped_file_size_consume_queue == 6_000_000
    assert config.mapper_file_size_batch_consume_queue == 13_800_000
    assert config.index_file_size == 420_000_040
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.broker_role is BrokerRole.ASYNC_MASTER
    assert config.flush_least_pages_when_warm_maped_file == 4096
    assert config.delete_when_hours == {4}
    assert not config.is_sync_flush


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_explains_itself_and_reads_its_own_text(key):
    setting = SETTINGS[key]
    assert setting.key == key
    assert setting.doc.endswith(".")
    assert setting.parse(setting.default_text) == setting.default


def test_every_default_survives_the_way_through_text():
    config = MessageStoreConfig(store_path_root_dir="/data/store", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    text = {key: str(value) for key, value in config.to_mapping().items()}
    assert MessageStoreConfig.from_mapping(text) == config
    assert MessageStoreConfig.from_mapping(config.to_mapping()) == config


def test_paths_are_those_of_rocketmq():
    config = MessageStoreConfig(store_path_root_dir="/s")
    assert config.commit_log_dir == "/s/commitlog"
    assert config.consume_queue_dir == "/s/consumequeue"
    assert config.consume_queue_ext_dir == "/s/consumequeue_ext"
    assert config.batch_consume_queue_dir == "/s/batchconsumequeue"
    assert config.index_dir == "/s/index"
    assert config.config_dir == "/s/config"
    assert (config.checkpoint_path, config.abort_path, config.lock_path) == (
        "/s/checkpoint",
        "/s/abort",
        "/s/lock",
    )
    assert dataclasses.replace(config, store_path_commit_log="/fast/log").commit_log_dir == "/fast/log"


def test_values_of_text_and_of_the_right_type():
    config = MessageStoreConfig.from_mapping(
        {
            "mappedFileSizeCommitLog": "64k",
            "maxMessageSize": "1M",
            "mappedFileSizeConsumeQueue": 101,
            "flushDiskType": "SYNC_FLUSH",
            "brokerRole": BrokerRole.SLAVE,
            "messageIndexEnable": "FALSE",
            "deleteWhen": "02; 14",
        }
    )
    assert config.mapped_file_size_commit_log == 65536
    assert config.max_message_size == 1024**2
    assert config.mapped_file_size_consume_queue == 120
    assert config.is_sync_flush
    assert config.broker_role is BrokerRole.SLAVE
    assert config.message_index_enable is False
    assert config.delete_when_hours == {2, 14}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("mappedFileSizeCommitLog", "many", "64k, 16m and 1g"),
        ("mappedFileSizeCommitLog", "4g", "1024 to 2147483647"),
        ("mappedFileSizeCommitLog", True, "a whole number is needed"),
        ("flushIntervalCommitLog", "1.5", "a whole number is needed"),
        ("flushIntervalCommitLog", "64k", "a whole number is needed"),
        ("flushIntervalCommitLog", "0", "1 to 2147483647"),
        ("messageIndexEnable", "yes", "true or false"),
        ("flushDiskType", "SYNC", "SYNC_FLUSH or ASYNC_FLUSH"),
        ("diskMaxUsedSpaceRatio", "101", "0 to 100"),
        ("deleteWhen", "25", "00 to 23"),
        ("deleteWhen", ";", "at least one hour"),
        ("messageDelayLevel", "1s soon", "followed by s, m, h or d"),
        ("messageDelayLevel", "", "no delay levels"),
        ("storePathRootDir", " ", "a directory is needed"),
        ("storePathRootDir", "/a\0b", "NUL"),
        ("storePathRootDir", 7, "text is needed"),
        ("storePathCommitLog", "/a,/b", "several directories"),
        ("mapperFileSizeBatchConsumeQueue", "100", "a multiple of 46"),
        ("maxIndexNum", "200000000", "at most 2147483647"),
        ("storeType", "defaultRocksDB", "only default is allowed"),
        ("enableDLegerCommitLog", True, "only false is allowed"),
        ("readOnlyCommitLogStorePaths", "/old", "no value is allowed"),
        ("minInSyncReplicas", 2, "at most inSyncReplicas=1"),
        ("haAllowedAddresses", "10.0.0.0/8;everybody", "everybody"),
    ],
)
def test_an_unusable_value_says_what_is_allowed(key, value, says):
    with pytest.raises(ConfigError, match=key) as raised:
        MessageStoreConfig.from_mapping({key: value})
    assert says in str(raised.value)


def test_construction_checks_too():
    with pytest.raises(ConfigError, match="maxMessageSize"):
        MessageStoreConfig(max_message_size=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        MessageStoreConfig().max_message_size = 1  # type: ignore[misc]


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(UnknownKeyError, match="mappedFileSizeCommitLog"):
        MessageStoreConfig.from_mapping({"mapedFileSizeCommitlog": "1g"})
    assert MessageStoreConfig.from_mapping({"brokerName": "a"}, strict=False) == MessageStoreConfig()


def test_keys_without_effect_are_accepted_and_logged(caplog):
    mapping = {"timerWarmEnable": "true", "dLegerGroup": "g", "storeType": "default"}
    assert MessageStoreConfig.from_mapping(mapping) == MessageStoreConfig()
    assert KEYS.without_effect(mapping) == ["dLegerGroup", "timerWarmEnable"]
    assert "dLegerGroup, timerWarmEnable" in caplog.text


def test_a_running_store_may_change_some_of_them():
    config = MessageStoreConfig()
    config.change({"fileReservedTime": "5", "deleteWhen": "02;14"})
    assert (config.file_reserved_time, config.delete_when_hours) == (5, {2, 14})
    for settings in ({"fileReservedTime": "x"}, {"fileReservedTime": "6", "mappedFileSizeCommitLog": "4096"}):
        with pytest.raises(ConfigError):
            config.change(settings)
    assert config.file_reserved_time == 5
