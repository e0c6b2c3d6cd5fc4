"""What a cluster owes its clients, checked on a history of what they did and on the logs that are left in the end.

    history   who, what, when it began and ended, and how: ok, fail (certainly not done), unknown
    logs      the visible records of each node in the order of the log, and its bytes

    lost        acknowledged, and in no log
    order       two sends of one process to one queue, one after the other, are in the log the other way round;
                queue offsets with a gap or twice
    invented    a record that nobody sent, that was refused, or with another body
    repeated    one send, two records
    transaction a rolled back one is visible, or a committed one is not
    delay       a delayed message was visible before its time, or never
    vanished    a consumer saw what is not in the log at that place
    prefix      a slave's bytes are not those of its master

check() gives the violations; with none the history is one that the promises allow. It knows nothing of how a cluster
works, and is tested with forged histories.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

Kind = Literal["send", "delayed", "transaction", "consume"]
Outcome = Literal["ok", "fail", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One call of a client. Times are wall-clock ms of one machine."""

    kind: Kind
    process: str
    key: str
    """Names the message, and its body (see body_of)."""
    topic: str
    queue: int
    begin: int
    end: int
    outcome: Outcome
    offset: int = -1
    """The queue offset that the client was told, -1: none."""
    committed: bool = True
    """What was decided of a transaction."""
    due: int = 0
    """When a delayed message may be visible at the earliest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A visible message of a log."""

    offset: int
    topic: str
    queue: int
    queue_offset: int
    key: str
    body: bytes
    stored: int
    """ms"""


@dataclasses.dataclass(frozen=True)
class Log:
    """A node's log: its records, and its bytes from `start` on."""

    records: Sequence[Record]
    start: int
    data: bytes | memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclasses.dataclass(frozen=True)
class Violation:
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def body_of(key: str) -> bytes:
    """The body of the message with this key: a repeated pattern of its own, from 20 bytes to some kilobytes."""
    pattern = f"[{key}]".encode()
    return pattern * (1 + sum(pattern) % 97)


def check(
    history: Sequence[Operation], master: Log, slaves: Mapping[str, Log] = {}, *, complete: bool = True
) -> list[Violation]:
    """`complete`: the cluster has had the time to deliver what was delayed and to end the transactions."""
    sends = [op for op in history if op.kind != "consume"]
    found = defaultdict(list)
    for record in master.records:
        found[record.key].append(record)
    violations = [
        *_lost(sends, found, complete),
        *_invented(sends, master.records),
        *_repeated(sends, found),
        *_order_of_sends(sends, found),
        *_order_of_queues(master.records),
        *_decided(sends, found),
        *_early(sends, found),
        *_vanished(history, master.records),
    ]
    for name, slave in slaves.items():
        violations += _prefix(name, slave, master)
    return violations


Found = Mapping[str, Sequence[Record]]


def _lost(sends: Iterable[Operation], found: Found, complete: bool) -> Iterator[Violation]:
    for op in sends:
        if op.outcome != "ok" or op.key in found:
            continue
        if op.kind == "send":
            yield Violation("lost", _told(op))
        elif op.kind == "delayed" and complete:
            yield Violation("delay", f"never delivered: {_told(op)}")
        elif op.kind == "transaction" and complete and op.committed:
            yield Violation("transaction", f"committed and not visible: {_told(op)}")


def _told(op: Operation) -> str:
    place = f" at queue offset {op.offset}" if op.offset >= 0 else ""
    return f"{op.kind} of {op.key} to {op.topic}/{op.queue}, {op.outcome}{place} at {op.end}"


def _invented(sends: Iterable[Operation], records: Iterable[Record]) -> Iterator[Violation]:
    by_key = {op.key: op for op in sends}
    for record in records:
        op = by_key.get(record.key)
        where = f"{record.key!r} at offset {record.offset}"
        if op is None:
            yield Violation("invented", f"nobody sent {where}")
        elif op.outcome == "fail":
            yield Violation("invented", f"{where} was refused: {_told(op)}")
        elif (op.topic, op.queue) != (record.topic, record.queue):
            yield Violation("invented", f"{where} is in {record.topic}/{record.queue}: {_told(op)}")
        elif record.body != body_of(op.key):
            yield Violation("invented", f"{where} has another body than was sent")
        elif record.stored < op.begin:
            yield Violation(
                "invented", f"{where} was stored at {record.stored}, before {op.begin}, when it was sent"
            )


def _repeated(sends: Iterable[Operation], found: Found) -> Iterator[Violation]:
    """A delivery of a delayed message and the end of a transaction may be done again after a crash: RocketMQ promises
    both at least once. A send is one record."""
    for op in sends:
        records = found.get(op.key, ())
        if op.kind == "send" and len(records) > 1:
            offsets = ", ".join(str(record.offset) for record in records)
            yield Violation("repeated", f"{op.key} is in the log at {offsets}")


def _order_of_sends(sends: Iterable[Operation], found: Found) -> Iterator[Violation]:
    lanes: dict[tuple[str, str, int], list[Operation]] = defaultdict(list)
    for op in sends:
        if op.kind == "send" and op.key in found:
            lanes[op.process, op.topic, op.queue].append(op)
    for lane in lanes.values():
        last: Operation | None = None
        for op in sorted(lane, key=lambda op: op.begin):
            offset = found[op.key][0].offset
            if last is not None and last.end <= op.begin and offset < found[last.key][0].offset:
                yield Violation(
                    "order",
                    f"{op.process} sent {last.key} before {op.key} to {op.topic}/{op.queue}; they are at offsets "
                    f"{found[last.key][0].offset} and {offset}",
                )
            # a send whose end is not known may arrive whenever it likes
            elif op.outcome == "ok":
                last = op
    for op in sends:
        if op.kind == "send" and op.outcome == "ok" and op.offset >= 0 and op.key in found:
            at = found[op.key][0].queue_offset
            if at != op.offset:
                yield Violation("order", f"{_told(op)} is at queue offset {at}")


def _order_of_queues(records: Iterable[Record]) -> Iterator[Violation]:
    following: dict[tuple[str, int], int] = {}
    for record in records:
        queue = record.topic, record.queue
        expected = following.get(queue, record.queue_offset)
        if record.queue_offset != expected:
            yield Violation(
                "order",
                f"{record.topic}/{record.queue}: queue offset {record.queue_offset} follows {expected - 1} in the log",
            )
        following[queue] = record.queue_offset + 1


def _decided(sends: Iterable[Operation], found: Found) -> Iterator[Violation]:
    for op in sends:
        if op.kind == "transaction" and not op.committed and op.key in found:
            offset = found[op.key][0].offset
            yield Violation("transaction", f"rolled back and visible at offset {offset}: {_told(op)}")


def _early(sends: Iterable[Operation], found: Found) -> Iterator[Violation]:
    for op in sends:
        for record in found.get(op.key, ()) if op.kind == "delayed" else ():
            if record.stored < op.due:
                yield Violation("delay", f"{op.due - record.stored} ms early: {_told(op)}")


def _vanished(history: Iterable[Operation], records: Iterable[Record]) -> Iterator[Violation]:
    there = {(record.topic, record.queue, record.queue_offset): record.key for record in records}
    for op in history:
        if op.kind == "consume":
            key = there.get((op.topic, op.queue, op.offset))
            if key != op.key:
                now = "nothing" if key is None else key
                yield Violation(
                    "vanished",
                    f"{op.process} saw {op.key} in {op.topic}/{op.queue} at queue offset {op.offset}, where {now} is",
                )


def _prefix(name: str, slave: Log, master: Log) -> Iterator[Violation]:
    start, end = max(slave.start, master.start), min(slave.end, master.end)
    if slave.end > master.end:
        yield Violation("prefix", f"{name} ends at {slave.end}, its master at {master.end}")
    if start >= end:
        return
    mine = memoryview(slave.data)[start - slave.start : end - slave.start]
    theirs = memoryview(master.data)[start - master.start : end - master.start]
    if mine != theirs:
        at = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
        yield Violation("prefix", f"{name} has another byte than its master at offset {start + at}")


# ------------------------------------------------------------------ as lines of JSON


def dump(history: Iterable[Operation], path: str) -> None:
    with open(path, "w") as file:
        for op in history:
            file.write(json.dumps(dataclasses.asdict(op)) + "\n")


def load(path: str) -> list[Operation]:
    with open(path) as file:
        return [Operation(**json.loads(line)) for line in file]
