"""Pull frames with bytes, records and units damaged, given to the native code that reads and answers pulls.

    python -m tests.fuzz.pull_frames BYTES [SEED]     so many bytes of frames

A model in Python says which frames are pulls, and what each is answered: the same bytes come out of a socket. Where
units or records are damaged, whole answers come out, of records that are where the log says they are.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import sys
from itertools import accumulate
from types import SimpleNamespace

import numpy as np

from mqlake import native
from mqlake.formats.record import encode_record

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
SPAN, TAGS, CODES = 17, (-7, 5, 2, 3, 2**40), 11
"""Of the plan with a filter; the units have one of so many tags codes in turn."""
ODD = b'0123456789"{}:,\\ a\0\1\xff\x80'


class FakeFastPull:
    """What compiled code asks of a FastPull and its broker: nothing changes, and whatever is committed is noted."""

    def __init__(self, queues: dict[tuple[str, int], object]) -> None:
        version = SimpleNamespace(counter=0)
        self.broker = SimpleNamespace(
            config=object(),
            store_config=object(),
            topic_config_manager=SimpleNamespace(data_version=version),
            subscription_group_manager=SimpleNamespace(data_version=version),
            consumer_manager=SimpleNamespace(consumer_table={}),
            consumer_offset_manager=SimpleNamespace(has_offset_reset=lambda *_: False),
            hooks=SimpleNamespace(consume=[]),
            store=SimpleNamespace(consume_queues=SimpleNamespace(get=lambda *of: queues[of])),
        )
        self.committed: list[tuple[int, int]] = []

    def plan(self, topic: str, queue_id: int) -> SimpleNamespace:
        """A PullPlan."""
        broker = self.broker
        version = broker.topic_config_manager.data_version
        return SimpleNamespace(
            header=SimpleNamespace(consumer_group="G", topic=topic, queue_id=queue_id),
            known=(broker.config, broker.store_config, version, version, None, None, None),
            versions=(0, 0),
            code=11,
        )

    def commit(self, connection: object, header: object, following: int, commit_offset: int) -> None:
        self.committed.append((following, commit_offset))

    def count_soon(self) -> None:
        pass

    def took(self, plan: object, elapsed_ns: int) -> None:
        pass


class Pulls:
    """Two queues in one log, and a connection whose pulls are taken."""

    def __init__(self) -> None:
        kernels = native.module("pulls")
        assert kernels is not None
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
        self.units = [
            b"".join(
                place.to_bytes(8, "big")
                + len(record).to_bytes(4, "big")
                + code_of(n).to_bytes(8, "big", signed=True)
                for n, (place, record) in enumerate(zip(places, records, strict=True))
            )
            for places, records in zip(self.places, self.records, strict=True)
        ]
        self._reader, self._writer = socket.socketpair()
        for side in (self._reader, self._writer):
            side.setblocking(False)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._queues = {
            (TOPIC.decode(), queue_id): SimpleNamespace(
                files=SimpleNamespace(files=[], max_offset=20 * end), min_logic_offset=20 * FIRST
            )
            for queue_id, end in enumerate(self.ends)
        }
        self._file = SimpleNamespace(
            file_from_offset=BASE,
            file_size=len(self.log),
            read_position=len(self.log),
            readable_array=self.log,
        )
        self.fast = FakeFastPull(self._queues)
        self.native = kernels.NativePulls(self.fast)
        self._taker = self.native.taker()
        self.later = b""
        self._plans = []
        for row, (header, queue_id) in enumerate(zip(HEADERS, QUEUE_IDS, strict=True)):
            span, tags = (SPAN, TAGS) if row == 2 else (COUNT_MAX, ())
            plan = self.fast.plan(TOPIC.decode(), queue_id)
            self._plans.append(
                kernels.NativePlan(plan, header, ORDERS[row], ANSWER, BYTES_MAX, COUNT_MAX, span, tags)
            )
            self._taker.add(self._plans[-1])
            self.read_ahead(row, self.units[queue_id])

    def read_ahead(self, row: int, units: bytes) -> None:
        queue = self._queues[TOPIC.decode(), QUEUE_IDS[row]]
        self._plans[row].read_ahead(queue, units, FIRST, self._file, self.log.ctypes.data, 0, 2**62)

    def descriptor(self) -> int:
        """As a connection."""
        return self._writer.fileno()

    def send_encoded(self, frames: bytes) -> None:
        """As a connection: what the socket did not take."""
        self.later += frames

    def take_with(self, data: bytes, room: int, *, is_full: bool) -> tuple[bytes, bytes]:
        """(What the socket took of the answers to data, what is left) with a buffer of `room` bytes, which `is_full`
        already or empty."""
        self._writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while is_full:
                filled += self._writer.send(bytes(1 << 20))
        self.later, sent = b"", b""
        assert self._taker.answer(self, data, 0) == len(data)
        while more := _received(self._reader):
            sent += more
        return sent[filled:], self.later

    def take(self, data: bytes) -> tuple[int, bytes]:
        """(Where the next frame begins, what was sent.)"""
        start, sent, before = 0, b"", -1
        while start > before:
            before, start = start, self._taker.answer(self, data, start)
            assert not self.later
            while more := _received(self._reader):
                sent += more
        return start, sent

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
        row = chance.randrange(len(HEADERS))
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
    while done < size:
        data = frames(chance)
        done += len(data)
        if chance.random() < 0.7:
            start, sent = pulls.take(data)
            assert (start, sent) == pulls.expected(data), data
        elif chance.random() < 0.5:
            at = chance.randrange(len(pulls.log))
            before, pulls.log[at] = pulls.log[at], chance.randrange(256)
            start, sent = pulls.take(data)
            pulls.log[at] = before
            assert 0 <= start <= len(data) and whole_answers(sent), data
        else:
            row = chance.randrange(len(HEADERS))
            whole = pulls.units[QUEUE_IDS[row]]
            units = bytearray(whole[: chance.choice((len(whole), 20 * chance.randrange(len(whole) // 20)))])
            if units:
                units[chance.randrange(len(units))] = chance.randrange(256)
            pulls.read_ahead(row, bytes(units))
            start, sent = pulls.take(data)
            pulls.read_ahead(row, whole)
            assert 0 <= start <= len(data) and whole_answers(sent), data
        answered += bool(start)
    return done, answered


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
