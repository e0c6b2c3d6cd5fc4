from __future__ import annotations

import dataclasses

import pytest

from mqlake.base.java_properties import parse_properties
from mqlake.base.net import local_address
from mqlake.broker.config import (
    DECISIVE,
    KEYS,
    SETTINGS,
    BrokerConfig,
    GrpcServerKind,
    MetricsExporterType,
    all_values,
    read_settings,
    require_known,
)
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.remoting.tls import TlsMode
from mqlake.store import config as store_settings
from mqlake.store.config import FlushDiskType, MessageStoreConfig

# as RocketMQ 5.3.3 ships conf/broker.conf, with what operators usually add
BROKER_CONF = """\
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
namesrvAddr=10.0.0.1:9876; 10.0.0.2:9876
autoCreateTopicEnable=false
sendMessageThreadPoolNums=64
serverSelectorThreads=3
tls.server.mode=disabled
haListenPort=10912
metricsExporterType=PROM
brokrIP1=10.0.0.9
"""


def test_a_broker_conf_of_the_java_broker():
    settings = read_settings(parse_properties(BROKER_CONF))
    config = settings.config
    assert (config.broker_cluster_name, config.broker_name) == ("DefaultCluster", "broker-a")
    assert config.namesrv_addresses == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert config.auto_create_topic_enable is False
    assert config.metrics_exporter_type is MetricsExporterType.PROM
    assert config.tls.mode is TlsMode.DISABLED
    assert settings.store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.store_config.file_reserved_time == 48
    assert settings.remarks == [
        "without effect here: sendMessageThreadPoolNums, serverSelectorThreads",
        "unknown configuration key 'brokrIP1'; did you mean 'brokerIP1'?",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("flush.disk.type", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("flushDisk", "flushDiskType"),
        ("brokerRol", "brokerRole"),
        ("inSyncReplica", "inSyncReplicas"),
        ("minInSyncReplica", "minInSyncReplicas"),
        ("transientStorePoolEnabled", "transientStorePoolEnable"),
        ("fail0ver", "failover"),
        ("storePathRoot", "storePathRootDir"),
    ],
)
def test_a_misspelt_key_of_durability_stops_the_start(key: str, meant: str) -> None:
    """With a line of warning the broker ran on the default, ASYNC_FLUSH, and acknowledged what it could lose."""
    with pytest.raises(ConfigError, match=f"{key!r}; it looks like {meant!r}.*correct its name"):
        read_settings({key: "SYNC_FLUSH"})


@pytest.mark.parametrize("key", DECISIVE)
def test_keys_of_durability_are_known(key: str) -> None:
    """A name in the list that no key has guards nothing."""
    assert key in KEYS


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("listenPort", "70000", "0 to 65535"),
        ("listenPort", "many", "whole number"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("metricsExporterType", "WHATEVER", "DISABLE or OTLP_GRPC or PROM or LOG"),
        ("brokerName", " ", "a name is needed"),
        ("namesrvAddr", "10.0.0.1", "host:port"),
        ("mappedFileSizeCommitLog", "1", "mappedFileSizeCommitLog"),
        ("storeType", "defaultRocksDB", "RocksDB"),
        ("tls.server.mode", "maybe", "permissive"),
    ],
)
def test_what_cannot_be_used_is_named(key, value, words):
    with pytest.raises(ConfigError) as caught:
        read_settings({key: value})
    assert key in str(caught.value) and words in str(caught.value)


def test_access_control_has_its_settings_in_the_same_file():
    settings = read_settings({"authenticationEnabled": "true", "authorizationEnabled": "true"})
    assert settings.config.auth.authorization_enabled and settings.remarks == []
    with pytest.raises(ConfigError, match="authorizationEnabled=true: needs authenticationEnabled=true"):
        read_settings({"authorizationEnabled": "true"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("brokerRole", "SLAVE", "needs another one"),
        ("minInSyncReplicas", "2", "at most inSyncReplicas=1"),
        ("allAckInSyncStateSet", "true", "acknowledged with fewer replicas"),
        ("enableControllerMode", "true", "two brokers could act as master"),
        ("messageStorePlugIn", "org.example.Plugin", "cannot be loaded"),
        ("configManagerVersion", "v2", "RocksDB"),
        ("enableLmq", "true", "light queues"),
        ("enableMultiDispatch", "true", "light queues"),
        ("useTLS", "true", "tls.enable=true"),
        ("tls.config.file", "/etc/rocketmq/tls.properties", "broker.conf"),
        ("tls.enable", "yes", "true or false"),
    ],
)
def test_what_would_lose_data_or_access_is_refused(key, value, words):
    with pytest.raises(ConfigError) as caught:
        read_settings({key: value})
    assert key in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"brokerId": "1"}, "brokerId=1: a master's is 0"),
        ({"metricsExporterType": "OTLP_GRPC"}, "only PROM"),
        ({"tls.server.certpath": "x"}, "did you mean 'tls.server.certPath'?"),
        ({"tls.server.authClient": "true"}, "without effect here: tls.server.authClient"),
        (
            {"tls.server.certPath": "c", "tls.server.keyPath": "k", "tls.server.need.client.auth": "require"},
            "clients without TLS are served all the same; tls.server.mode=enforcing refuses them",
        ),
    ],
)
def test_what_an_operator_may_not_expect_is_said(properties, words):
    (remark,) = read_settings(properties).remarks
    assert words in remark


def test_unknown_keys_of_the_command_line():
    require_known(["brokerName", "maxIndexNum", "sendMessageThreadPoolNums", "tls.enable", "aclEnable"])
    for key, words in (("brokrName", "'brokerName'"), ("tls.enabled", "'tls.enable'")):
        with pytest.raises(UnknownKeyError, match=words):
            require_known([key])


def test_all_values_are_listed():
    values = all_values(BrokerConfig(broker_name="b"), MessageStoreConfig(store_path_root_dir="/s"))
    assert (values["brokerName"], values["storePathRootDir"], values["autoCreateTopicEnable"]) == (
        "b",
        "/s",
        "true",
    )
    assert (values["popPollingSize"], values["aclEnable"], values["inSyncReplicas"]) == ("1024", "false", "1")
    assert "rocketmqHome" not in values, "null in Java"
    assert not {"authenticationEnabled", "initAuthenticationUser"} & values.keys()
    assert values.keys() <= set(KEYS)


def test_the_grpc_server_is_chosen_by_its_name():
    assert BrokerConfig().grpc_server is GrpcServerKind.nghttp2
    assert read_settings({"grpcServer": "grpcio"}).config.grpc_server is GrpcServerKind.grpcio
    with pytest.raises(ConfigError, match="nghttp2 or grpcio is needed"):
        read_settings({"grpcServer": "h2"})


def test_settings_are_described():
    for setting in SETTINGS.values():
        assert setting.doc.endswith("."), setting.key
    assert not set(SETTINGS) & set(store_settings.SETTINGS)


def test_changes_from_outside():
    config = BrokerConfig(broker_name="a")
    changed = config.replaced({"brokerPermission": "4", "somebodyElses": "1"})
    assert (changed.broker_permission, changed.broker_name) == (4, "a")
    with pytest.raises(ConfigError, match="brokerPermission"):
        config.replaced({"brokerPermission": "8"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.broker_name = "b"


def test_what_is_printed_can_be_read_again():
    config = BrokerConfig(broker_name="a", listen_port=0, namesrv_addr="h:1")
    text = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in config.to_mapping().items()
    }
    assert read_settings(text).config == config


def test_names_of_the_machine(monkeypatch):
    assert local_address().count(".") == 3
    monkeypatch.setenv("NAMESRV_ADDR", "h:1;h:2")
    assert BrokerConfig().namesrv_addresses == ["h:1", "h:2"]
    assert BrokerConfig().broker_name
