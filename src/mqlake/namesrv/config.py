"""The settings of a name server: RocketMQ's NamesrvConfig and NettyServerConfig.

A namesrv.conf of the Java name server is accepted as it is, unless ignoring one of its keys would endanger access:
base.rocketmq_keys has the keys that matter only there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from mqlake.auth import config as auth_settings
from mqlake.auth.config import AuthConfig
from mqlake.base.net import PORT_MAX
from mqlake.base.rocketmq_keys import AUTH_KEYS, NAMESRV_KEYS, REMOTING_KEYS
from mqlake.base.settings import KnownKeys, Setting, Settings, setting, settings_of, text_of
from mqlake.errors import ConfigError
from mqlake.remoting.tls import TlsConfig, read_tls


def _home(name: str) -> str:
    return os.path.join(os.path.expanduser("~"), "namesrv", name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamesrvConfig(Settings):
    """The settings of one name server. Raises ConfigError at construction when a value cannot be used."""

    listen_port: int = setting(9876, "Port to listen on; 0: any free one.", high=PORT_MAX)
    bind_address: str = setting("0.0.0.0", "Address to listen on; 0.0.0.0: all of this machine's.")
    kv_config_path: str = setting(
        "$HOME/namesrv/kvConfig.json",
        "File of the key-value configuration.",
        factory=lambda: _home("kvConfig.json"),
    )
    config_store_path: str = setting(
        "$HOME/namesrv/namesrv.properties",
        "File that settings changed by operators are written to.",
        factory=lambda: _home("namesrv.properties"),
    )
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath",
        "Keys that cannot be changed at run time; `;` between.",
    )
    order_message_enable: bool = setting(False, "Routes carry the order configuration of their topic.")
    return_order_topic_config_to_broker: bool = setting(
        True, "Brokers get the order configuration when they register."
    )
    support_acting_master: bool = setting(
        False, "Routes show the slave that stands in for a missing master as master."
    )
    delete_topic_with_broker_registration: bool = setting(
        False,
        "A topic missing from a broker's whole registration is removed from that broker. mqlake's brokers say which "
        "registrations are parts, RocketMQ's are told by the topics that every broker has; theirs need "
        "enableSingleTopicRegister=true, or not enableSplitRegistration=true.",
    )
    enable_all_topic_list: bool = setting(True, "Answer with the list of all topics.")
    enable_topic_list: bool = setting(True, "Answer with the lists of topics of a cluster or a kind.")
    scan_not_active_broker_interval: int = setting(
        5000, "Time between two checks for brokers that no longer register.", unit="ms", low=1
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "Time without a byte after which a connection is closed.", unit="s"
    )
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    auth: AuthConfig = dataclasses.field(default_factory=AuthConfig)

    @classmethod
    def from_mapping(cls, properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
        """The configuration, and remarks on keys without effect, unknown or dangerous alone.

        Raises ConfigError for a bad value, and for a key that is dangerous to ignore.
        """
        tls, remarks = read_tls(properties, KEYS)
        auth = AuthConfig().replaced(properties)
        if auth.acl_enable:
            raise ConfigError(
                "aclEnable=true: plain_acl.yml is for brokers; authenticationEnabled is for name servers"
            )
        config = dataclasses.replace(cls().replaced(properties), tls=tls, auth=auth)
        if config.delete_topic_with_broker_registration:
            remarks.append(DELETES_TOPICS)
        return config, remarks

    def updated(self, properties: Mapping[str, str]) -> NamesrvConfig:
        """Another configuration, with changes made at run time.

        Raises ConfigError for a bad value, a key on the black list, and a key that is dangerous to ignore.
        """
        refused = [key for key in self.config_black_list.split(";") if key.strip() in properties]
        if refused:
            raise ConfigError(f"{refused[0]} can only be set where the name server runs")
        if fixed := sorted(auth_settings.SETTINGS.keys() & properties.keys()):
            raise ConfigError(f"{fixed[0]} can only be set where the name server runs")
        KEYS.without_effect(properties)
        return self.replaced(properties)

    def to_properties(self) -> dict[str, str]:
        """Every key and its value, as a properties file holds them."""
        return {key: text_of(value) for key, value in self.to_mapping().items()}


DELETES_TOPICS = (
    "deleteTopicWithBrokerRegistration=true needs enableSingleTopicRegister=true at every broker of RocketMQ that "
    "registers in parts (enableSplitRegistration=true): without it, a part can take other topics of its broker out of "
    "the routes until the broker registers them again"
)
SETTINGS: dict[str, Setting] = settings_of(NamesrvConfig)
KEYS = KnownKeys({**SETTINGS, **auth_settings.SETTINGS}, NAMESRV_KEYS, REMOTING_KEYS, AUTH_KEYS)
"""All keys that a namesrv.conf may have, except `tls.*`."""
