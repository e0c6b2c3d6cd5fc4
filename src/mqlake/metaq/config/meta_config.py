"""MetaConfig: the settings in server.ini, and its changes.

    [system]         brokerId, numPartitions, unflushThreshold, ...     SystemConfig
    [zookeeper]      zk.zkConnect, zk.zkRoot, ...                       ZKConfig
    [topic=<name>]   numPartitions, deletePolicy, group.<g>, ...        TopicConfig; defaults from [system]

`reload` reads only the topics again. Listeners are called for `configFileChecksum`, `topics`, `topicConfigMap` and
`unflushInterval`. The keys, their defaults and the required ones are the original's (1.4.6.2).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mqlake.base.durable import write_durably
from mqlake.base.names import camel_case
from mqlake.errors import ConfigError, MqlakeError, UnknownKeyError
from mqlake.metaq.config.cron import parse_cron
from mqlake.metaq.config.ini import parse_ini, replace_sections
from mqlake.metaq.config.values import parse_bool, parse_delete_policy, parse_int

logger = logging.getLogger(__name__)

Listener = Callable[[], None]
EVENTS = ("configFileChecksum", "topics", "topicConfigMap", "unflushInterval")

DEFAULT_PORT = 8123
TOPIC_MAX = 200
"""Characters of a topic's name: with the partition it is the name of a directory."""
TOPIC_SECTION = "topic="
GROUP_KEY = "group."


@dataclass(frozen=True, kw_only=True)
class ZKConfig:
    """[zookeeper]. The keys begin with `zk.`."""

    zk_connect: str = "localhost:2181"
    zk_root: str = "/meta"
    zk_enable: bool = True
    zk_session_timeout_ms: int = 30000
    zk_connection_timeout_ms: int = 30000
    zk_sync_time_ms: int = 5000

    @classmethod
    def of_command(cls, zookeeper: str, root: str) -> ZKConfig:
        """For a command or a query, which reports after 10 s that ZooKeeper does not answer."""
        return cls(zk_connect=zookeeper, zk_root=root, zk_connection_timeout_ms=10_000)


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """[system]."""

    broker_id: int = 0
    num_partitions: int = 1
    unflush_threshold: int = 1000
    """A flush begins after more unflushed messages than this; 0 or less: group commit, flushed before each answer."""
    unflush_interval: int = 10000
    """Messages are flushed after so many ms at the latest."""
    max_segment_size: int = 1 << 30
    max_transfer_size: int = 1 << 20
    """The most bytes in the answer to one `get`."""
    server_port: int = DEFAULT_PORT
    dashboard_http_port: int = 8120
    """Port of the HTTP administration; 0: any free one."""
    host_name: str = ""
    """The name under which others reach the broker; empty: the machine's first address that is not a loopback."""
    data_path: str = ""
    """Empty: ~/meta."""
    data_log_path: str = ""
    """The parent of `transactions/`; empty: data_path."""
    app_class_path: str = ""
    get_process_thread_count: int = 0
    put_process_thread_count: int = 0
    delete_policy: str = "delete,168"
    delete_when: str = "0 0 6,18 * * ?"
    quartz_thread_count: int = 5
    max_checkpoints: int = 3
    checkpoint_interval: int = 3600 * 1000
    max_tx_timeout_timer_capacity: int = 30000
    max_tx_timeout_in_seconds: int = 60
    flush_tx_log_at_commit: int = 1
    """0: left to the system, 1: at each commit, 2: each second."""
    accept_publish: bool = True
    accept_subscribe: bool = True
    stat: bool = False
    update_consumer_offsets: bool = False
    """A `get` after the end is answered with the offset of the end (301) instead of 404."""
    load_message_stores_in_parallel: bool = False

    @property
    def effective_data_path(self) -> str:
        return self.data_path or os.path.expanduser("~/meta")

    @property
    def effective_data_log_path(self) -> str:
        return self.data_log_path or self.effective_data_path


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """[topic=`topic`]; `*` in the name stands for anything."""

    topic: str
    num_partitions: int
    unflush_threshold: int
    unflush_interval: int
    data_path: str
    delete_policy: str
    delete_when: str
    accept_publish: bool
    accept_subscribe: bool
    stat: bool
    filter_class_names: Mapping[str, str] = field(default_factory=dict)
    """Consumer group → its filter, module:function."""


_REQUIRED = (
    "brokerId",
    "numPartitions",
    "unflushThreshold",
    "unflushInterval",
    "maxSegmentSize",
    "maxTransferSize",
)
_NO_EFFECT = {
    "appClassPath": "Java classes are not loaded",
    "getProcessThreadCount": "requests are served on one event loop",
    "putProcessThreadCount": "requests are served on one event loop",
    "quartzThreadCount": "delete jobs run one after the other",
    "maxTxTimeoutTimerCapacity": "timers are not limited in number",
}
_RANGES = {
    "brokerId": (0, 1023),
    "numPartitions": (1, 1 << 20),
    "maxSegmentSize": (1, (1 << 31) - 1),
    "maxTransferSize": (1, (1 << 31) - 1),
    "serverPort": (0, 65535),
    "dashboardHttpPort": (0, 65535),
    "flushTxLogAtCommit": (0, 2),
    "maxCheckpoints": (1, 1000),
    "checkpointInterval": (1, 1 << 40),
    "maxTxTimeoutInSeconds": (0, 1 << 30),
    "zk.zkSessionTimeoutMs": (1, 1 << 30),
    "zk.zkConnectionTimeoutMs": (1, 1 << 30),
    "zk.zkSyncTimeMs": (0, 1 << 30),
}


def _keys(kind: type, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    return {prefix + camel_case(each.name): each for each in dataclasses.fields(kind)}


_SYSTEM_KEYS = _keys(SystemConfig)
_ZK_KEYS = _keys(ZKConfig, "zk.")
_TOPIC_KEYS = {key: each for key, each in _keys(TopicConfig).items() if key != "filterClassNames"}


class MetaConfig:
    """The configuration of one broker, from a file (`load`) or from values."""

    def __init__(
        self,
        system: SystemConfig | None = None,
        zookeeper: ZKConfig | None = None,
        topics: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`topics`: name → keys and values as in the file. ConfigError."""
        self.system = system or SystemConfig()
        self.zookeeper = zookeeper or ZKConfig()
        self.path = ""
        self.remarks: list[str] = []
        """Known keys without an effect here, with the reason."""
        self._config_file_checksum = 0
        self.topic_config_map: dict[str, TopicConfig] = {}
        self._last_modified_ns = 0
        self._listeners: dict[str, list[Listener]] = {name: [] for name in EVENTS}
        self._closed: dict[str, set[int]] = {}
        check_system(self.system)
        for topic, values in (topics or {}).items():
            self.topic_config_map[topic] = self._topic_config(topic, values)

    @classmethod
    def load(cls, path: str) -> MetaConfig:
        """Reads `path`. ConfigError (UnknownKeyError names the nearest key), OSError."""
        raw, last_modified_ns = _read(path)
        try:
            sections = parse_ini(_decode(raw))
            for name in ("system", "zookeeper"):
                if name not in sections:
                    raise ConfigError(f"the section [{name}] is missing")
            system = sections["system"]
            values = _values("system", system, _SYSTEM_KEYS)
            for key in _REQUIRED:
                if not system.get(key):
                    raise ConfigError(f"[system] {key} must have a value")
            config = cls(
                SystemConfig(**values),
                ZKConfig(**_values("zookeeper", sections["zookeeper"], _ZK_KEYS)),
                _topic_sections(sections),
            )
            if not config.topic_config_map:
                raise ConfigError("there is no [topic=<name>] section")
            if not sections["zookeeper"].get("zk.zkConnect"):
                raise ConfigError("[zookeeper] zk.zkConnect must have a value")
        except ConfigError as error:
            raise _in_file(error, path) from None
        config.path = path
        config.remarks = [f"{key} has no effect: {_NO_EFFECT[key]}" for key in _NO_EFFECT if system.get(key)]
        config._last_modified_ns = last_modified_ns
        config.config_file_checksum = zlib.crc32(raw)
        return config

    def file_content(self) -> bytes:
        """The configuration file as it is now. ConfigError without one, OSError."""
        if not self.path:
            raise ConfigError("the broker runs without a configuration file")
        return _read(self.path)[0]

    @property
    def config_file_checksum(self) -> int:
        """CRC-32 of the file, all 32 bits. Setting it calls the listeners of `configFileChecksum`."""
        return self._config_file_checksum

    @config_file_checksum.setter
    def config_file_checksum(self, checksum: int) -> None:
        self._config_file_checksum = checksum
        self._fire("configFileChecksum")

    # --- topics

    @property
    def topics(self) -> list[str]:
        return sorted(self.topic_config_map)

    def topic_config(self, topic: str) -> TopicConfig:
        """The settings of the topic, else of the first pattern that it matches, else of [system]."""
        found = self.topic_config_map.get(topic)
        if found is not None:
            return found
        for name, config in sorted(self.topic_config_map.items()):
            if "*" in name and topic_pattern(name).fullmatch(topic):
                return dataclasses.replace(config, topic=topic)
        return self._topic_config(topic, {})

    def accepts(self, topic: str) -> bool:
        """True if a configured topic or pattern matches, and `topic` can be the name of a directory and a node."""
        if "/" in topic or "\0" in topic or len(topic) > TOPIC_MAX:
            return False
        if topic in self.topic_config_map and "*" not in topic:
            return True
        return any(topic_pattern(name).fullmatch(topic) for name in self.topic_config_map if "*" in name)

    def add_topic(self, topic: str, values: Mapping[str, str]) -> None:
        """Adds a topic, as if it were in the file. ConfigError."""
        self.topic_config_map = {**self.topic_config_map, topic: self._topic_config(topic, values)}
        self._fire("topics", "topicConfigMap")

    def reload(self) -> bool:
        """Reads the topics again if the file has changed; returns True if it had. Failures are logged."""
        if not self.path:
            return False
        try:
            if os.stat(self.path).st_mtime_ns == self._last_modified_ns:
                return False
            raw, last_modified_ns = _read(self.path)
            sections = _topic_sections(parse_ini(_decode(raw)))
            topics = {topic: self._topic_config(topic, values) for topic, values in sections.items()}
        except (MqlakeError, OSError) as error:
            logger.error("%s is not reloaded: %s", self.path, error)
            return False
        self._last_modified_ns = last_modified_ns
        self.config_file_checksum = zlib.crc32(raw)
        if topics != self.topic_config_map:
            self.topic_config_map = topics
            self._fire("topics", "topicConfigMap")
        self._fire("unflushInterval")
        return True

    def take_topics(self, other: str) -> bool:
        """Replaces the topics in this file by those of another broker's server.ini, and reloads; returns True if they
        differed.

        The rest of the file stays. After ConfigError or OSError nothing is changed.
        """
        if not self.path:
            raise ConfigError("the broker has no configuration file to copy the topics to")
        sections = _topic_sections(parse_ini(other))
        topics = {topic: self._topic_config(topic, values) for topic, values in sections.items()}
        if not topics or topics == self.topic_config_map:
            return False
        own = _decode(_read(self.path)[0])
        write_durably(self.path, replace_sections(own, other, TOPIC_SECTION).encode())
        return self.reload()

    # --- closed partitions

    def close_partitions(self, topic: str, start: int, end: int) -> None:
        """Puts and gets of these partitions are answered 403 until they are opened. ConfigError."""
        count = self.topic_config(topic).num_partitions if self.accepts(topic) else 0
        if not count:
            raise ConfigError(f"there is no topic {topic!r}")
        if not 0 <= start <= end < count:
            raise ConfigError(
                f"{topic!r} has the partitions 0 to {count - 1}, {start} to {end} cannot be closed"
            )
        self._closed.setdefault(topic, set()).update(range(start, end + 1))

    def open_partitions(self, topic: str) -> None:
        """Opens all partitions of a topic. ConfigError if there is no such topic."""
        if not self.accepts(topic):
            raise ConfigError(f"there is no topic {topic!r}")
        self._closed.pop(topic, None)

    def is_closed(self, topic: str, partition: int) -> bool:
        closed = self._closed.get(topic)
        return closed is not None and partition in closed

    def closed_partitions(self) -> dict[str, list[int]]:
        return {topic: sorted(numbers) for topic, numbers in self._closed.items() if numbers}

    # --- listeners

    def add_property_change_listener(self, event: str, listener: Listener) -> None:
        """UnknownKeyError unless `event` is one of EVENTS."""
        if event not in self._listeners:
            raise UnknownKeyError(event, EVENTS, what="property")
        self._listeners[event].append(listener)

    def remove_property_change_listener(self, listener: Listener) -> None:
        for listeners in self._listeners.values():
            if listener in listeners:
                listeners.remove(listener)

    def _fire(self, *events: str) -> None:
        for event in events:
            for listener in list(self._listeners[event]):
                try:
                    listener()
                except Exception:
                    logger.exception("a listener of %s failed", event)

    def _topic_config(self, topic: str, values: Mapping[str, str]) -> TopicConfig:
        if not topic or any(character.isspace() for character in topic):
            raise ConfigError(
                f"{topic!r} cannot be a topic: its name must not be empty or contain white space"
            )
        if "/" in topic or "\0" in topic or topic in (".", "..") or len(topic) > TOPIC_MAX:
            raise ConfigError(
                f"{topic[:80]!r} cannot be a topic: it must be usable as the name of a directory"
            )
        groups = {
            key.removeprefix(GROUP_KEY): value
            for key, value in values.items()
            if key.startswith(GROUP_KEY) and value
        }
        plain = {key: value for key, value in values.items() if not key.startswith(GROUP_KEY)}
        own = _values(f"topic={topic}", plain, _TOPIC_KEYS)
        own.pop("topic", None)
        shared = {
            each.name: getattr(self.system, each.name)
            for each in _TOPIC_KEYS.values()
            if each.name not in ("topic", "data_path")
        }
        config = TopicConfig(
            **{
                **shared,
                "data_path": self.system.effective_data_path,
                **own,
                "topic": topic,
                "filter_class_names": groups,
            }
        )
        _check_schedule(config.delete_policy, config.delete_when)
        return config


def topic_pattern(name: str) -> re.Pattern[str]:
    """A configured name as a regular expression: `*` matches anything, all else is literal."""
    return re.compile(".*".join(map(re.escape, name.split("*"))))


def _topic_sections(sections: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        name.removeprefix(TOPIC_SECTION): values
        for name, values in sections.items()
        if name.startswith(TOPIC_SECTION)
    }


def _values(
    section: str, values: Mapping[str, str], keys: Mapping[str, dataclasses.Field[Any]]
) -> dict[str, Any]:
    """Field → value, for keys with a value."""
    found: dict[str, Any] = {}
    for key, text in values.items():
        if key not in keys:
            raise UnknownKeyError(key, keys, what=f"key in [{section}]:")
        if text:
            try:
                found[keys[key].name] = _value(key, text, str(keys[key].type))
            except ConfigError as error:
                raise ConfigError(f"[{section}] {key}: {error}") from None
    return found


def _value(key: str, text: str, kind: str) -> Any:
    if kind == "int":
        number = parse_int(text)
        low, high = _RANGES.get(key, (-(1 << 31), (1 << 31) - 1))
        if not low <= number <= high:
            raise ConfigError(f"{number} is not between {low} and {high}")
        return number
    if kind == "bool":
        return parse_bool(text)
    return text


def check_system(system: SystemConfig) -> None:
    """ConfigError."""
    for key, each in _SYSTEM_KEYS.items():
        if key in _RANGES:
            low, high = _RANGES[key]
            number = getattr(system, each.name)
            if not low <= number <= high:
                raise ConfigError(f"{key} is {number}; it must be between {low} and {high}")
    if re.search(r"[\s/?#@]", system.host_name):
        raise ConfigError(f"hostName is {system.host_name!r}; it must be usable in meta://<hostName>:<port>")
    _check_schedule(system.delete_policy, system.delete_when)


def _check_schedule(delete_policy: str, delete_when: str) -> None:
    parse_delete_policy(delete_policy)
    parse_cron(delete_when)


def _read(path: str) -> tuple[bytes, int]:
    with open(path, "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime_ns


def _decode(raw: bytes) -> str:
    """UTF-8, or GBK as in the original's distribution."""
    for encoding in ("utf-8", "gbk"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            pass
    raise ConfigError("neither UTF-8 nor GBK")


def _in_file(error: ConfigError, path: str) -> ConfigError:
    error.args = (f"{path}: {error}",)
    return error


def topic_values(assignments: Iterable[str]) -> dict[str, dict[str, str]]:
    """`["orders=4", "log"]` → topics and their settings. ConfigError."""
    found: dict[str, dict[str, str]] = {}
    for text in assignments:
        topic, equals, count = text.partition("=")
        if equals and not count.isdigit():
            raise ConfigError(f"{text!r}: NAME=PARTITIONS is needed")
        found[topic] = {"numPartitions": count} if equals else {}
    return found
