"""The files of timer messages: a unit of the timer log, a slot of the timer wheel, the timers' checkpoint.

A unit of timerlog/NNN: one message of rmq_sys_wheel_timer that waits, and the one of its slot before it

    0    4       12    16            24        28             36   40        44       52
    ├────┼───────┼─────┼─────────────┼─────────┼──────────────┼────┼─────────┼────────┤
    │ 52 │prevPos│magic│currWriteTime│due minus│commit log    │size│jhash of │reserved│
    │    │       │     │             │that, ms │offset        │    │realTopic│        │
    └────┴───────┴─────┴─────────────┴─────────┴──────────────┴────┴─────────┴────────┘
    i32    i64    i32       i64         i32         i64         i32    i32      i64

A slot of timerwheel: all that is due in one step of timerPrecisionMs; its units are a list, the last one first

    0           8        16       24   28    32
    ├───────────┼────────┼────────┼────┼─────┤   the time is due / precision; the slot's place is this modulo 1,209,600
    │   time    │firstPos│lastPos │num │magic│   positions are byte offsets in the timer log, -1: none
    └───────────┴────────┴────────┴────┴─────┘

config/timercheck: seven i64. `done_until` and `done_read_time` follow them; they are not RocketMQ's, which keeps them.

    lastReadTimeMs │ lastTimerLogFlushPos │ lastTimerQueueOffset │ masterTimerQueueOffset │ data version

All big-endian. Facts: TimerLog, TimerWheel, Slot and TimerCheckpoint of RocketMQ 5.3.3 (the same in 5.5.1).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np

from mqlake.errors import TruncatedRecordError
from mqlake.formats.record import BLANK_MAGIC_CODE

TIMER_UNIT = Struct(">iqiqiqiiq")
TIMER_UNIT_SIZE = 52
TIMER_UNIT_DTYPE = np.dtype(
    [
        ("size", ">i4"),
        ("prev", ">i8"),
        ("magic", ">i4"),
        ("write_time", ">i8"),
        ("delay", ">i4"),
        ("offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
BLANK = Struct(">iqi")
TIMER_BLANK_MIN = 16
"""Bytes that a unit leaves free at the end of a file, for the blank."""

MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
"""The time of the unit is a stop on the way: the message is put into the wheel again then."""
MAGIC_DELETE = 4
"""The message cancels another of its slot."""

SLOT = Struct(">qqqii")
SLOT_SIZE = 32
SLOT_DTYPE = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")])
SLOTS_TOTAL = 7 * 86400
"""Slots that a timer wheel turns through; its file has twice as many."""
TIMER_WHEEL_SIZE = 2 * SLOTS_TOTAL * SLOT_SIZE
NO_POSITION = -1

TIMER_CHECKPOINT = Struct(">qqqqqqq")
TIMER_CHECKPOINT_SIZE = 56
TIMER_CHECKPOINT_OLD_SIZE = 32
"""Size of a body without the data version, as old masters send it."""
TIMER_CHECKPOINT_FILE_SIZE = 4096
_DONE = Struct(">qq")


class TimerUnit(NamedTuple):
    prev: int
    """Position of the unit before it in its slot, -1: none."""
    magic: int
    write_time: int
    """ms, a multiple of the precision."""
    delay: int
    """ms from `write_time` to when it is due; of a rolled message to its stop."""
    offset: int
    """Physical offset of the record in the commit log."""
    record_size: int
    topic_hash: int

    @property
    def due(self) -> int:
        """ms since 1970."""
        return self.write_time + self.delay

    @property
    def is_roll(self) -> bool:
        return self.magic & MAGIC_ROLL != 0

    @property
    def is_delete(self) -> bool:
        return self.magic & MAGIC_DELETE != 0

    def encode(self) -> bytes:
        """The 52 bytes."""
        return TIMER_UNIT.pack(TIMER_UNIT_SIZE, *self, 0)


def is_timer_magic(magic: int) -> bool:
    """True if a unit may have this magic."""
    return magic | 0xF == 0xF


def decode_timer_unit(buf: bytes | bytearray | memoryview, pos: int = 0) -> TimerUnit | None:
    """The unit at `pos`, None where none is. Raises TruncatedRecordError when fewer than 52 bytes are there."""
    if pos < 0 or len(buf) - pos < TIMER_UNIT_SIZE:
        raise TruncatedRecordError(pos, f"a unit of the timer log needs {TIMER_UNIT_SIZE} bytes")
    size, *fields, _ = TIMER_UNIT.unpack_from(buf, pos)
    unit = TimerUnit(*fields)
    return unit if size == TIMER_UNIT_SIZE and is_timer_magic(unit.magic) else None


def units_in_timer_file(file_size: int) -> int:
    """How many units a timer log file of `file_size` bytes takes; a blank fills the rest."""
    return max(0, (file_size - TIMER_BLANK_MIN) // TIMER_UNIT_SIZE)


def encode_timer_blank(left: int) -> bytes:
    """The 16 bytes that end a timer log file with `left` bytes left."""
    return BLANK.pack(left, 0, BLANK_MAGIC_CODE)


class Slot(NamedTuple):
    """A slot of the wheel; -1, -1, -1, 0 when nothing is due at that time."""

    time: int
    """ms since 1970."""
    first: int
    last: int
    num: int = 0
    magic: int = 0


NO_SLOT = Slot(NO_POSITION, NO_POSITION, NO_POSITION)


@dataclass(slots=True)
class TimerCheckpointData:
    last_read_time_ms: int = 0
    """All that is due before has been delivered."""
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    """Queue offset of rmq_sys_wheel_timer: messages before it are in the wheel, or were delivered."""
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """The 56 bytes of the file, and of the answer to GET_TIMER_CHECK_POINT."""
        return TIMER_CHECKPOINT.pack(*astuple(self))

    @classmethod
    def decode(cls, buf: bytes | bytearray | memoryview) -> TimerCheckpointData:
        """From 56 bytes or more, or the 32 of an old master. Raises TruncatedRecordError."""
        if len(buf) >= TIMER_CHECKPOINT_SIZE:
            return cls(*TIMER_CHECKPOINT.unpack_from(buf))
        if len(buf) < TIMER_CHECKPOINT_OLD_SIZE:
            raise TruncatedRecordError(
                len(buf), f"a checkpoint of timers needs {TIMER_CHECKPOINT_OLD_SIZE} bytes"
            )
        return cls(*Struct(">qqqq").unpack_from(buf))


def encode_done(done_until: int, read_time: int) -> bytes:
    """Encodes the part after the checkpoint in config/timercheck: the physical offset below which every delivered
    copy is from before lastReadTimeMs, and this time again."""
    return _DONE.pack(done_until, read_time)


def decode_done(buf: bytes | bytearray | memoryview) -> tuple[int, int]:
    """From the bytes of config/timercheck; zeros when it is not there."""
    if len(buf) < TIMER_CHECKPOINT_SIZE + _DONE.size:
        return 0, 0
    done_until, read_time = _DONE.unpack_from(buf, TIMER_CHECKPOINT_SIZE)
    return done_until, read_time
