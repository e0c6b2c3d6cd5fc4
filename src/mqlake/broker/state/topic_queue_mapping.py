"""TopicQueueMappingManager: the mappings of the static topics that this broker has a part in (topicQueueMapping.json).

{"dataVersion":{…},"topicQueueMappingInfoMap":{"T":{"bname":"a","epoch":1,"hostedQueues":{0:[{…}]},"totalQueues":8,…}}}
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import MappingError
from mqlake.remoting.bodies.topic import (
    DataVersion,
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
    TopicQueueMappingSerializeWrapper,
)
from mqlake.remoting.static_topic import accepted, mapping_info

logger = logging.getLogger(__name__)


class TopicQueueMappingManager(ConfigManager):
    def __init__(self, path: str, broker_name: str) -> None:
        super().__init__(path)
        self._broker_name = broker_name
        self.table: dict[str, TopicQueueMappingDetail] = {}
        """Topic → its mapping, which is replaced by another at each change."""
        self.data_version = DataVersion()

    def update(self, detail: TopicQueueMappingDetail, *, force: bool = False) -> None:
        """An operator's change. MappingError if it contradicts what is known, unless `force`."""
        if detail.bname != self._broker_name:
            raise MappingError(
                f"the mapping is for the broker {detail.bname}, and this is {self._broker_name}"
            )
        self._put(accepted(self.table.get(detail.topic), detail, force=force))

    def set_queues(self, topic: str, hosted: Mapping[int, list[LogicQueueMappingItem]]) -> None:
        """The cleaning's: parts without messages are gone."""
        self._put(dataclasses.replace(self.table[topic], hosted_queues=dict(hosted)))

    def _put(self, detail: TopicQueueMappingDetail) -> None:
        logger.info("mapping of topic %s: %s", detail.topic, detail.to_json().decode())
        self.table[detail.topic] = detail
        self._changed()

    def delete(self, topic: str) -> None:
        if self.table.pop(topic, None) is not None:
            self._changed()

    def take_over(self, table: Mapping[str, TopicQueueMappingDetail], version: DataVersion) -> None:
        """A slave's: the master's mappings and their version."""
        self.table = dict(table)
        self.data_version = dataclasses.replace(version)
        self.dirty = True

    def _changed(self) -> None:
        self.data_version.next_version()
        self.dirty = True

    def infos(self, topics: Iterable[str]) -> dict[str, TopicQueueMappingInfo]:
        """Returns what name servers are told of the static topics among these."""
        return {topic: mapping_info(self.table[topic]) for topic in topics if topic in self.table}

    # --- disk

    def encode(self) -> dict[str, Any]:
        wrapper = TopicQueueMappingSerializeWrapper(
            topic_queue_mapping_info_map=self.table, data_version=self.data_version
        )
        return wrapper.to_value()

    def decode(self, value: Any) -> None:
        loaded = TopicQueueMappingSerializeWrapper.from_value(value)
        self.table.update(loaded.topic_queue_mapping_info_map)
        self.data_version = loaded.data_version
