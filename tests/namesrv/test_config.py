from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.namesrv.config import NamesrvConfig
from mqlake.remoting.tls import TlsMode


def test_a_namesrv_conf_of_the_java_server():
    config, remarks = NamesrvConfig.from_mapping(
        {
            "listenPort": "9877",
            "kvConfigPath": "/data/kv.json",
            "orderMessageEnable": "TRUE",
            "serverWorkerThreads": "8",
            "orderMesageEnable": "true",
            "tls.server.mode": "disabled",
        }
    )
    assert (config.listen_port, config.kv_config_path, config.order_message_enable) == (
        9877,
        "/data/kv.json",
        True,
    )
    assert config.tls.mode is TlsMode.DISABLED
    assert remarks == [
        "without effect here: serverWorkerThreads",
        "unknown configuration key 'orderMesageEnable'; did you mean 'orderMessageEnable'?",
    ]


@pytest.mark.parametrize("setting", [{"listenPort": "x"}, {"listenPort": "-1"}, {"enableTopicList": "yes"}])
def test_values_that_cannot_be_used(setting):
    (key,) = setting
    with pytest.raises(ConfigError, match=key):
        NamesrvConfig.from_mapping(setting)


def test_deleting_topics_that_a_registration_lacks_is_remarked_on():
    """A broker of RocketMQ that registers in parts may lose the routes of topics in the others."""
    _, remarks = NamesrvConfig.from_mapping({"deleteTopicWithBrokerRegistration": "true"})
    assert ["enableSingleTopicRegister=true" in remark for remark in remarks] == [True]
    assert NamesrvConfig.from_mapping({"deleteTopicWithBrokerRegistration": "false"})[1] == []


def test_access_control_is_set_where_the_name_server_runs():
    config, remarks = NamesrvConfig.from_mapping({"authenticationEnabled": "true"})
    assert config.auth.authentication_enabled and remarks == []
    with pytest.raises(ConfigError, match="can only be set where"):
        config.updated({"authenticationEnabled": "false"})
    with pytest.raises(ConfigError, match="aclEnable"):
        NamesrvConfig.from_mapping({"aclEnable": "true"})


@pytest.mark.parametrize("key", ["enableControllerInNamesrv"])
def test_what_it_would_be_dangerous_to_ignore_is_refused(key):
    with pytest.raises(ConfigError, match=f"{key}=true: only false is allowed"):
        NamesrvConfig.from_mapping({key: "true"})
    with pytest.raises(ConfigError, match=f"{key}=true: only false is allowed"):
        NamesrvConfig().updated({key: "true"})
    assert NamesrvConfig.from_mapping({key: "false"}) == (NamesrvConfig(), [])


def test_changes_from_outside():
    config = NamesrvConfig().updated({"orderMessageEnable": "true", "unknown": "x"})
    assert config.order_message_enable
    with pytest.raises(ConfigError, match="kvConfigPath can only be set where"):
        config.updated({"kvConfigPath": "/elsewhere"})


def test_clients_without_tls_that_get_around_it():
    asked = {"tls.server.certPath": "c", "tls.server.keyPath": "k", "tls.server.need.client.auth": "require"}
    (remark,) = NamesrvConfig.from_mapping(asked)[1]
    assert "tls.server.mode=enforcing refuses them" in remark
    assert NamesrvConfig.from_mapping({**asked, "tls.server.mode": "enforcing"})[1] == []


def test_what_is_shown_can_be_read():
    config, _ = NamesrvConfig.from_mapping({"listenPort": "1", "supportActingMaster": "true"})
    assert NamesrvConfig.from_mapping(config.to_properties()) == (config, [])
