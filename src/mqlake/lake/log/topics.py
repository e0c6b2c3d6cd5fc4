"""Checks that a store has the topics that a read names, as far as that is known without reading its log.

A topic has a directory of consume queues once it has a message, and stands in config/topics.json once it was made.
One that neither knows is a mistake, and is said to be, as Spark's Kafka source does. A topic that was deleted while
its messages are in the log is read with `skipping=false`, which asks the log alone.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from mqlake.errors import NotThereError, did_you_mean, nearest
from mqlake.lake.log.queue_files import DIRECTORIES
from mqlake.lake.log.storage import Storage
from mqlake.lake.options import LogOptions
from mqlake.message import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX, is_system_topic


def check_topics(options: LogOptions) -> None:
    """NotThereError for a topic of the option `topics` that none of the stores has, with the nearest that one has.

    Topics that come into being by themselves (of retries, and of brokers) may be named before they are there. Where a
    store has no consume queues, nothing is known.
    """
    if options.topics is None or not (options.unpack and options.skipping):
        return
    known: set[str] = set()
    for storage in options.stores:
        queues = {topic for directory in DIRECTORIES.values() for topic in storage.directories(directory)}
        if not queues:
            return
        known |= queues | topic_configs(storage).keys()
    made_by_hand = {
        topic
        for topic in options.topics
        if not is_system_topic(topic)
        and not topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))
    }
    require_topics(made_by_hand, known)


def require_topics(wanted: Set[str], known: Set[str]) -> None:
    """NotThereError for the first that is not known, with the nearest that is."""
    for topic in sorted(wanted - known):
        raise NotThereError(f"there is no topic {topic!r}{did_you_mean(nearest(topic, known))}")


def topic_configs(storage: Storage) -> dict[str, Any]:
    """By topic what config/topics.json says of it; empty when it cannot be read."""
    found = storage.json_object("config", "topics.json").get("topicConfigTable")
    return found if isinstance(found, dict) else {}
