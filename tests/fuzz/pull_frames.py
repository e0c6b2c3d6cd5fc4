"""Pull frames with bytes, records and units damaged, given to the native code that reads and answers pulls.

    python -m tests.fuzz.pull_frames BYTES [SEED]     so many bytes of frames

A model in Python says which frames are pulls, and what each is answered: the same bytes come out of a socket. Where
units or records are damaged, whole answers come out, of records that are where the log says they are.
"""

from __future__ import annotations

import random
import re
import socket
import sys
from itertools import accumulate

import numpy as np

from mqlake import native
from mqlake.formats.columns import Int64s
from mqlake.formats.record import encode_record
from mqlake.native import pull_layout as layout

NUMBER = rb"(0|[1-9][0-9]{0,17})"
HEADERS = (
    (b'{"code":11,"extFields":{"q":"0","o":"', b'","c":"', b'"},"flag":0,"opaque":', b',"v":1}'),
    (b'{"code":361,"extFields":{"q":"1","c":"', b'","o":"', b'"},"opaque":', b"}"),
    (b'{"code":11,"extFields":{"tag":"1","q":"1","o":"', b'","c":"', b'"},"opaque":', b"}"),
)
ORDERS = ((2, 0, 1), (2, 1, 0), (2, 0, 1))
QUEUE_IDS = (0, 1, 1)
"""Which of the numbers is opaque, queueOffset, commitOffset."""
ANSWER = (b'{"code":0,"next":"', b'","min":"', b'","max":"', b'"},"opaque":', b"}")
TOPIC, MESSAGES, FIRST, COUNT_MAX, BASE = b"Topic", 40, 3, 5, 1 << 20
BYTES_MAX = 7000
BIG = 2100
"""Bytes more of the later half's bodies: of the earlier half's records the short runs are copied together."""
SPAN, TAGS, CODES = 17, (-7, 5, 2**40), 11
"""Of the plan with a filter; the units have one of so many tags codes in turn."""
ODD = b'0123456789"{}:,\\ a\0\1\xff\x80'


class Pulls:
    """Two queues in one log, and the arrays of pull_layout."""

    def __init__(self) -> None:
        kernels = native.module("pulls")
        assert kernels is not None
        self.numbers: Int64s = np.zeros(layout.NUMBERS_SIZE, np.int64)
        self.octets = np.zeros(layout.OCTETS_SIZE, np.uint8)
        self.native = kernels.NativePulls(self.numbers, self.octets)
        self.records: list[list[bytes]] = [[], []]
        self.places: list[list[int]] = [[], []]
        log = b""
        for n in range(2 * MESSAGES):
            queue_id = (n // 3) % 2
            offset = FIRST + len(self.records[queue_id])
            body = b"%d" % n * (n % 60) + bytes(BIG if n >= MESSAGES else 0)
            record = encode_record(
                body, 0, queue_id, 0, offset, BASE + len(log), 0, 1, bytes(8), 2, bytes(8), 0, 0,
                TOPIC, b"",
            )  # fmt: skip
            self.places[queue_id].append(BASE + len(log))
            self.records[queue_id].append(record)
            log += record
        self.log = np.frombuffer(bytearray(log), np.uint8)
        self.ends = [FIRST + len(records) for records in self.records]
        self.reader, self.writer = socket.socketpair()
        for side in (self.reader, self.writer):
            side.setblocking(False)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        for row, (header, queue_id) in enumerate(zip(HEADERS, QUEUE_IDS, strict=True)):
            self._plan(row, header)
            units = b"".join(
                place.to_bytes(8, "big")
                + len(record).to_bytes(4, "big")
                + code_of(n).to_bytes(8, "big", signed=True)
                for n, (place, record) in enumerate(
                    zip(self.places[queue_id], self.records[queue_id], strict=True)
                )
            )
            at = layout.UNITS_AT + row * layout.UNITS_AHEAD * layout.UNIT_SIZE
            self.octets[at : at + len(units)] = np.frombuffer(units, np.uint8)
            self.units_size = len(units)

    def _plan(self, row: int, header: tuple[bytes, ...]) -> None:
        at, text = row * layout.TEXT_SIZE, b"".join((*header, *ANSWER, TOPIC))
        self.octets[at : at + len(text)] = np.frombuffer(text, np.uint8)
        plan = self.numbers[row * layout.PLAN_SIZE : (row + 1) * layout.PLAN_SIZE]
        plan[:] = [
            at, *map(len, header), *ORDERS[row], *map(len, ANSWER), len(TOPIC), QUEUE_IDS[row], BYTES_MAX, COUNT_MAX,
            *((SPAN, len(TAGS)) if row == 2 else (COUNT_MAX, 0)),
        ]  # fmt: skip
        tags_at = layout.TAGS_AT + row * layout.TAGS_MAX
        self.numbers[tags_at : tags_at + len(TAGS)] = TAGS

    def take(self, data: bytes) -> tuple[int, bytes]:
        """(Where the next frame begins, what was sent.)"""
        received = np.frombuffer(data, np.uint8)
        pulls = self.numbers[layout.PULLS_AT : layout.RUNS_AT].reshape(-1, layout.PULL_SIZE)
        start, sent, done = 0, b"", 1
        while done:
            count = self.native.match(received, start, 0, len(HEADERS))
            ready = 0
            while ready < count and self._prepare(pulls[ready]):
                ready += 1
            done = self.native.give(ready, self.writer.fileno())
            assert self.native.sent == self.native.size
            start = int(pulls[done - 1, layout.END]) if done else start
            while more := _received(self.reader):
                sent += more
        return start, sent

    def _prepare(self, pull: Int64s) -> bool:
        """Gives a pull what the broker says of its queue; False if that has no message for it."""
        row, offset = pull[[layout.PLAN, layout.QUEUE_OFFSET]].tolist()
        span, end = SPAN if row == 2 else COUNT_MAX, self.ends[QUEUE_IDS[row]]
        if not FIRST <= offset < end:
            return False
        unit = layout.UNITS_AT + (row * layout.UNITS_AHEAD + offset - FIRST) * layout.UNIT_SIZE
        pull[layout.FILE : layout.UNITS_START] = [self.log.ctypes.data, len(self.log), BASE]
        pull[layout.UNITS_START : layout.FOUND] = [unit, min(offset + span, end) - offset, FIRST, end]
        pull[layout.IS_WHOLE] = 1
        return True

    def expected(self, data: bytes) -> tuple[int, bytes]:
        """The same, by the model."""
        start, sent = 0, b""
        while (end := _frame_end(data, start)) > 0:
            answer = self._answer(data[start + 8 : end])
            if answer is None:
                break
            sent += answer
            start = end
        return start, sent

    def _answer(self, header: bytes) -> bytes | None:
        for row, pieces in enumerate(HEADERS):
            match = re.fullmatch(NUMBER.join(map(re.escape, pieces)), header)
            if match is None:
                continue
            opaque, offset, _ = (int(match.groups()[n]) for n in ORDERS[row])
            queue_id = QUEUE_IDS[row]
            if opaque >= 2**31 or not FIRST <= offset < self.ends[queue_id]:
                return None
            span = SPAN if row == 2 else COUNT_MAX
            looked_at = range(offset - FIRST, min(offset - FIRST + span, len(self.records[queue_id])))
            matching = [n for n in looked_at if row < 2 or code_of(n) in TAGS]
            if not matching:
                return None
            full = len(matching) >= COUNT_MAX
            following = matching[COUNT_MAX - 1] + 1 if full else looked_at.stop
            matching = matching[:COUNT_MAX]
            found = [self.records[queue_id][n] for n in matching]
            sizes = list(accumulate(map(len, found)))
            found = [record for n, record in enumerate(found) if not n or sizes[n] <= BYTES_MAX]
            if len(found) < len(matching):
                following = matching[len(found)]
            numbers = (FIRST + following, FIRST, self.ends[queue_id], opaque)
            head = ANSWER[0] + b"".join(
                b"%d" % number + piece for number, piece in zip(numbers, ANSWER[1:], strict=True)
            )
            body = b"".join(found)
            return (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body
        return None


def code_of(n: int) -> int:
    """The tags code of a queue's message."""
    return n % CODES if n % CODES != 7 else -7


def _frame_end(data: bytes, start: int) -> int:
    """Of the frame without a body that begins there; 0 if there is none, or not all of it."""
    size, word = (int.from_bytes(data[at : at + 4], "big") for at in (start, start + 4))
    end = start + 4 + size
    return end if len(data) - start >= 18 and end <= len(data) and size >= 4 and word == size - 4 else 0


def _received(reader: socket.socket) -> bytes:
    try:
        return reader.recv(1 << 22)
    except BlockingIOError:
        return b""


def frames(chance: random.Random) -> bytes:
    """A read of some pulls, damaged in half of the cases."""
    data = bytearray()
    for _ in range(chance.choice((1, 2, 3, 20, 40))):
        row = chance.randrange(2)
        offset = chance.choice((FIRST, FIRST + MESSAGES - 1, chance.randrange(2 * MESSAGES), 10**17))
        numbers = [0, 0, 0]
        for which, number in zip(
            ORDERS[row], (chance.randrange(2**31), offset, chance.randrange(99)), strict=True
        ):
            numbers[which] = number
        header = HEADERS[row][0]
        for number, piece in zip(numbers, HEADERS[row][1:], strict=True):
            header += b"%d" % number + piece
        data += (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    for _ in range(chance.choice((0, 1, 1, 4))):
        data[chance.randrange(len(data))] = chance.choice((chance.choice(ODD), chance.randrange(256)))
    return bytes(data[: chance.choice((len(data), chance.randrange(len(data) + 1)))])


def whole_answers(sent: bytes) -> bool:
    at = 0
    while at + 8 <= len(sent):
        at += 4 + int.from_bytes(sent[at : at + 4], "big")
    return at == len(sent)


def run(size: int, seed: int = 1) -> tuple[int, int]:
    """(Bytes of frames, pulls that were answered); AssertionError when compiled code and the model differ."""
    chance, pulls, done, answered = random.Random(seed), Pulls(), 0, 0
    units_at = [layout.UNITS_AT + row * layout.UNITS_AHEAD * layout.UNIT_SIZE for row in range(2)]
    while done < size:
        data = frames(chance)
        done += len(data)
        if chance.random() < 0.7:
            start, sent = pulls.take(data)
            assert (start, sent) == pulls.expected(data), data
        else:
            area, at = pulls.log, chance.randrange(len(pulls.log))
            if chance.random() < 0.5:
                area, at = pulls.octets, chance.choice(units_at) + chance.randrange(pulls.units_size)
            before, area[at] = area[at], chance.randrange(256)
            start, sent = pulls.take(data)
            area[at] = before
            assert 0 <= start <= len(data) and whole_answers(sent), data
        answered += bool(start)
    return done, answered


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
