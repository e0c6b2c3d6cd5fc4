"""TopicConfigManager: the topics of this broker, kept in topics.json.

{"dataVersion":{…},"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,…}}}

Topics come from an operator, from the broker itself (RocketMQ's built-in ones) or from a send to an unknown topic: then
the topic that the client names as its default (TBW102) is the pattern. A topic that a send created is on disk and known
to the name servers before the send is answered; see `settled`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mqlake.broker.config import BrokerConfig
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import ConfigError, IllegalTopicError, ResponseError
from mqlake.message import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    LMQ_PREFIX,
    OFFSET_MOVED_EVENT,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    is_system_topic,
    validate_topic,
)
from mqlake.remoting.bodies.topic import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

WRITE_PAUSE_MAX_S = 0.5
PERM_READ_WRITE = PERM_READ | PERM_WRITE
SCHEDULE_TOPIC_QUEUE_NUM = 18
NO_BATCH = -1
"""The beginning of a queue of batches that has never had one, in RocketMQ."""
QUEUE_TYPE = "queue.type"
CLEANUP_POLICY = "cleanup.policy"
MESSAGE_TYPE = "message.type"

_CHOICES: dict[str, frozenset[str]] = {
    QUEUE_TYPE: frozenset({"SimpleCQ", "BatchCQ"}),
    CLEANUP_POLICY: frozenset({"DELETE"}),  # COMPACTION: there is no compaction here
    MESSAGE_TYPE: frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"}),
}
_CHANGEABLE = frozenset({MESSAGE_TYPE})
_USUAL = {
    QUEUE_TYPE: frozenset({"SimpleCQ"}),
    CLEANUP_POLICY: frozenset({"DELETE"}),
    MESSAGE_TYPE: _CHOICES[MESSAGE_TYPE] - {"PRIORITY"},
}
"""Attributes with which a broker treats messages as it does those of a topic without any."""


class TopicConfigManager(ConfigManager):
    def __init__(self, path: str, config: Callable[[], BrokerConfig]) -> None:
        super().__init__(path)
        self._config = config
        self.on_change: Callable[[list[TopicConfig]], asyncio.Future[None] | None] = lambda topics: None
        """Called with the topics that were added or changed in one loop iteration; its future is done when the name
        servers know them."""
        self.topic_config_table: dict[str, TopicConfig] = {}
        self.data_version = DataVersion()
        self._writing = asyncio.Lock()
        self._write_after = 0.0
        """Each write covers the whole table: while topics keep coming, writes take at most half of the time."""
        self.system_topics: set[str] = set()
        """The built-in topics of this broker, by name."""
        self.unsettled: dict[str, asyncio.Future[None]] = {}
        """Topics that are not yet on disk and known to the name servers → a future that is done when they are."""
        self._new_topics: dict[str, TopicConfig] = {}
        self._settling: asyncio.Future[None] | None = None
        """The task that will settle `_new_topics`, until it starts."""

    # --- what is known

    def select_topic_config(self, topic: str) -> TopicConfig | None:
        return self.topic_config_table.get(topic)

    def existing_topic(self, topic: str) -> TopicConfig:
        """ResponseError TOPIC_NOT_EXIST."""
        config = self.topic_config_table.get(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def is_order_topic(self, topic: str) -> bool:
        config = self.topic_config_table.get(topic)
        return config is not None and config.order

    def is_batch_topic(self, topic: str) -> bool:
        """True if the topic keeps inner batches (queue.type=BatchCQ). From any thread."""
        config = self.topic_config_table.get(topic)
        return config is not None and (config.attributes or {}).get(QUEUE_TYPE) == "BatchCQ"

    # --- topics that make themselves

    def create_topic_in_send_message_method(
        self,
        topic: str,
        default_topic: str,
        remote_addr: str,
        client_default_topic_queue_nums: int,
        topic_sys_flag: int,
    ) -> TopicConfig | None:
        """The topic, created after the pattern of `default_topic` if needed. None if it may not be created."""
        known = self.topic_config_table.get(topic)
        if known is not None:
            return known
        pattern = self.topic_config_table.get(default_topic)
        if pattern is None or not pattern.perm & PERM_INHERIT:
            why = "does not exist" if pattern is None else f"has permission {pattern.perm}"
            logger.warning(
                "%s: topic %s is not made: its default topic %s %s", remote_addr, topic, default_topic, why
            )
            return None
        if default_topic == AUTO_CREATE_TOPIC_KEY_TOPIC and not self._config().auto_create_topic_enable:
            pattern.perm = PERM_READ_WRITE
            return None
        queue_nums = max(0, min(client_default_topic_queue_nums, pattern.write_queue_nums))
        return self._create(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=pattern.perm & ~PERM_INHERIT,
                topic_filter_type=pattern.topic_filter_type,
                topic_sys_flag=topic_sys_flag,
            )
        )

    def create_topic_in_send_message_back_method(
        self, topic: str, queue_nums: int, perm: int, topic_sys_flag: int, *, is_order: bool = False
    ) -> TopicConfig:
        """The topic (a retry topic, a dead letter queue), created if needed."""
        known = self.topic_config_table.get(topic)
        if known is None:
            return self._create(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queue_nums,
                    write_queue_nums=queue_nums,
                    perm=perm,
                    topic_sys_flag=topic_sys_flag,
                    order=is_order,
                )
            )
        if known.order != is_order:
            known.order = is_order
            self._changed([known])
        return known

    def create_topic_if_absent(self, config: TopicConfig) -> TopicConfig:
        return self.topic_config_table.get(config.topic_name) or self._create(config)

    def _create(self, config: TopicConfig) -> TopicConfig:
        queues = config.read_queue_nums, config.write_queue_nums
        logger.info(
            "new topic %s: %d read and %d write queues, perm %d", config.topic_name, *queues, config.perm
        )
        self.topic_config_table[config.topic_name] = config
        self._changed([config])
        return config

    def make_from_queues(self, queues: Iterable[tuple[str, int, str]]) -> list[TopicConfig]:
        """Makes topics of which there are consume queues (topic, queue id, queue type), and which are not known, as far
        as these tell: with permission to read and write, and as many queues as the highest number asks for."""
        found: dict[str, tuple[int, str]] = {}
        for topic, queue_id, queue_type in queues:
            if topic not in self.topic_config_table and _may_be_lost(topic):
                found[topic] = max(found.get(topic, (0, ""))[0], queue_id + 1), queue_type
        made = [
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=PERM_READ_WRITE,
                attributes={QUEUE_TYPE: queue_type} if queue_type == "BatchCQ" else {},
            )
            for topic, (queue_nums, queue_type) in found.items()
        ]
        self.topic_config_table.update({config.topic_name: config for config in made})
        if made:
            self.data_version.next_version()
            self.dirty = True
        return made

    # --- an operator's changes

    def update_topic_config(self, config: TopicConfig) -> None:
        """Creates or changes a topic. Its attributes are edits: `+name` sets, `-name` removes. ConfigError."""
        self.update_topic_config_list([config])

    def update_topic_config_list(self, configs: Iterable[TopicConfig]) -> None:
        """All of them, or none. ConfigError."""
        changed = []
        for config in configs:
            known = self.topic_config_table.get(config.topic_name)
            current = None if known is None else dict(known.attributes or {})
            attributes = alter_attributes(current, config.attributes or {})
            changed.append(dataclasses.replace(config, attributes=attributes))
        for config in changed:
            logger.info("topic %s: %s", config.topic_name, config.to_json().decode())
            self.topic_config_table[config.topic_name] = config
        self._changed(changed)

    def update_order_topic_config(self, order_topics: Mapping[str, str]) -> None:
        """Topics that the name server's ORDER_TOPIC_CONFIG names are ordered."""
        changed = []
        for topic in order_topics:
            config = self.topic_config_table.get(topic)
            if config is not None and not config.order:
                config.order = True
                changed.append(config)
        if changed:
            self.data_version.next_version()
            self._persist_soon()

    def delete_topic_config(self, topic: str) -> None:
        if self.topic_config_table.pop(topic, None) is None:
            logger.warning("topic %s does not exist: nothing to delete", topic)
            return
        logger.info("topic %s is deleted", topic)
        self.data_version.next_version()
        self._persist_soon()

    def take_over(self, wrapper: TopicConfigSerializeWrapper) -> set[str]:
        """A slave's: the table and version of the master, in one step; the topics that are gone. Attributes are taken
        as they are, the built-in topics of this broker stay."""
        table = dict(wrapper.topic_config_table)
        for topic in self.system_topics:
            if topic not in table and topic in self.topic_config_table:
                table[topic] = self.topic_config_table[topic]
        gone = self.topic_config_table.keys() - table.keys()
        self.topic_config_table = table
        self.data_version = dataclasses.replace(wrapper.data_version)
        self._persist_soon()
        return gone

    # --- disk and name servers

    def _changed(self, configs: list[TopicConfig]) -> None:
        """Settles all changes of one loop iteration together: one heartbeat can create 10,000 topics."""
        self.data_version.next_version()
        self.dirty = True
        if not _has_loop():
            self.persist()
            self.on_change(configs)
            return
        if self._settling is None:
            self._settling = asyncio.ensure_future(self._settle())
        for config in configs:
            self._new_topics[config.topic_name] = config
            self.unsettled[config.topic_name] = self._settling

    async def _settle(self) -> None:
        settling, self._settling = self._settling, None
        topics, self._new_topics = self._new_topics, {}
        try:
            known = self.on_change(list(topics.values()))
            await self._persist_logged()
            if known is not None:
                await known
        finally:
            for topic in topics:
                if self.unsettled.get(topic) is settling:
                    del self.unsettled[topic]

    async def wait_settled(self, topics: Iterable[str]) -> None:
        """Returns when those of the topics that came or changed are on disk, and name servers have been told."""
        settling = {self.unsettled[topic] for topic in topics if topic in self.unsettled}
        if settling:
            await asyncio.wait(settling)

    def _persist_soon(self) -> None:
        """Writes in the background if there is an event loop, else before it returns."""
        self.dirty = True
        if _has_loop():
            self._persisting = asyncio.ensure_future(self._persist_logged())
        else:
            self.persist()

    async def _persist_logged(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with self._writing:  # later callers wait for the write that includes their change
                if self.dirty and (pause_s := self._write_after - clock()) > 0:
                    await asyncio.sleep(pause_s)
                began = clock()
                await self.persist_in_background()
                self._write_after = clock() + min(clock() - began, WRITE_PAUSE_MAX_S)
        except OSError as error:  # tried again with the next change, and at shutdown
            logger.error("%s cannot be written: %s", self.path, error)

    def build_serialize_wrapper(
        self, topics: Mapping[str, TopicConfig] | None = None
    ) -> TopicConfigAndMappingSerializeWrapper:
        """All topics, or those given, with the version of the whole table."""
        return TopicConfigAndMappingSerializeWrapper(
            topic_config_table=dict(self.topic_config_table if topics is None else topics),
            data_version=dataclasses.replace(self.data_version),
        )

    def encode(self) -> dict[str, Any]:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        wrapper = TopicConfigSerializeWrapper(
            topic_config_table=dict(self.topic_config_table),
            data_version=dataclasses.replace(self.data_version),
        )
        return wrapper.to_value

    def decode(self, value: Any) -> None:
        loaded = TopicConfigSerializeWrapper.from_value(value)
        self.topic_config_table.update(loaded.topic_config_table)
        self.data_version = loaded.data_version

    # --- built-in topics

    def init(self) -> None:
        """Puts RocketMQ's built-in topics into the table; topics loaded from the file replace them."""
        config = self._config()
        cluster, name = config.broker_cluster_name, config.broker_name
        cluster_perm = PERM_INHERIT | (PERM_READ_WRITE if config.cluster_topic_enable else 0)
        broker_perm = PERM_INHERIT | (PERM_READ_WRITE if config.broker_topic_enable else 0)
        self._built_in(SELF_TEST_TOPIC, 1)
        if config.auto_create_topic_enable:
            queue_nums = config.default_topic_queue_nums
            self._built_in(AUTO_CREATE_TOPIC_KEY_TOPIC, queue_nums, PERM_INHERIT | PERM_READ_WRITE)
        self._built_in(BENCHMARK_TOPIC, 1024)
        self._built_in(cluster, 16, cluster_perm)
        self._built_in(name, 1, broker_perm)
        self._built_in(OFFSET_MOVED_EVENT, 1)
        self._built_in(SCHEDULE_TOPIC, SCHEDULE_TOPIC_QUEUE_NUM)
        if config.trace_topic_enable or config.broker_message_trace_enable:
            self._built_in(config.msg_trace_topic_name, 1)
        self._built_in(f"{cluster}_REPLY_TOPIC", 1)
        self._built_in(f"rmq_sys_REVIVE_LOG_{cluster}", config.revive_queue_num)
        self._built_in(f"rmq_sys_SYNC_BROKER_MEMBER_{name}", 1, PERM_INHERIT)
        self._built_in(TRANS_HALF_TOPIC, 1)
        self._built_in(TRANS_OP_HALF_TOPIC, 1)
        self._built_in(TIMER_TOPIC, 1)

    def _built_in(self, topic: str, queue_nums: int, perm: int = PERM_READ_WRITE) -> None:
        self.system_topics.add(topic)
        self.topic_config_table[topic] = TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm
        )


def _may_be_lost(topic: str) -> bool:
    """True if queues of that name are of a topic that somebody made."""
    if is_system_topic(topic) or topic.startswith(LMQ_PREFIX):
        return False
    try:
        validate_topic(topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
    except IllegalTopicError:
        return False
    return True


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def has_usual_attributes(config: TopicConfig) -> bool:
    """True if a broker treats the topic's messages as it does those of a topic without attributes."""
    return all(value in _USUAL.get(name, ()) for name, value in (config.attributes or {}).items())


def alter_attributes(current: dict[str, str] | None, edits: Mapping[str, str]) -> dict[str, str]:
    """Attributes after the edits `+name` (set) and `-name` (remove); `current` None for a new topic.

    Raises ConfigError for names and values that RocketMQ's TopicAttributes does not have, and for changes of
    attributes that are fixed for a topic's life.
    """
    result = dict(current or {})
    names = set()
    for edit, value in edits.items():
        sign, name = edit[:1], edit[1:]
        if not name or sign not in ("+", "-") or "+" in name or "-" in name:
            raise ConfigError(f"topic attribute {edit!r}: +name=value or -name is needed")
        if name in names:
            raise ConfigError(f"topic attribute {name}: given twice")
        names.add(name)
        if name not in _CHOICES:
            raise ConfigError(f"topic attribute {name}: not known; there are {', '.join(sorted(_CHOICES))}")
        if current is None and sign == "-":
            raise ConfigError(f"topic attribute {name}: a new topic has no attributes to remove")
        if current is not None and name not in _CHANGEABLE:
            raise ConfigError(f"topic attribute {name}: cannot be changed once the topic is there")
        if sign == "-":
            if name not in result:
                raise ConfigError(f"topic attribute {name} is not set: nothing to remove")
            del result[name]
            continue
        if value not in _CHOICES[name]:
            raise ConfigError(
                f"topic attribute {name}={value}: it can be {', '.join(sorted(_CHOICES[name]))}"
            )
        result[name] = value
    return result
