"""The checker catches each fault in histories that were forged with it, and none in those that are right."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign.history import Log, Operation, Record, body_of, check, dump, load

DELAY = 1000


def make(seed: int = 1, count: int = 40) -> tuple[list[Operation], list[Record]]:
    """A history of a cluster that does what it should, and its log. Of each kind there is at least one."""
    dice = random.Random(seed)
    history: list[Operation] = []
    records: list[Record] = []
    ends: dict[int, int] = {}
    later: list[tuple[int, Operation]] = []
    now = 10_000

    def store(op: Operation) -> int:
        offset = ends.get(op.queue, 0)
        ends[op.queue] = offset + 1
        records.append(
            Record(
                offset=100 * len(records), topic="T", queue=op.queue, queue_offset=offset, key=op.key,
                body=body_of(op.key), stored=now,
            )
        )  # fmt: skip
        return offset

    for number in range(count):
        now += dice.randrange(1, 400)
        while later and later[0][0] <= now:
            store(later.pop(0)[1])
        kind: Any = ("send", "send", "delayed", "transaction")[number % 4]
        outcome: Any = dice.choice(("ok", "ok", "ok", "unknown", "fail")) if number >= 8 else "ok"
        op = Operation(
            kind=kind, process=f"p{number % 2}", key=f"k{number}", topic="T", queue=dice.randrange(2), begin=now,
            end=now + 5, outcome=outcome, committed=number % 8 != 3, due=now + DELAY if kind == "delayed" else 0,
        )  # fmt: skip
        arrives = outcome == "ok" or (outcome == "unknown" and dice.random() < 0.5)
        if arrives and kind == "delayed":
            later.append((op.due, op))
        elif arrives and op.committed:
            offset = store(op)
            if kind == "send" and outcome == "ok":
                op = dataclasses.replace(op, offset=offset)
        history.append(op)
    now += 10 * DELAY
    for _, op in later:
        store(op)
    for record in records:
        if dice.random() < 0.5:
            history.append(
                Operation(
                    kind="consume", process="c0", key=record.key, topic="T", queue=record.queue, begin=now, end=now,
                    outcome="ok", offset=record.queue_offset,
                )
            )  # fmt: skip
    return history, records


def log_of(records: list[Record]) -> Log:
    return Log(records, 0, b"".join(record.body.ljust(100)[:100] for record in records))


def rules(
    history: list[Operation], records: list[Record], slave: Log | None = None, **options: Any
) -> set[str]:
    slaves = {} if slave is None else {"slave": slave}
    return {violation.rule for violation in check(history, log_of(records), slaves, **options)}


def index_of(history: list[Operation], kind: str, **fields: Any) -> int:
    return next(
        n
        for n, op in enumerate(history)
        if op.kind == kind and all(getattr(op, name) == value for name, value in fields.items())
    )


def renumbered(records: list[Record]) -> list[Record]:
    """With queue offsets that have no gap, so that this alone does not tell."""
    ends: dict[int, int] = {}
    result = []
    for record in records:
        result.append(dataclasses.replace(record, queue_offset=ends.get(record.queue, 0)))
        ends[record.queue] = ends.get(record.queue, 0) + 1
    return result


def silent(history: list[Operation]) -> list[Operation]:
    """Nobody was told an offset, and nobody has read."""
    return [dataclasses.replace(op, offset=-1) for op in history if op.kind != "consume"]


@given(st.integers(0, 1 << 20), st.integers(8, 60))
def test_what_should_be_is_accepted(seed: int, count: int) -> None:
    history, records = make(seed, count)
    log = log_of(records)
    shorter = Log(records[: len(records) // 2], 0, log.data[: len(log.data) // 2])
    assert check(history, log, {"slave": shorter, "equal": log}) == []


@pytest.mark.parametrize(
    ("kind", "rule"), [("send", "lost"), ("delayed", "delay"), ("transaction", "transaction")]
)
def test_an_acknowledged_message_that_is_gone(kind: str, rule: str) -> None:
    history, records = make()
    gone = history[index_of(history, kind, outcome="ok", committed=True)].key
    left = renumbered([record for record in records if record.key != gone])
    assert rules(silent(history), left) == {rule}
    assert rules(silent(history), left, complete=False) == ({"lost"} if kind == "send" else set())


def test_an_unknown_send_may_be_there_or_not() -> None:
    history, records = make()
    history = silent(history)
    n = index_of(history, "send", outcome="ok")
    history[n] = dataclasses.replace(history[n], outcome="unknown")
    assert rules(history, records) == set()
    assert rules(history, renumbered([r for r in records if r.key != history[n].key])) == set()


def test_two_sends_the_other_way_round() -> None:
    history, records = make()
    history = silent(history)
    lanes: dict[tuple[str, int], Operation] = {}
    at = {record.key: n for n, record in enumerate(records)}
    for op in history:
        before = lanes.get((op.process, op.queue))
        if op.kind == "send" and op.outcome == "ok":
            if before is not None:
                break
            lanes[op.process, op.queue] = op
    assert before is not None
    first, second = at[before.key], at[op.key]
    for n, op_ in ((first, op), (second, before)):
        records[n] = dataclasses.replace(
            records[n],
            key=op_.key,
            body=body_of(op_.key),
            stored=max(records[first].stored, records[second].stored),
        )
    assert rules(history, records) == {"order"}


def test_another_place_than_the_producer_was_told() -> None:
    history, records = make()
    n = index_of(history, "send", outcome="ok")
    history[n] = dataclasses.replace(history[n], offset=history[n].offset + 7)
    assert rules(history, records) == {"order"}


@pytest.mark.parametrize("change", [1, -1])
def test_a_gap_in_a_queue(change: int) -> None:
    history, records = make()
    last = records[-1]
    records[-1] = dataclasses.replace(last, queue_offset=last.queue_offset + change)
    assert rules(silent(history), records) == {"order"}


@pytest.mark.parametrize(
    "change",
    [{"key": "nobody's"}, {"queue": 5}, {"topic": "U"}, {"body": b"other"}, {"stored": 5}],
    ids=lambda change: next(iter(change)),
)
def test_an_invented_record(change: dict[str, Any]) -> None:
    history, records = make()
    history = [dataclasses.replace(op, outcome="unknown", due=0) for op in silent(history)]
    n = len(records) - 1
    records[n] = dataclasses.replace(records[n], **change)
    if "queue" in change or "topic" in change:
        records[n] = dataclasses.replace(records[n], queue_offset=0)
    assert rules(history, records) == {"invented"}


def test_a_refused_send_that_is_there() -> None:
    history, records = make()
    history = silent(history)
    n = index_of(history, "send", outcome="ok")
    history[n] = dataclasses.replace(history[n], outcome="fail")
    assert rules(history, records) == {"invented"}


def test_a_repeated_send() -> None:
    history, records = make()
    history = silent(history)
    again = next(r for r in records if r.key == history[index_of(history, "send", outcome="ok")].key)
    records = renumbered([*records, dataclasses.replace(again, offset=99_999)])
    assert rules(history, records) == {"repeated"}


@pytest.mark.parametrize("kind", ["delayed", "transaction"])
def test_a_repeated_delivery_is_within_the_promise(kind: str) -> None:
    history, records = make()
    history = silent(history)
    again = next(
        r for r in records if r.key == history[index_of(history, kind, outcome="ok", committed=True)].key
    )
    records = renumbered([*records, dataclasses.replace(again, offset=99_999)])
    assert rules(history, records) == set()


def test_a_rolled_back_transaction_that_is_visible() -> None:
    history, records = make()
    history = silent(history)
    n = index_of(history, "transaction", outcome="ok", committed=True)
    history[n] = dataclasses.replace(history[n], committed=False)
    assert rules(history, records) == {"transaction"}


def test_a_delayed_message_that_is_early() -> None:
    history, records = make()
    n = index_of(history, "delayed", outcome="ok")
    at = next(i for i, record in enumerate(records) if record.key == history[n].key)
    records[at] = dataclasses.replace(records[at], stored=history[n].due - 1)
    assert rules(history, records) == {"delay"}


@pytest.mark.parametrize("change", [{"key": "k0x"}, {"offset": 900}], ids=["other", "nothing"])
def test_a_message_that_vanished_after_it_was_read(change: dict[str, Any]) -> None:
    history, records = make()
    n = index_of(history, "consume")
    history[n] = dataclasses.replace(history[n], **change)
    assert rules(history, records) == {"vanished"}


def test_a_slave_that_is_ahead_or_has_another_byte() -> None:
    history, records = make()
    data = bytearray(log_of(records).data)
    assert rules(history, records, Log([], 0, bytes(data) + b"more")) == {"prefix"}
    data[len(data) // 2] ^= 1
    assert rules(history, records, Log([], 0, bytes(data))) == {"prefix"}
    # what either has deleted cannot be compared
    start = len(data) // 2 + 1
    assert rules(history, records, Log([], start, bytes(data[start:]))) == set()
    assert rules(history, records, Log([], len(data) + 5, b"")) == {"prefix"}


def test_lines(tmp_path: Path) -> None:
    history, _ = make()
    dump(history, str(tmp_path / "history"))
    assert load(str(tmp_path / "history")) == history
