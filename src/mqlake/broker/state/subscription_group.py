"""SubscriptionGroupManager: what each consumer group may do, kept in subscriptionGroup.json.

{"dataVersion":…,"forbiddenTable":{"G":{"T":1}},"subscriptionGroupTable":{"G":{"consumeEnable":true,…}}}

A group that is not configured is created with the defaults when it is first used, as in RocketMQ.
`forbiddenTable` holds bits for a group and topic; bit 0 forbids the group to read the topic.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import ConfigError, IllegalTopicError, ResponseError
from mqlake.message import validate_topic
from mqlake.message.groups import BUILT_IN_GROUPS, SYSTEM_GROUP_PREFIX
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, SubscriptionGroupWrapper
from mqlake.remoting.bodies.client import MessageRequestModes, SetMessageRequestModeRequestBody
from mqlake.remoting.bodies.topic import QUEUES_MAX
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

GROUP_LENGTH_MAX = 255
FORBIDDEN_READ_BIT = 0


def is_legal_group(group: str) -> bool:
    """True if a group may have this name: 1 to 255 of the characters a topic may have."""
    try:
        for start in range(0, max(len(group), 1), 127):  # a topic may have 127
            validate_topic(group[start : start + 127])
    except IllegalTopicError:
        return False
    return len(group) <= GROUP_LENGTH_MAX


class SubscriptionGroupManager(ConfigManager):
    """`auto_create`: create groups at their first use; `create_sys_groups`: create RocketMQ's own in any case."""

    def __init__(self, path: str, auto_create: bool = True, create_sys_groups: bool = True) -> None:
        super().__init__(path)
        self.auto_create = auto_create
        self.create_sys_groups = create_sys_groups
        self._content = SubscriptionGroupWrapper(
            subscription_group_table={
                group: SubscriptionGroupConfig(group_name=group) for group in BUILT_IN_GROUPS
            },
            forbidden_table={},
        )
        self.data_version = self._content.data_version

    @property
    def subscription_group_table(self) -> dict[str, SubscriptionGroupConfig]:
        return self._content.subscription_group_table

    @property
    def forbidden_table(self) -> dict[str, dict[str, int]]:
        table = self._content.forbidden_table
        assert table is not None
        return table

    # --- groups

    def find_subscription_group_config(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, created if needed; None if it may not be created."""
        config = self.subscription_group_table.get(group)
        if config is None and self._may_create(group):
            config = SubscriptionGroupConfig(group_name=group)
            self.subscription_group_table[group] = config
            logger.info("new subscription group %s", group)
            # created again at its next use, so it need not be on disk at once
            self._changed()
        return config

    def existing_group(self, group: str) -> SubscriptionGroupConfig:
        """Like find_subscription_group_config. ResponseError SUBSCRIPTION_GROUP_NOT_EXIST."""
        config = self.find_subscription_group_config(group)
        if config is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group[:300]}: create it, or set autoCreateSubscriptionGroup=true "
                f"(and use letters, digits and % | _ - only)",
            )
        return config

    def _may_create(self, group: str) -> bool:
        wanted = self.auto_create or (self.create_sys_groups and group.startswith(SYSTEM_GROUP_PREFIX))
        return wanted and is_legal_group(group)

    def contains_subscription_group(self, group: str) -> bool:
        return group in self.subscription_group_table

    def update_subscription_group_config(self, config: SubscriptionGroupConfig) -> None:
        """Creates or replaces a group. ConfigError if its name or its attributes are not allowed, OSError."""
        self.update_subscription_group_config_list([config])

    def update_subscription_group_config_list(self, configs: list[SubscriptionGroupConfig]) -> None:
        """All of them, or none. ConfigError, OSError."""
        for config in configs:
            if not is_legal_group(config.group_name):
                raise ConfigError(
                    f"the group name {config.group_name[:300]!r} is not allowed: "
                    f"1 to {GROUP_LENGTH_MAX} letters, digits and % | _ -"
                )
            if config.retry_queue_nums > QUEUES_MAX:  # the retry topic would have that many
                raise ConfigError(
                    f"retryQueueNums of {config.group_name} is {config.retry_queue_nums}: at most {QUEUES_MAX}"
                )
            if config.attributes:
                raise ConfigError(
                    f"unsupported key: {next(iter(config.attributes))!r}; groups have no attributes"
                )
        table = self.subscription_group_table
        before = dict(table)
        for config in configs:
            old = table.get(config.group_name)
            config.attributes = dict(old.attributes or {}) if old is not None else {}
            table[config.group_name] = config
        self._changed()
        self._persist_or(lambda: self._restore(before))

    def delete_subscription_group_config(self, group: str) -> bool:
        """True if there was such a group. OSError."""
        before = dict(self.subscription_group_table)
        forbidden = self.forbidden_table.pop(group, None)
        if self.subscription_group_table.pop(group, None) is None:
            return False
        self._changed()

        def undo() -> None:
            self._restore(before)
            if forbidden is not None:
                self.forbidden_table[group] = forbidden

        self._persist_or(undo)
        return True

    def take_over(self, wrapper: SubscriptionGroupWrapper) -> set[str]:
        """A slave's: the groups, permissions and version of the master, in one step; the groups that are gone."""
        gone = self.subscription_group_table.keys() - wrapper.subscription_group_table.keys()
        self._content = dataclasses.replace(
            wrapper,
            subscription_group_table=dict(wrapper.subscription_group_table),
            forbidden_table=dict(
                self.forbidden_table if wrapper.forbidden_table is None else wrapper.forbidden_table
            ),
        )
        self.data_version = self._content.data_version
        self.dirty = True
        return gone

    # --- what is forbidden

    def get_forbidden(self, group: str, topic: str, forbidden_index: int = FORBIDDEN_READ_BIT) -> bool:
        bits = self.forbidden_table.get(group, {}).get(topic, 0)
        return bits > 0 and bits >> forbidden_index & 1 == 1

    def update_forbidden(self, group: str, topic: str, forbidden_index: int, forbid: bool) -> None:
        """Sets or clears one bit of a group and topic. OSError."""
        topics = self.forbidden_table.setdefault(group, {})
        before = max(topics.get(topic, 0), 0)
        bit = 1 << forbidden_index

        def put(bits: int) -> None:
            topics.pop(topic, None)
            if bits:
                topics[topic] = bits
            if topics:
                self.forbidden_table[group] = topics
            else:
                self.forbidden_table.pop(group, None)

        put(before | bit if forbid else before & ~bit)
        self._changed()
        self._persist_or(lambda: put(before))

    # --- the file

    def _changed(self) -> None:
        self.data_version.next_version()
        self.dirty = True

    def _persist_or(self, undo: Any) -> None:
        """Persists an operator's change before it is answered; undoes it if that fails."""
        try:
            self.persist()
        except OSError:
            undo()
            raise

    def _restore(self, table: dict[str, SubscriptionGroupConfig]) -> None:
        self._content.subscription_group_table = table

    def encode(self) -> dict[str, Any]:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        wrapper = SubscriptionGroupWrapper(
            subscription_group_table=dict(self.subscription_group_table),
            forbidden_table={group: dict(topics) for group, topics in self.forbidden_table.items()},
            data_version=dataclasses.replace(self.data_version),
        )
        return lambda: _content_of(wrapper)

    def decode(self, value: Any) -> None:
        loaded = SubscriptionGroupWrapper.from_value(value)
        self.subscription_group_table.update(loaded.subscription_group_table)
        self.forbidden_table.update(loaded.forbidden_table or {})
        self._content.data_version = self.data_version = loaded.data_version


def _content_of(wrapper: SubscriptionGroupWrapper) -> dict[str, Any]:
    content = wrapper.to_value()
    for config in content["subscriptionGroupTable"].values():
        if (subscriptions := config.get("subscriptionDataSet")) is not None:
            config["subscriptionDataSet"] = tuple(subscriptions)  # a Set there
    return content


class MessageRequestModeManager(ConfigManager):
    """How the members of a group get the messages of a topic, if an operator has set it: messageRequestMode.json.

    {"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"PULL","popShareQueueNum":0,"topic":"T"}}}}
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.modes = MessageRequestModes()

    def set_message_request_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """On the disk when it returns. OSError."""
        self.modes.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.persist()

    def encode(self) -> dict[str, Any]:
        return self.modes.to_value()

    def decode(self, value: Any) -> None:
        self.modes = MessageRequestModes.from_value(value)
