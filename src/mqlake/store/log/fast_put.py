"""FastPut: a usual message or batch, from the object to the log and the result in one call of native code.

put(message) ──▶ native.single.NativePut.put ──▶ PutMessageResult
                          └──▶ None: CommitLog.put_message does it
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mqlake import native
from mqlake.formats.columns import Int64s
from mqlake.message import HOST_BYTES, Host, MessageExtBatch, MessageExtBrokerInner
from mqlake.native.serving import HISTOGRAM_SIZE
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.results import APPEND_OK, PUT_OK, PutMessageResult

HOSTS_MAX = 4096
BATCH_MAX = 64 * 1024
"""Bytes: others do not stand still for long while one is written."""

Put = Callable[[MessageExtBrokerInner], PutMessageResult | None]


class Flags(Protocol):
    """Holds a slot that stops messages; 0 while nothing does."""

    flag_bits: int


class FastPut:
    """`put(message)` is a PutMessageResult, or None when CommitLog.put_message has to do it: until open(), and of a
    message whose topic or hosts are not known.

    `offsets` and `lock` are the log's: a put changes the first while nobody holds the second. `special`: properties of
    messages that are left to CommitLog; `record_max` and `batch_max`: bytes of the largest record and batch that are
    not.
    """

    def __init__(
        self,
        offsets: dict[tuple[str, int], int],
        lock: threading.Lock,
        special: Iterable[str],
        record_max: int,
        batch_max: int,
    ) -> None:
        self.put: Put = _decline
        self._is_open = False
        self._topics: dict[str, Any] = {}
        self._hosts: dict[Host, bytes] = {}
        self._kernels = _kernels()
        self._native: Any = None
        """A NativePut, where there are native puts."""
        if self._kernels is not None:
            self._native = self._kernels.NativePut(
                (MessageExtBrokerInner, MessageExtBatch, PutMessageResult, MappedFile),
                PUT_OK,
                APPEND_OK,
                self._hosts,
                self._topics,
                offsets,
                lock.locked,
                special,
                record_max,
                min(batch_max, BATCH_MAX),
            )

    @property
    def native(self) -> Any:
        """The NativePut that puts; None where there is no native code."""
        return self._native

    # ------------------------------------------------------------------ when

    def open(self, flags: Flags, asleep: Int64s, notify: Callable[[], None], *, puts: bool = True) -> None:
        """From now on native code may write here, while `flags` allows it; with `puts` messages may be put. `notify` is
        called after a put if asleep[0] is not 0."""
        if self._native is not None:
            self._native.open(flags, asleep, notify)
            self._is_open = True
            if puts:
                self.put = self._native.put

    def close(self) -> None:
        """From now on they may not."""
        self._is_open = False
        self.put = _decline
        self.use(None)

    def use(self, mapped_file: MappedFile | None) -> None:
        """The file that is written from now on. Called under the log's lock."""
        if self._native is None:
            return
        # a plug-in has its own way of writing
        if self._is_open and type(mapped_file) is MappedFile and mapped_file.is_mapped:
            self._native.use(mapped_file, mapped_file.array, mapped_file.file_from_offset)
        else:
            self._native.use(None, None, 0)

    def learn(self, message: MessageExtBrokerInner, topic_field: bytes) -> None:
        """The topic and the hosts of a message that CommitLog has stored are known from now on."""
        if not self._is_open:
            return
        assert self._kernels is not None
        self.learn_topic(message.topic, topic_field)
        for host in (message.born_host, message.store_host):
            if host not in self._hosts and [type(host), *map(type, host)] == [tuple, str, int]:
                if len(self._hosts) >= HOSTS_MAX:
                    self._hosts.clear()
                self._hosts[host] = HOST_BYTES[host]

    def learn_topic(self, topic: str, topic_field: bytes) -> None:
        """The topic is known from now on; `topic_field` is what a record has of it."""
        if (
            self._is_open
            and topic not in self._topics
            and type(topic) is str
            and len(topic_field) == topic_field[0] + 1
        ):
            assert self._kernels is not None
            self._topics[topic] = self._kernels.Topic(topic, topic_field)

    # ------------------------------------------------------------------ what it counted

    @property
    def puts(self) -> int:
        return self._native.puts if self._native is not None else 0

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._native.size if self._native is not None else 0

    @property
    def slowest_ms(self) -> int:
        return self._native.slowest_ms if self._native is not None else 0

    @property
    def slowest_lately_ms(self) -> int:
        """Milliseconds of the slowest put since the last call of take_slowest()."""
        return self._native.slow_ms if self._native is not None else 0

    def take_slowest(self) -> tuple[int, str, int]:
        """Returns the slowest put since the last call: ms, the topic ("" when it was forgotten), bytes of the body."""
        if self._native is None or not (ms := self._native.slow_ms):
            return 0, "", 0
        topic, size = self._native.slow_topic, self._native.slow_size
        self._native.slow_ms = 0
        is_known = topic is not None and self._topics.get(topic.name) is topic
        return ms, topic.name if is_known else "", size

    def histogram(self) -> list[int]:
        """Puts by how many ms they took; the last number is of all that took longer."""
        histogram: list[int] = self._native.histogram() if self._native is not None else [0] * HISTOGRAM_SIZE
        return histogram

    def topic_totals(self) -> dict[str, tuple[int, int]]:
        """Topic → (messages, bytes of records)."""
        return {name: (topic.puts, topic.size) for name, topic in list(self._topics.items())}

    def forget(self, topic: str) -> None:
        """Begins to count a topic from nothing."""
        self._topics.pop(topic, None)


def _decline(_message: MessageExtBrokerInner) -> None:
    return None


def _kernels() -> Any:
    """The compiled module; None where there is none, or threads of Python run at the same time."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    return native.module("single")
