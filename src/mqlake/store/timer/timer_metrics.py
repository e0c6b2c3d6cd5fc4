"""TimerMetrics: how many timer messages wait, by the topic that they go to, kept in config/timermetrics.

{"dataVersion":{…},"timingCount":{"T":{"count":3,"timeStamp":1700000000000}}}

A figure for people, written now and then. What a crash leaves wrong in it is put right at the next start, and every
hour (timer_recount).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from mqlake.base import json_config
from mqlake.base.config_file import ConfigFile
from mqlake.errors import FormatError


class TimerMetrics:
    """The counts, by any thread. `path`: config/timermetrics."""

    def __init__(self, path: str) -> None:
        self._file = ConfigFile(path)
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        self.dirty = False

    def load(self) -> None:
        """Reads the file; one that cannot be used counts as empty. OSError."""
        try:
            value = self._file.load()
            if value is not None:
                self.set(value)
        except FormatError:
            return
        self.dirty = False

    def add(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Counts messages that came (or, negative, went), by real topic."""
        if not counts:
            return
        with self._lock:
            for topic, count in counts.items():
                entry = self._counts.setdefault(topic, [0, 0])
                entry[0] = max(0, entry[0] + count)
                entry[1] = now_ms
            self._version["counter"] += 1
            self._version["timestamp"] = now_ms
            self.dirty = True

    def correct(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Takes over what was counted; of topics that it lacks nothing waits."""
        known = self.timing_counts()
        changes = {topic: counts.get(topic, 0) - known.get(topic, 0) for topic in {*counts, *known}}
        self.add({topic: change for topic, change in changes.items() if change}, now_ms)

    def timing_counts(self) -> dict[str, int]:
        """Topic → how many wait."""
        with self._lock:
            return {topic: entry[0] for topic, entry in self._counts.items()}

    def value(self) -> dict[str, Any]:
        """The content of the file, and of the answer to GET_TIMER_METRICS."""
        with self._lock:
            return {
                "dataVersion": dict(self._version),
                "timingCount": {
                    topic: {"count": count, "timeStamp": stamp}
                    for topic, (count, stamp) in sorted(self._counts.items())
                },
            }

    def encode(self) -> bytes:
        """The body of the answer to GET_TIMER_METRICS."""
        return json_config.dumps(self.value(), pretty=False).encode()

    def set(self, value: Any) -> None:
        """Takes over a content (of the file, or a master's answer). FormatError."""
        try:
            version = {name: int(value["dataVersion"][name]) for name in self._version}
            counts = {
                str(topic): [int(entry["count"]), int(entry["timeStamp"])]
                for topic, entry in value["timingCount"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(0, f"these are no timer metrics: {error!r}") from None
        with self._lock:
            self._version, self._counts = version, counts
            self.dirty = True

    @property
    def version(self) -> dict[str, int]:
        """counter, stateVersion, timestamp."""
        with self._lock:
            return dict(self._version)

    def persist(self) -> None:
        """Writes the file if the counts have changed. OSError."""
        if self.dirty:
            self.dirty = False
            try:
                self._file.persist(self.value())
            except OSError:
                self.dirty = True
                raise
