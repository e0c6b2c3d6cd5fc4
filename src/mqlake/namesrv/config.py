"""What an operator of a name server may set, by RocketMQ's keys.

A namesrv.conf of the Java name server is accepted as it is: keys that only mean something there are known and
have no effect, others are named with the nearest known key.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.remoting.headers.codec import wire_name
from mqlake.remoting.tls import TlsConfig

_WITHOUT_EFFECT = """
rocketmqHome productEnvName clusterTest clientRequestThreadPoolNums defaultThreadPoolNums
clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity
enableControllerInNamesrv notifyMinBrokerIdChanged needWaitForService waitSecondsForService
serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
serverPooledByteBufAllocatorEnable serverNettyWorkerGroupEnable useEpollNativeSelector
writeBufferHighWaterMark writeBufferLowWaterMark enableShutdownGracefully shutdownWaitTimeSeconds
clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
"""
KEYS_WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    listen_port: int = 9876
    """0: any free one."""
    bind_address: str = "0.0.0.0"
    kv_config_path: str = dataclasses.field(default_factory=lambda: _home("kvConfig.json"))
    config_store_path: str = dataclasses.field(default_factory=lambda: _home("namesrv.properties"))
    """Where settings that are changed from outside are kept."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that nobody may change from outside; separated by semicolons."""
    order_message_enable: bool = False
    """Routes carry the order configuration of their topic."""
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    delete_topic_with_broker_registration: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    scan_not_active_broker_interval: int = 5000
    """ms."""
    server_channel_max_idle_time_seconds: int = 120
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)

    @classmethod
    def from_mapping(cls, properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
        """The configuration, and a sentence for each key that has no effect. ConfigError for a bad value."""
        return cls()._changed(properties)

    def _changed(self, properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
        values: dict[str, object] = {}
        remarks = []
        for key, text in properties.items():
            attribute = _ATTRIBUTES.get(key)
            if attribute is not None:
                values[attribute] = _parse(key, text, getattr(self, attribute))
            elif key in KEYS_WITHOUT_EFFECT:
                remarks.append(f"{key} has no effect here")
            elif not key.startswith("tls."):
                remarks.append(str(UnknownKeyError(key, [*_ATTRIBUTES, *KEYS_WITHOUT_EFFECT])))
        if any(key.startswith("tls.") for key in properties):
            values["tls"] = TlsConfig.from_properties(properties)
        return dataclasses.replace(self, **values), remarks  # type: ignore[arg-type]

    def updated(self, properties: Mapping[str, str]) -> NamesrvConfig:
        """With settings from outside. ConfigError for a bad value or a key on the black list."""
        refused = [key for key in self.config_black_list.split(";") if key.strip() in properties]
        if refused:
            raise ConfigError(f"{refused[0]} can only be set where the name server runs")
        known = {key: text for key, text in properties.items() if key in _ATTRIBUTES}
        return self._changed(known)[0]

    def to_mapping(self) -> dict[str, str]:
        """Every key and its value, as a properties file holds them."""
        return {key: _text(getattr(self, attribute)) for key, attribute in _ATTRIBUTES.items()}


def _home(name: str) -> str:
    return os.path.join(os.path.expanduser("~"), "namesrv", name)


def _text(value: object) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _parse(key: str, text: str, default: object) -> object:
    text = text.strip()
    if isinstance(default, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{key} is {text!r}: it can be true or false")
    if isinstance(default, int):
        if text.isascii() and text.isdigit() and len(text) <= 9:
            return int(text)
        raise ConfigError(f"{key} is {text!r}: a whole number is needed")
    return text


_ATTRIBUTES = {
    wire_name(field.name): field.name for field in dataclasses.fields(NamesrvConfig) if field.name != "tls"
}
