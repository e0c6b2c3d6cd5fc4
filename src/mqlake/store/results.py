"""The store's answers: status enums under RocketMQ's names and the result objects that carry them.

Facts: the statuses of RocketMQ's putMessage, its AppendMessageResult and GetMessageStatus, as 5.3.3 names them.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mqlake.errors import StoreCorruptError
from mqlake.formats.columns import Int64s, whole_records
from mqlake.formats.record import decode_record, decode_records
from mqlake.message import Host, MessageExt, create_message_id, host_bytes


class PutMessageStatus(enum.Enum):
    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGECACHE_BUSY = "OS_PAGECACHE_BUSY"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


STORED = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""The record is in the log, if not as safe as the configuration asks: taking it for lost would double messages."""
NEVER_STORED = frozenset({PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED})
"""Trying again changes nothing: it is the message that is refused."""


class AppendMessageStatus(enum.Enum):
    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


# an enum's member costs 0.1 us when it is read from the class, and every put reads some
PUT_OK = PutMessageStatus.PUT_OK
APPEND_OK = AppendMessageStatus.PUT_OK
_new = object.__new__


class GetMessageStatus(enum.Enum):
    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class BoundaryType(enum.Enum):
    """Which end of a run of equal store timestamps an offset-by-time lookup answers."""

    LOWER = "lower"
    UPPER = "upper"


class AppendMessageResult(NamedTuple):
    """The place of a record (or of the records of a batch).

    wrote_offset: physical offset of the first byte; wrote_bytes: bytes of all records; logics_offset: queue
    offset of the first message; record_offsets: physical offsets of a batch's records; msg_num: messages written;
    pagecache_rt: ms for which it held the log's lock.
    """

    status: AppendMessageStatus
    wrote_offset: int = 0
    wrote_bytes: int = 0
    store_host: Host | None = None
    store_timestamp: int = 0
    logics_offset: int = 0
    record_offsets: Sequence[int] | Int64s | None = None
    msg_num: int = 1
    pagecache_rt: int = 0

    @property
    def is_ok(self) -> bool:
        return self.status is AppendMessageStatus.PUT_OK

    @property
    def msg_id(self) -> str | None:
        """The offset message id; of a classic batch, the ids of its records joined by commas."""
        if self.store_host is None:
            return None
        if self.record_offsets is None:
            return create_message_id(self.store_host, self.wrote_offset)
        host = host_bytes(self.store_host).hex().upper()
        offsets = np.asarray(self.record_offsets, ">i8").tobytes().hex().upper()
        return ",".join([host + offsets[at : at + 16] for at in range(0, len(offsets), 16)])

    def __repr__(self) -> str:
        return (
            f"AppendMessageResult({self.status.name}, wrote_offset={self.wrote_offset}, "
            f"wrote_bytes={self.wrote_bytes}, logics_offset={self.logics_offset}, "
            f"store_timestamp={self.store_timestamp}, msg_num={self.msg_num}, pagecache_rt={self.pagecache_rt})"
        )


AppendFields = tuple[
    AppendMessageStatus,
    int,
    int,
    Host | None,
    int,
    int,
    Sequence[int] | Int64s | None,
    int,
    int,
]
"""An AppendMessageResult, or a plain tuple of its fields; the offsets may be bytes, eight each."""


class PutMessageResult:
    """`status` decides; `append_result` says where the bytes are, when they got as far; `reason` says why not."""

    __slots__ = ("append_fields", "reason", "status")

    status: PutMessageStatus
    append_fields: AppendFields | None
    """The fields from which `append_result` is made when somebody asks for it."""
    reason: str

    def __init__(
        self, status: PutMessageStatus, append_result: AppendMessageResult | None = None, reason: str = ""
    ) -> None:
        self.status = status
        self.append_fields = append_result
        self.reason = reason

    @property
    def append_result(self) -> AppendMessageResult | None:
        fields = self.append_fields
        if fields is None or isinstance(fields, AppendMessageResult):
            return fields
        result = AppendMessageResult._make(fields)
        if type(result.record_offsets) is bytes:
            result = result._replace(record_offsets=np.frombuffer(result.record_offsets, np.int64))
        self.append_fields = result
        return result

    @property
    def is_ok(self) -> bool:
        """Acknowledged: stored, and flushed or replicated as far as the configuration asks."""
        return self.status is PutMessageStatus.PUT_OK

    def __repr__(self) -> str:
        return f"PutMessageResult({self.status.name}, {self.append_result!r}, reason={self.reason!r})"


def put_ok(append_fields: AppendFields) -> PutMessageResult:
    """The result of a message that is in the log; the constructor would take twice the time."""
    result = _new(PutMessageResult)
    result.status = PUT_OK
    result.append_fields = append_fields
    result.reason = ""
    return result


class PutMessageFuture:
    """The result of a put that may still wait for its flush: `result()` blocks, `await` suspends.

    Much lighter than concurrent.futures: a put that needs no wait is born finished, and a group commit
    finishes thousands with one wake-up of each event loop.
    """

    __slots__ = ("_lock", "_put_result", "_waiters", "deadline", "next_offset")

    def __init__(self, put_result: PutMessageResult, next_offset: int = 0, deadline: float = 0.0) -> None:
        self._put_result = put_result
        self.next_offset = next_offset
        self.deadline = deadline
        self._waiters: list[Waiter] | None = None
        self._lock: threading.Lock | None = threading.Lock() if next_offset else None

    def done(self) -> bool:
        return self._lock is None

    def result(self) -> PutMessageResult:
        """Waits until the flush service has answered (it always does, by its timeout at the latest)."""
        lock = self._lock
        if lock is not None:
            waiter = _ThreadWaiter()
            if self._add_waiter(lock, waiter):
                waiter.wait()
        return self._put_result

    def __await__(self) -> Generator[Any, None, PutMessageResult]:
        lock = self._lock
        if lock is not None:
            future = asyncio.get_running_loop().create_future()
            if self._add_waiter(lock, future):
                yield from future
        return self._put_result

    def add_loop_callback(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        """Calls `callback()` on the loop when the result is there: at once (so call it on the loop), or with all
        others that the same flush answers, in one hand-over."""
        lock = self._lock
        if lock is None or not self._add_waiter(lock, _LoopWaiter(loop, callback)):
            callback()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` when the result is there: at once, or on the flush service's thread."""
        lock = self._lock
        if lock is None or not self._add_waiter(lock, callback):
            callback()

    def _add_waiter(self, lock: threading.Lock, waiter: Waiter) -> bool:
        with lock:
            if self._lock is None:
                return False
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            return True

    def finish(self, status: PutMessageStatus, reason: str = "") -> list[Waiter]:
        """Sets the result once; returns whom to call (the flush service calls them, loops in one go)."""
        lock = self._lock
        if lock is None:
            return []
        with lock:
            if self._lock is None:
                return []
            self._put_result.status = status
            self._put_result.reason = reason
            waiters, self._waiters = self._waiters, None
            self._lock = None
        return waiters or []


class _ThreadWaiter:
    """A thread that waits in result().

    Of the threads that a flush answers it wakes the first one, and each wakes the next one as soon as it runs itself.
    Woken all together they would do nothing but queue for the interpreter lock, and the flush service behind them.
    """

    __slots__ = ("_gate", "_is_there", "_others")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._others: list[_ThreadWaiter] = []
        self._is_there = False

    def wait(self) -> None:
        try:
            self._is_there = True
            self._gate.acquire()
            self.wake_next(self._others)
        except BaseException:  # interrupted: the others are woken by us, or by who does not find us
            self._is_there = False
            self.wake_next(self._others)
            raise

    @staticmethod
    def wake_next(waiters: list[_ThreadWaiter]) -> None:
        """Wakes the last of them, which wakes the others."""
        while waiters:
            try:
                one = waiters.pop()
            except IndexError:  # another thread was faster
                return
            one._others = waiters
            one._gate.release()
            if one._is_there:
                return


class _LoopWaiter:
    __slots__ = ("callback", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self.loop, self.callback = loop, callback

    def __call__(self) -> None:
        wake_all([self])


Waiter = Callable[[], None] | asyncio.Future[None] | _ThreadWaiter
"""A callback, or a task's future: one object less for each put that is awaited."""


def wake_all(waiters: list[Waiter]) -> None:
    """Calls every waiter; threads wake one another; those that sit on an event loop are woken with one hand-over per
    loop, which takes no system call on the loop's own thread: there slaves' reports finish the puts of a
    SYNC_MASTER."""
    threads: list[_ThreadWaiter] = []
    per_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], object] | asyncio.Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            per_loop.setdefault(waiter.get_loop(), []).append(waiter)
        elif isinstance(waiter, _ThreadWaiter):
            threads.append(waiter)
        elif isinstance(waiter, _LoopWaiter):
            per_loop.setdefault(waiter.loop, []).append(waiter.callback)
        else:
            waiter()
    threads.reverse()
    _ThreadWaiter.wake_next(threads)
    own_loop = asyncio._get_running_loop() if per_loop else None
    for loop, woken in per_loop.items():
        try:
            if loop is own_loop:
                loop.call_soon(_wake_all_here, woken)
            else:
                loop.call_soon_threadsafe(_wake_all_here, woken)
        except RuntimeError:  # the loop was closed: nobody is left to hear the answer
            continue


def _wake_all_here(woken: list[Callable[[], object] | asyncio.Future[None]]) -> None:
    """On their loop."""
    for each in woken:
        if not isinstance(each, asyncio.Future):
            each()
        elif not each.done():  # its task may have been cancelled
            each.set_result(None)


class GetMessageResult:
    """A pull's answer. `buffers` hold one record each or several back to back: slices of the mapped log, or one copy of
    what lies there in many places."""

    __slots__ = (
        "buffer_total_size",
        "buffers",
        "damaged",
        "last_place",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "queue_offsets",
        "status",
        "suggest_pulling_from_slave",
    )

    def __init__(
        self, status: GetMessageStatus, next_begin_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.buffers: list[memoryview] = []
        self.queue_offsets: Sequence[int] = []
        """Queue offset of each record; of an inner batch the first one."""
        # of an inner batch all messages count, though it is one record
        self.message_count = 0
        self.buffer_total_size = 0
        self.last_place = (0, 0)
        """(Physical offset, size) of the last record."""
        self.suggest_pulling_from_slave = False
        self.damaged: list[tuple[int, StoreCorruptError]] = []
        """Messages before `next_begin_offset` that are not given out because they are damaged: the queue offset, and
        where the damage is."""

    def records(self) -> Iterator[memoryview]:
        """Each record; what follows one of a damaged size comes with it."""
        for buffer in self.buffers:
            yield from _records(buffer, 0)

    def messages(self) -> Iterator[MessageExt]:
        """The records as messages, CRC checked, which read their fields when they are asked for. Raises FormatError
        when a record is damaged."""
        if len(self.buffers) == 1:
            return self._messages(self.buffers[0])
        return itertools.chain.from_iterable(map(self._messages, self.buffers))

    def _messages(self, buffer: memoryview) -> Iterator[MessageExt]:
        data = bytes(buffer)
        places = whole_records(np.frombuffer(data, np.uint8), self.message_count)
        end = places[-1][2] if places else 0
        messages = decode_records(data, places)
        if end == len(data):
            return messages
        return itertools.chain(messages, map(decode_record, _records(buffer, end)))


def _records(buffer: memoryview, start: int) -> Iterator[memoryview]:
    end = len(buffer)
    while start < end:
        size = int.from_bytes(buffer[start : start + 4], "big")
        stop = start + size if 0 < size <= end - start else end
        yield buffer[start:stop]
        start = stop


class QueryMessageResult:
    """Records found by key, oldest first, and how far the index had come."""

    __slots__ = ("buffers", "index_last_update_phyoffset", "index_last_update_timestamp")

    def __init__(self, buffers: list[memoryview], update_timestamp: int, update_phyoffset: int) -> None:
        self.buffers = buffers
        self.index_last_update_timestamp = update_timestamp
        self.index_last_update_phyoffset = update_phyoffset

    def messages(self) -> Iterator[MessageExt]:
        """The records decoded, CRC checked. Raises FormatError when one is damaged."""
        for buffer in self.buffers:
            yield decode_record(buffer)
