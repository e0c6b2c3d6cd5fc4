from __future__ import annotations

import json

import pytest

from mqlake.broker.state.subscription_group import (
    MessageRequestModeManager,
    SubscriptionGroupManager,
    is_legal_group,
)
from mqlake.errors import ConfigError
from mqlake.message.groups import BUILT_IN_GROUPS
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.client import MessageRequestMode, SetMessageRequestModeRequestBody

JAVA_FILE = """{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"forbiddenTable":{"G":{"T":1
		}
	},
	"subscriptionGroupTable":{
		"G":{
			"attributes":{},
			"brokerId":0,
			"consumeBroadcastEnable":false,
			"consumeEnable":true,
			"consumeFromMinEnable":true,
			"consumeMessageOrderly":true,
			"consumeTimeoutMinute":15,
			"groupName":"G",
			"groupRetryPolicy":{
				"type":"CUSTOMIZED"
			},
			"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,
			"retryMaxTimes":3,
			"retryQueueNums":2,
			"whichBrokerWhenConsumeSlowly":1
		}
	}
}"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "subscriptionGroup.json")


def test_rocketmqs_own_groups_are_there(path):
    manager = SubscriptionGroupManager(path, auto_create=False)
    assert set(manager.subscription_group_table) == set(BUILT_IN_GROUPS)
    assert manager.find_subscription_group_config("CID_RMQ_SYS_TRANS").retry_max_times == 16


def test_a_group_is_made_when_it_is_asked_for(path):
    manager = SubscriptionGroupManager(path)
    assert not manager.contains_subscription_group("G")
    config = manager.find_subscription_group_config("G")
    assert config == SubscriptionGroupConfig(group_name="G")
    assert manager.find_subscription_group_config("G") is config
    assert manager.data_version.counter == 1 and manager.dirty
    manager.persist()
    again = SubscriptionGroupManager(path, auto_create=False)
    again.load()
    assert again.find_subscription_group_config("G") == config
    assert again.data_version == manager.data_version


def test_without_auto_creation_only_systems_groups_make_themselves(path):
    manager = SubscriptionGroupManager(path, auto_create=False)
    assert manager.find_subscription_group_config("G") is None
    assert manager.find_subscription_group_config("CID_RMQ_SYS_x") is not None
    manager = SubscriptionGroupManager(path, auto_create=False, create_sys_groups=False)
    assert manager.find_subscription_group_config("CID_RMQ_SYS_x") is None


@pytest.mark.parametrize(
    ("group", "legal"),
    [
        ("g", True),
        ("%a|b-C_9", True),
        ("x" * 255, True),
        ("x" * 256, False),
        ("", False),
        (" ", False),
        ("a b", False),
        ("x" * 200 + "ü", False),
        ("a@b", False),
    ],
)
def test_names(path, group, legal):
    assert is_legal_group(group) is legal
    assert (SubscriptionGroupManager(path).find_subscription_group_config(group) is not None) is legal


def test_an_operators_changes_are_on_disk_at_once(path):
    manager = SubscriptionGroupManager(path)
    manager.update_subscription_group_config(SubscriptionGroupConfig(group_name="G", retry_max_times=2))
    manager.update_subscription_group_config_list(
        [SubscriptionGroupConfig(group_name=name) for name in ("H", "I")]
    )
    assert manager.delete_subscription_group_config("H")
    assert not manager.delete_subscription_group_config("H")
    again = SubscriptionGroupManager(path)
    again.load()
    assert again.subscription_group_table["G"].retry_max_times == 2
    assert "I" in again.subscription_group_table and "H" not in again.subscription_group_table


def test_what_cannot_be_written_does_not_hold(tmp_path):
    (tmp_path / "config").write_text("in the way")
    manager = SubscriptionGroupManager(str(tmp_path / "config" / "subscriptionGroup.json"))
    with pytest.raises(OSError):
        manager.update_subscription_group_config(SubscriptionGroupConfig(group_name="G"))
    assert not manager.contains_subscription_group("G")
    with pytest.raises(OSError):
        manager.delete_subscription_group_config("TOOLS_CONSUMER")
    assert manager.contains_subscription_group("TOOLS_CONSUMER")
    with pytest.raises(OSError):
        manager.update_forbidden("G", "T", 0, True)
    assert not manager.get_forbidden("G", "T")


def test_bad_groups_are_refused_and_nothing_of_a_list_is_taken(path):
    manager = SubscriptionGroupManager(path)
    with pytest.raises(ConfigError, match="group name"):
        manager.update_subscription_group_config_list(
            [SubscriptionGroupConfig(group_name="G"), SubscriptionGroupConfig(group_name="a b")]
        )
    with pytest.raises(ConfigError, match="retryQueueNums of G is 65537: at most 65536"):
        manager.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="G", retry_queue_nums=65537)
        )
    with pytest.raises(ConfigError, match="attributes"):
        manager.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="G", attributes={"+x": "1"})
        )
    assert not manager.contains_subscription_group("G")


def test_forbidden_bits(path):
    manager = SubscriptionGroupManager(path)
    manager.update_forbidden("G", "T", 0, True)
    manager.update_forbidden("G", "T", 3, True)
    manager.update_forbidden("G", "U", 0, True)
    assert manager.forbidden_table == {"G": {"T": 9, "U": 1}}
    manager.update_forbidden("G", "T", 0, False)
    assert not manager.get_forbidden("G", "T") and manager.get_forbidden("G", "T", 3)
    manager.update_forbidden("G", "T", 3, False)
    assert manager.get_forbidden("G", "U")  # the other topic keeps its own
    again = SubscriptionGroupManager(path)
    again.load()
    assert again.forbidden_table == {"G": {"U": 1}}
    manager.update_forbidden("G", "U", 0, False)
    assert manager.forbidden_table == {}


def test_a_file_as_java_writes_it_comes_back_as_java_would_write_it(path, tmp_path):
    (tmp_path / "subscriptionGroup.json").write_text(JAVA_FILE)
    manager = SubscriptionGroupManager(path, auto_create=False)
    manager.load()
    config = manager.find_subscription_group_config("G")
    assert (config.retry_max_times, config.retry_queue_nums) == (3, 2)
    assert not config.consume_broadcast_enable and config.consume_message_orderly
    assert manager.get_forbidden("G", "T") and manager.data_version.counter == 7
    for group in BUILT_IN_GROUPS:
        del manager.subscription_group_table[group]
    manager.persist()
    assert "".join((tmp_path / "subscriptionGroup.json").read_text().split()) == "".join(JAVA_FILE.split())


def test_the_request_modes_that_rocketmq_has_left_are_kept(tmp_path):
    path = tmp_path / "messageRequestMode.json"
    left = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}
    path.write_text(json.dumps({"messageRequestModeMap": {"T": {"G": left}}}))
    manager = MessageRequestModeManager(str(path))
    manager.load()
    assert manager.modes.message_request_mode_map["T"]["G"].mode is MessageRequestMode.POP
    manager.set_message_request_mode(SetMessageRequestModeRequestBody(topic="T", consumer_group="H"))
    kept = json.loads(path.read_text())["messageRequestModeMap"]["T"]
    assert kept["G"] == left and kept["H"]["mode"] == "PULL"
