"""StatsManager: the text of the `stats` command, with the original's fields in its order.

    STATS\r\n   name value value ...\r\n   END\r\n

The real-time counters are kept for topics with `stat=true` and start again every half hour.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from mqlake.metaq.config.meta_config import MetaConfig, topic_pattern
from mqlake.metaq.store.manager import MessageStoreManager

RESET_INTERVAL_S = 30 * 60
REALTIME_ITEMS = ("put", "get", "offset", "get_miss", "put_failed", "message_size")
HELP = (
    ("*EMPTY*", "Returns broker info."),
    ("help", "Returns help menu."),
    ("topics", "Returns topics statistics detail info."),
    ("offsets", "Returns partitions detail info."),
    ("realtime", "Returns realtime statistics detail info."),
    ("config", "Returns broker's config file content."),
)


class _Counter:
    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = self.value = 0


class RealTimeStat:
    """Item → topic → count and sum of the values."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._items: dict[str, dict[str, _Counter]] = {}
        self._since = clock()

    def add(self, item: str, topic: str, value: int) -> None:
        if self._clock() - self._since >= RESET_INTERVAL_S:
            self.reset()
        counter = self._items.setdefault(item, {}).setdefault(topic, _Counter())
        counter.count += 1
        counter.value += value

    def reset(self) -> None:
        self._since = self._clock()
        for topics in self._items.values():
            for counter in topics.values():
                counter.count = counter.value = 0

    def text(self, item: str, topic: str | None = None) -> str:
        """Returns the statistics of one topic, or of all together."""
        topics = self._items.get(item)
        if topics is None:
            return "null"
        if topic is not None and topic not in topics:
            return f"Invalid keyTwo:{topic}"
        counters = list(topics.values()) if topic is None else [topics[topic]]
        count, value = sum(each.count for each in counters), sum(each.value for each in counters)
        duration = int(self._clock() - self._since)
        average = _number(value / count) if count else "invalid"
        rate = _number(count / duration) if duration else "invalid"
        return f"Count={count},Value={value},Value/Count={average},Count/Duration={rate},Duration={duration}"


def _number(value: float) -> str:
    """Like Java's DecimalFormat("#.##"): two digits, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


class StatsManager:
    """Counters are plain attributes, which only the broker's loop changes."""

    def __init__(
        self,
        config: MetaConfig,
        manager: MessageStoreManager,
        *,
        version: str,
        connection_count: Callable[[], int] = lambda: 0,
        port: Callable[[], int] = lambda: 0,
        slave: bool = False,
    ) -> None:
        self._config = config
        self._manager = manager
        self._version = version
        self._connection_count = connection_count
        self._port = port
        self._slave = slave
        self._started_at = time.monotonic()
        self._stat_topics: dict[str, bool] = {}
        self.real_time = RealTimeStat()
        self.cmd_put = self.cmd_get = self.cmd_offset = 0
        self.tx_begin = self.tx_xa_begin = self.tx_commit = self.tx_rollback = 0
        self.get_miss = self.put_failed = 0
        config.add_property_change_listener("topics", self._stat_topics.clear)

    def _is_stat_topic(self, topic: str) -> bool:
        known = self._stat_topics.get(topic)
        if known is None:
            known = any(
                config.stat and topic_pattern(config.topic).fullmatch(topic)
                for config in self._config.topic_config_map.values()
            )
            if len(self._stat_topics) < 10_000:  # unknown topics must not fill the memory
                self._stat_topics[topic] = known
        return known

    def _add(self, item: str, topic: str, value: int) -> None:
        if self._is_stat_topic(topic):
            self.real_time.add(item, topic, value)

    def stats_put(self, topic: str, size: int | None = None) -> None:
        self.cmd_put += 1
        if self._is_stat_topic(topic):
            self.real_time.add("put", topic, 1)
            if size is not None:
                self.real_time.add("message_size", topic, size)

    def stats_put_failed(self, topic: str) -> None:
        self.put_failed += 1
        self._add("put_failed", topic, 1)

    def stats_get(self, topic: str) -> None:
        self.cmd_get += 1
        self._add("get", topic, 1)

    def stats_get_miss(self, topic: str) -> None:
        self.get_miss += 1
        self._add("get_miss", topic, 1)

    def stats_offset(self, topic: str) -> None:
        self.cmd_offset += 1
        self._add("offset", topic, 1)

    # --- as text

    def get_stats_info(self, item: str) -> str:
        """`item`: empty, topics, offsets, realtime, help, reset or a topic."""
        if not item.strip():
            rows = self._system()
        elif item == "topics":
            rows = self._topics()
        elif item == "offsets":
            rows = [
                (
                    store.topic,
                    "part",
                    store.partition,
                    "min_offset",
                    store.min_offset,
                    "max_offset",
                    store.max_offset,
                )
                for store in self._manager.stores()
            ]
        elif item == "realtime":
            rows = [(f"realtime_{name}", self.real_time.text(name)) for name in REALTIME_ITEMS]
        elif item == "help":
            rows = list(HELP)
        elif item == "reset":
            self.real_time.reset()
            rows = [("reset", "ok")]
        else:
            rows = self._topic(item)
        lines = [" ".join(map(_text, row)) for row in rows]
        return "".join(f"{line}\r\n" for line in ["STATS", *lines, "END"])

    def _system(self) -> list[tuple[object, ...]]:
        configured = set(self._config.topics)
        stored = {store.topic for store in self._manager.stores()}
        return [
            ("pid", os.getpid()),
            ("broker_id", self._config.system.broker_id),
            ("port", self._port()),
            ("uptime", int(time.monotonic() - self._started_at)),
            ("version", self._version),
            ("slave", self._slave),
            ("curr_connections", self._connection_count()),
            ("threads", threading.active_count()),
            ("cmd_put", self.cmd_put),
            ("cmd_get", self.cmd_get),
            ("cmd_offset", self.cmd_offset),
            ("tx_begin", self.tx_begin),
            ("tx_xa_begin", self.tx_xa_begin),
            ("tx_commit", self.tx_commit),
            ("tx_rollback", self.tx_rollback),
            ("get_miss", self.get_miss),
            ("put_failed", self.put_failed),
            ("total_messages", self._manager.total_messages_count),
            ("topics", len(configured | stored)),
            ("config_checksum", self._config.config_file_checksum),
        ]

    def _topics(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for topic in self._manager.all_topics():
            stores = self._manager.stores(topic)
            if not stores:
                rows.append((topic, "*Empty*"))
                continue
            config = self._config.topic_config(topic)
            rows.append(
                (
                    topic,
                    *("partitions", len(stores)),
                    *("message_count", sum(store.message_count for store in stores)),
                    *("message_bytes", sum(store.size for store in stores)),
                    *("accept_publish", config.accept_publish),
                    *("accept_subscribe", config.accept_subscribe),
                )
            )
        return rows

    def _topic(self, topic: str) -> list[tuple[object, ...]]:
        stores = self._manager.stores(topic)
        code = 0 if stores else 2 if topic in self._config.topic_config_map else 1
        return [
            (topic,),
            ("resultCode", code),
            ("partitions", len(stores)),
            ("message_count", sum(store.message_count for store in stores)),
            ("bytes", sum(store.size for store in stores)),
            *((f"topic_realtime_{name}", self.real_time.text(name, topic)) for name in REALTIME_ITEMS),
        ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
