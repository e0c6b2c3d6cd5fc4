"""ConsumerOffsetManager: the progress of each group in each queue, kept in consumerOffset.json.

{"dataVersion":…,"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:12,1:7}}}

offset table    committed by consumers; may go backwards, the last commit counts
pull offsets    how far consumers have pulled, for statistics; not kept on disk
reset offsets   set by an operator: answered until the group's next pull takes them. Commits that come before that
                pull are from before the reset, so they are dropped

`groupTopicMap` is written because RocketMQ writes it (it comes from a getter there); it is never read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from mqlake.broker.state.config_manager import ConfigManager
from mqlake.remoting.bodies.admin import ConsumerOffsetSerializeWrapper
from mqlake.remoting.bodies.topic import DataVersion

logger = logging.getLogger(__name__)

TOPIC_GROUP_SEPARATOR = "@"
ResetListener = Callable[[str | None, str | None, int | None], None]
"""(topic, group, queue id) whose offsets count no more; None for all."""
Offsets = dict[int, int]
"""Queue id → queue offset of the next message to consume."""


def topic_at_group(topic: str, group: str) -> str:
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def split_topic_at_group(key: str) -> tuple[str, str] | None:
    """(topic, group), None if the key has another form."""
    parts = key.split(TOPIC_GROUP_SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 else None


class ConsumerOffsetManager(ConfigManager):
    """`update_version_step`: commits per new data version (consumerOffsetUpdateVersionStep). `server_side_reset`:
    reset offsets are answered (useServerSideResetOffset)."""

    def __init__(self, path: str, update_version_step: int = 500, server_side_reset: bool = True) -> None:
        super().__init__(path)
        self.offset_table: dict[str, Offsets] = {}
        self.data_version = DataVersion()
        self._update_version_step = update_version_step
        self.server_side_reset = server_side_reset
        self._commits = 0
        self._pull_offset_table: dict[str, Offsets] = {}
        self._reset_offset_table: dict[str, Offsets] = {}
        self.keeps_own_commits = False
        """A slave's: note what is committed here, for take_over()."""
        self.committed_here: set[tuple[str, int]] = set()
        """A slave's: (topic@group, queue id) of commits that came to this broker and that its master may not have."""
        self.before_write: Callable[[], None] | None = None
        """Called on any thread before offsets are written: makes the work durable that they say is done."""
        self.reset_listeners: list[ResetListener] = []
        """Called after offsets were reset or removed."""

    # --- commits

    def commit_offset(self, client_host: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """`client_host` is logged when the offset goes backwards."""
        key = f"{topic}@{group}"
        offsets = self.offset_table.get(key)
        if offsets is None:
            offsets = self.offset_table[key] = {}
        before = offsets.get(queue_id, -1)
        if offset < before:
            logger.warning(
                "%s: %s, queue %d goes back from %d to %d", client_host, key, queue_id, before, offset
            )
        if offset != before:
            offsets[queue_id] = offset
            self.dirty = True
            if self.keeps_own_commits:
                self.committed_here.add((key, queue_id))
        self._commits += 1
        if self._commits % self._update_version_step == 0:
            self.data_version.next_version()
            self.dirty = True

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """The offset, an operator's reset first; -1 if it is unknown."""
        key = f"{topic}@{group}"
        if self.server_side_reset and (reset := self._reset_offset_table.get(key)) is not None:
            offset = reset.get(queue_id)
            if offset is not None:
                return offset
        offsets = self.offset_table.get(key)
        return offsets.get(queue_id, -1) if offsets is not None else -1

    def query_offsets(self, group: str, topic: str) -> Offsets | None:
        """All committed offsets of a group in a topic."""
        return self.offset_table.get(topic_at_group(topic, group))

    # --- pulls

    def commit_pull_offset(
        self, client_host: str, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        self._pull_offset_table.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def query_pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """How far the group has pulled, else what it has committed."""
        offset = self._pull_offset_table.get(f"{topic}@{group}", {}).get(queue_id)
        return self.query_offset(group, topic, queue_id) if offset is None else offset

    # --- resets

    def assign_reset_offset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """From now on the group begins at `offset`, whether or not its consumers are connected."""
        if not topic or not group or queue_id < 0 or offset < 0:
            logger.warning("no reset of %r for %r: queue %d, offset %d", topic, group, queue_id, offset)
            return
        key = topic_at_group(topic, group)
        self._reset_offset_table.setdefault(key, {})[queue_id] = offset
        self.offset_table.setdefault(key, {})[queue_id] = offset
        self.dirty = True
        self._was_reset(topic, group, queue_id)

    def has_offset_reset(self, topic: str, group: str, queue_id: int) -> bool:
        return self.server_side_reset and queue_id in self._reset_offset_table.get(f"{topic}@{group}", ())

    def query_then_erase_reset_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Removes and returns the pending reset of a queue."""
        resets = self._reset_offset_table.get(f"{topic}@{group}")
        if resets is None:
            return None
        offset = resets.pop(queue_id, None)
        if not resets:
            del self._reset_offset_table[f"{topic}@{group}"]
        return offset

    # --- a slave

    def take_over(self, wrapper: ConsumerOffsetSerializeWrapper) -> list[tuple[str, int, int]]:
        """The master's offsets, which may go back (a reset): only commits that came to this broker stay when they are
        larger. Those are returned: (topic@group, queue id, offset), for the master to have them."""
        ahead = []
        for key, queue_id in list(self.committed_here):
            own = self.offset_table.get(key, {}).get(queue_id, -1)
            if own > wrapper.offset_table.get(key, {}).get(queue_id, -1):
                ahead.append((key, queue_id, own))
            else:
                self.committed_here.discard((key, queue_id))
        table = {key: dict(offsets) for key, offsets in wrapper.offset_table.items()}
        for key, offset in (wrapper.lmq_offset_table or {}).items():
            table.setdefault(key, {})[0] = offset
        for key, queue_id, own in ahead:
            table.setdefault(key, {})[queue_id] = own
        if table != self.offset_table:
            self.offset_table = table
            self.dirty = True
        self.data_version = wrapper.data_version or self.data_version
        return ahead

    # --- groups and topics

    def _keys(self, part: str = "") -> Iterator[tuple[str, str, str]]:
        """(key, topic, group) of all keys that contain `part`; the table may change during the iteration.

        Operators ask for each of thousands of groups in turn, so most keys must cost no more than a comparison.
        """
        for key in list(self.offset_table):
            if part in key and (parts := split_topic_at_group(key)) is not None:
                yield key, *parts

    def which_topic_by_consumer(self, group: str) -> set[str]:
        return {topic for _, topic, of in self._keys(f"{TOPIC_GROUP_SEPARATOR}{group}") if of == group}

    def which_group_by_topic(self, topic: str) -> set[str]:
        return {group for _, of, group in self._keys(f"{topic}{TOPIC_GROUP_SEPARATOR}") if of == topic}

    def group_topic_map(self) -> dict[str, set[str]]:
        topics: dict[str, set[str]] = {}
        for _, topic, group in self._keys():
            topics.setdefault(group, set()).add(topic)
        return topics

    def clone_offset(self, src_group: str, dest_group: str, topic: str) -> None:
        offsets = self.offset_table.get(topic_at_group(topic, src_group))
        if offsets is not None:
            self.offset_table[topic_at_group(topic, dest_group)] = dict(offsets)
            self.dirty = True

    def query_min_offset_in_all_group(
        self, topic: str, filter_groups: str | None, min_offset_in_queue: Callable[[str, int], int]
    ) -> Offsets:
        """Queue id → the least offset of any group in the topic, groups in the `,` list left out.

        Offsets of messages that are already deleted do not count. (RocketMQ deletes the offsets of the groups that
        are left out; here they stay.)
        """
        left_out = set((filter_groups or "").split(","))
        least: Offsets = {}
        for key, of, group in self._keys(f"{topic}{TOPIC_GROUP_SEPARATOR}"):
            if of != topic or group in left_out:
                continue
            for queue_id, offset in self.offset_table[key].items():
                if offset >= min_offset_in_queue(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        return least

    # --- cleaning

    def clean_offset_by_topic(self, topic: str) -> None:
        """Forgets every group's offsets in a deleted topic."""
        self._remove(lambda of, group: of == topic)
        self._was_reset(topic, None, None)

    def remove_offset(self, group: str) -> None:
        """Forgets all offsets of a deleted group."""
        self._remove(lambda topic, of: of == group)
        self._was_reset(None, group, None)

    def _was_reset(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        for listener in self.reset_listeners:
            listener(topic, group, queue_id)

    def _remove(self, is_meant: Callable[[str, str], bool]) -> None:
        for table in (self.offset_table, self._pull_offset_table, self._reset_offset_table):
            for key in list(table):
                parts = split_topic_at_group(key)
                if parts is not None and is_meant(*parts):
                    logger.warning("the offsets of %s are removed: %s", key, table.pop(key))
                    self.dirty = True

    # --- the file

    def encode(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version.to_value(),
            "groupTopicMap": self.group_topic_map(),
            "offsetTable": {key: dict(offsets) for key, offsets in self.offset_table.items()},
        }

    def _write(self, copy: int, content: Callable[[], dict[str, Any]]) -> None:
        if self.before_write is not None:
            self.before_write()
        super()._write(copy, content)

    def decode(self, value: Any) -> None:
        loaded = ConsumerOffsetSerializeWrapper.from_value(value)
        self.offset_table = loaded.offset_table
        self.data_version = loaded.data_version or DataVersion()
