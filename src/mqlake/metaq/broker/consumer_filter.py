"""ConsumerFilterManager: filters at the broker, which keep messages from consumer groups that do not want them.

    [topic=orders]
    group.billing = my.filters:only_paid        only_paid(group, message) -> bool

The original loads a Java class and sends the accepted records back to back, so a consumer's offsets are wrong as soon
as one record between them is left out. Here an answer is a range of the file in which all records were accepted; a
301 leads the consumer over the others. So its offsets stay those of the file.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

from mqlake.metaq.config.meta_config import MetaConfig
from mqlake.metaq.formats.record import MessageIterator
from mqlake.metaq.message import Message

logger = logging.getLogger(__name__)

Accepts = Callable[[str, Message], bool]
"""Given the consumer group and a message."""


class ConsumerFilterManager:
    def __init__(self, config: MetaConfig) -> None:
        self._config = config
        self._loaded: dict[str, Accepts | None] = {}
        self._any = False
        config.add_property_change_listener("topics", self._topics_changed)
        self._topics_changed()

    def _topics_changed(self) -> None:
        self._any = any(topic.filter_class_names for topic in self._config.topic_config_map.values())

    def find(self, topic: str, group: str) -> Accepts | None:
        """The group's filter for the topic; None if it has none."""
        if not self._any:
            return None
        name = self._config.topic_config(topic).filter_class_names.get(group)
        if name is None:
            return None
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def accepted(self, accepts: Accepts, group: str, topic: str, data: bytes) -> tuple[int, bytes]:
        """Returns (bytes to skip, the run of accepted records after them)."""
        messages = MessageIterator(topic, data)
        start = 0
        while True:
            before = messages.offset
            try:
                message = next(messages)
            except StopIteration:
                # with the incomplete record at the end: a record larger than the request would never arrive otherwise
                return start, data[start:] if before == start == 0 else data[start:before]
            wanted = _asked(accepts, group, message)
            if not wanted and before > start:
                return start, data[start:before]
            if not wanted:
                start = messages.offset


def _asked(accepts: Accepts, group: str, message: Message) -> bool:
    try:
        return accepts(group, message)
    except Exception:
        logger.exception("the filter of group %s failed on message %d, which is skipped", group, message.id)
        return False


def _load(name: str) -> Accepts | None:
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise ValueError("module:function is needed; Java classes cannot be loaded")
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError("not a function")
    except Exception as error:
        logger.error("the consumer filter %s is not used: %s", name, error)
        return None
    accepts: Accepts = found
    return accepts
