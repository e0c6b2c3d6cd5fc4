"""SinglePut: a usual message or batch, from the object to the log and the result in one compiled call.

    put(message) ──▶ a builtin function ──▶ compiled.kernels.single.put_one ──▶ PutMessageResult
                                                    └──▶ None: CommitLog.put_message does it

What the compiled function works with is in words of 64 bits (`single_layout`): addresses of Python's objects, which
live as long as the words, and where their slots are, which is found by looking at an object. It is called as a function
of an extension module is, for a twentieth of what a call through numba's dispatcher costs.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mqlake.compiled import Worth, load
from mqlake.compiled.kernels import single_layout as layout
from mqlake.formats.record import encode_unpublished
from mqlake.message import HOST_BYTES, Host, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.log.log_lock import LogLock
from mqlake.store.results import APPEND_OK, PUT_OK, PutMessageResult

logger = logging.getLogger(__name__)

PUTS_BEFORE = 2000
"""Puts of a process before the compiled function is loaded, which takes up to a second of a processor."""
HOSTS_MAX = 4096
BATCH_MAX = 64 * 1024
"""Bytes: others do not stand still for long while one is written."""

Int64s = npt.NDArray[np.int64]
Put = Callable[[MessageExtBrokerInner], PutMessageResult | None]

_METH_O = 0x8
_SLOTS: dict[type, dict[int, str]] = {
    MessageExtBrokerInner: {
        layout.TOPIC: "topic",
        layout.BODY: "body",
        layout.FLAG: "flag",
        layout.PROPERTIES: "properties",
        layout.QUEUE_ID: "queue_id",
        layout.SYS_FLAG: "sys_flag",
        layout.BORN_TIMESTAMP: "born_timestamp",
        layout.BORN_HOST: "born_host",
        layout.STORE_HOST: "store_host",
        layout.RECONSUME_TIMES: "reconsume_times",
        layout.PREPARED_OFFSET: "prepared_transaction_offset",
        layout.STORE_TIMESTAMP: "store_timestamp",
        layout.QUEUE_OFFSET: "queue_offset",
        layout.PHYSICAL_OFFSET: "physical_offset",
    },
    PutMessageResult: {
        layout.STATUS: "status",
        layout.APPEND_FIELDS: "append_fields",
        layout.REASON: "reason",
    },
    MappedFile: {
        layout.WROTE: "wrote_position",
        layout.COMMITTED: "committed_position",
        layout.FILE_TIMESTAMP: "store_timestamp",
        layout.WAKE: "wake_position",
    },
}
_puts = Worth(PUTS_BEFORE)


class Flags(Protocol):
    """What stops messages: an object with this slot, 0 while nothing does."""

    flag_bits: int


class SinglePut:
    """`put(message)` is a PutMessageResult, or None when CommitLog.put_message has to do it.

    That is so until open(), and until so many messages have been learned from that it pays to load compiled code.
    `offsets` and `lock` are the log's: a put changes the first while nobody holds the second. `special`: properties of
    messages that are left to CommitLog; `record_max` and `batch_max`: bytes of the largest record and batch that are
    not.
    """

    def __init__(
        self,
        offsets: dict[tuple[str, int], int],
        lock: LogLock,
        special: Iterable[str],
        record_max: int,
        batch_max: int,
    ) -> None:
        self.put: Put = _decline
        self._is_open = self._loads = False
        self._topics: dict[str, int] = {}
        self._topic_words: dict[str, Int64s] = {}
        self._hosts: dict[Host, bytes] = {}
        self._words = words = np.zeros(layout.SIZE, np.int64)
        words[layout.RECORD_MAX] = record_max
        words[layout.BATCH_MAX] = min(batch_max, BATCH_MAX)
        self._objects: dict[int, object] = {
            layout.STR: str,
            layout.BYTES: bytes,
            layout.INT: int,
            layout.TUPLE: tuple,
            layout.DICT: dict,
            layout.NONE: None,
            layout.FALSE: False,
            layout.ZERO: 0,
            layout.NO_REASON: "",
            layout.SPECIAL: frozenset(special),
            layout.HOSTS: self._hosts,
            layout.TOPICS: self._topics,
            layout.OFFSETS: offsets,
            layout.LOCKED: lock.locked,
            layout.MESSAGE_TYPE: MessageExtBrokerInner,
            layout.BATCH_TYPE: MessageExtBatch,
            layout.RESULT_TYPE: PutMessageResult,
            layout.PUT_OK: PUT_OK,
            layout.APPEND_OK: APPEND_OK,
        }
        self._file: list[object] = []

    # ------------------------------------------------------------------ when

    def open(self, flags: Flags, asleep: Int64s, notify: Callable[[], None]) -> None:
        """From now on messages may be put here, while `flags` allows it. `notify` is called after a put if
        asleep[0] is not 0."""
        self._objects[layout.FLAGS] = flags
        self._objects[layout.NOTIFY] = notify
        self._objects[layout.ASLEEP] = asleep
        self._words[layout.ASLEEP] = asleep.ctypes.data
        self._is_open = True

    def close(self) -> None:
        """From now on they may not."""
        self._is_open = False
        self.use(None)

    def use(self, mapped_file: MappedFile | None) -> None:
        """The file that is written from now on. Called under the log's lock."""
        words = self._words
        words[layout.FILE] = 0
        self._file.clear()
        # a plug-in has its own way of writing
        if self._is_open and type(mapped_file) is MappedFile and mapped_file.is_mapped:
            array = mapped_file.array
            self._file += mapped_file, array
            words[layout.FILE_ADDRESS] = array.ctypes.data
            words[layout.FILE_SIZE] = len(array)
            words[layout.FILE_BASE] = mapped_file.file_from_offset
            words[layout.FILE] = id(mapped_file)

    def learn(self, message: MessageExtBrokerInner, topic_field: bytes) -> None:
        """The topic and the hosts of a message that CommitLog has stored are known from now on."""
        if not self._is_open:
            return
        if not self._loads:
            if not _puts.count(1):
                return
            self._loads = True
            threading.Thread(target=self._load, name="SinglePutLoading", daemon=True).start()
        topic = message.topic
        if topic not in self._topics and type(topic) is str and len(topic_field) == topic_field[0] + 1:
            words = np.zeros(layout.TOPIC_FIELD + (len(topic_field) + 7) // 8, np.int64)
            words[layout.TOPIC_LENGTH] = len(topic_field)
            words[layout.TOPIC_FIELD :].view(np.uint8)[: len(topic_field)] = np.frombuffer(
                topic_field, np.uint8
            )
            self._topic_words[topic] = words
            self._topics[topic] = words.ctypes.data
        for host in (message.born_host, message.store_host):
            if host not in self._hosts and [type(host), *map(type, host)] == [tuple, str, int]:
                if len(self._hosts) >= HOSTS_MAX:
                    self._hosts.clear()
                self._hosts[host] = HOST_BYTES[host]

    def _load(self) -> None:
        """In a thread of its own: no put waits for it."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return
        kernels = load("mqlake.compiled.kernels.single")
        if kernels is None:
            return
        try:
            self._fill_words()
            alive = self._words, self._objects, self._file, self._topic_words
            self.put = _builtin(kernels, self._words.ctypes.data, alive)
        except Exception:  # of another Python, or numba: CommitLog.put_message does the same
            logger.info("messages are put without compiled code", exc_info=True)

    def _fill_words(self) -> None:
        words = self._words
        words[layout.STATE] = words.ctypes.data
        words[layout.TYPE_OF] = object.__basicsize__ - 8  # after the count of references
        for at, held in self._objects.items():
            if at != layout.ASLEEP:
                words[at] = id(held)
        slots_of = {**_SLOTS, type(self._objects[layout.FLAGS]): {layout.FLAG_BITS: "flag_bits"}}
        for kind, slots in slots_of.items():
            for at, name in slots.items():
                words[at] = slot_offset(kind, name)
        size, rest = encode_unpublished(b"", 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", b"")
        template = np.frombuffer(size + rest, np.int64, layout.TEMPLATE_SIZE)
        words[layout.TEMPLATE : layout.TEMPLATE + layout.TEMPLATE_SIZE] = template

    # ------------------------------------------------------------------ what it counted

    @property
    def puts(self) -> int:
        return int(self._words[layout.PUTS])

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return int(self._words[layout.PUT_BYTES])

    @property
    def slowest_ms(self) -> int:
        return int(self._words[layout.SLOWEST])

    def take_slowest(self) -> tuple[int, str, int]:
        """Of the slowest put since the last call: ms, the topic ("" when it was forgotten), bytes of the body."""
        words = self._words
        ms, topic_at, size = words[[layout.SLOW, layout.SLOW_TOPIC, layout.SLOW_BODY]].tolist()
        words[layout.SLOW] = 0
        topic = next((topic for topic, address in list(self._topics.items()) if address == topic_at), "")
        return ms, topic, size

    def histogram(self) -> list[int]:
        """Puts by how many ms they took; the last number is of all that took longer."""
        histogram: list[int] = self._words[layout.HISTOGRAM : layout.SLOW].tolist()
        return histogram

    def topic_totals(self) -> dict[str, tuple[int, int]]:
        """Topic → (messages, bytes of records)."""
        return {
            topic: (int(words[layout.TOPIC_PUTS]), int(words[layout.TOPIC_BYTES]))
            for topic, words in list(self._topic_words.items())
        }

    def forget(self, topic: str) -> None:
        """Begins to count a topic from nothing."""
        if self._topics.pop(topic, None) is not None:
            self._topic_words.pop(topic, None)


def _decline(_message: MessageExtBrokerInner) -> None:
    return None


def slot_offset(kind: type, name: str) -> int:
    """Where an object of this class has that slot, in bytes: where it holds what it is set to. LookupError."""
    one: object = object.__new__(kind)
    mark = object()
    setattr(one, name, mark)
    held = ctypes.string_at(id(one), kind.__basicsize__)
    delattr(one, name)
    found = [
        at for at in range(0, len(held), 8) if int.from_bytes(held[at : at + 8], sys.byteorder) == id(mark)
    ]
    if len(found) != 1:
        raise LookupError(f"{kind.__name__} has no slot for {name}")
    return found[0]


class _MethodDef(ctypes.Structure):
    """What Python's headers call PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: list[_MethodDef] = []
"""They live as long as the process, like machine code."""


def compile_put() -> None:
    """Has put_one compiled, or loaded from disk."""
    kernels = load("mqlake.compiled.kernels.single")
    if kernels is not None:
        _compiled_put(kernels)


def _compiled_put(kernels: ModuleType) -> Any:
    from numba import types

    compiled: Any = kernels.put_one
    signature = types.int64, types.int64
    compiled.compile(signature)
    return compiled.overloads[signature]


def _builtin(kernels: ModuleType, address: int, alive: object) -> Put:
    """put_one with `address` for its self; `alive` lives as long as the function."""
    made = _compiled_put(kernels)
    pointer = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
    method = _MethodDef(b"put_one", pointer, _METH_O, None)
    _methods.append(method)
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    function: Put = kind(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(method), address, alive)
    return function
