"""Headers that differ in three numbers, against a regular expression; the answers are test_fast_pull's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake import native
from mqlake.formats.record import RecordPlace, why_not_at
from tests.fuzz import pull_frames
from tests.fuzz.pull_frames import MESSAGES, FakeFastPull

kernels = native.module("pulls")
assert kernels is not None
NUMBER = rb"(0|[1-9][0-9]{0,17})"
PLANS = (
    (b'{"code":11,"q":"0","o":"', b'","c":"', b'","opaque":', b"}"),
    (b'{"code":11,"q":"1","o":"', b'","c":"', b'","opaque":', b',"flag":0}'),
)
ORDER = (2, 0, 1)
"""Which of the numbers is opaque, queueOffset, commitOffset."""
ANSWER = (b"a",) * 5


class Connection:
    """One whose answers go nowhere."""

    def descriptor(self) -> int:
        return -1


class Headers:
    """Compiled code that knows the plans, and nothing of their queues: each pull is left."""

    def __init__(self) -> None:
        fast = FakeFastPull({})
        self.pulls = kernels.NativePulls(fast)
        self.taker = self.pulls.taker()
        for row, pieces in enumerate(PLANS):
            plan = fast.plan("T", row)
            self.taker.add(kernels.NativePlan(plan, pieces, ORDER, ANSWER, 1 << 20, 32, 32, ()))

    def found(self, data: bytes, start: int = 0) -> tuple[int, ...] | None:
        """(Plan, opaque, queueOffset, commitOffset, where its frame ends) of the pull there."""
        assert self.taker.answer(Connection(), data, start) == start
        left = self.pulls.left
        return None if left is None else (left.plan.header.queue_id, *self.pulls.asked)


def frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def expected(header: bytes) -> tuple[int, ...] | None:
    for row, pieces in enumerate(PLANS):
        match = re.fullmatch(NUMBER.join(map(re.escape, pieces)), header)
        numbers = [] if match is None else [int(each) for each in match.groups()]
        if numbers and numbers[2] < 2**31:
            return (row, *(numbers[n] for n in ORDER))
    return None


digits = st.one_of(
    st.integers(0, 2**63).map(lambda value: b"%d" % value),
    st.sampled_from([b"", b"00", b"01", b"-1", b"9" * 18, b"9" * 19, b"1" * 60, b"1 ", b"2147483648"]),
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    pieces = draw(st.sampled_from(PLANS))
    texts = draw(st.lists(digits, min_size=3, max_size=3))
    header = bytearray(pieces[0])
    for text, piece in zip(texts, pieces[1:], strict=True):
        header += text + piece
    for _ in range(draw(st.integers(0, 1))):
        header[draw(st.integers(0, len(header) - 1))] = draw(st.integers(0, 255))
    return bytes(header)


@given(st.lists(headers(), max_size=20), st.integers(0, 30))
def test_headers_are_recognised_as_by_a_regular_expression(texts: list[bytes], cut: int) -> None:
    known, frames = Headers(), [frame(text) for text in texts]
    data = b"".join(frames)
    data = data[: max(0, len(data) - cut)]
    start = 0
    for text, each in zip(texts, frames, strict=True):
        end = start + len(each)
        wanted = expected(text) if end <= len(data) else None
        assert known.found(data, min(start, len(data))) == (None if wanted is None else (*wanted, end))
        start = end


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_lengths_that_lie(before: bytes, after: bytes) -> None:
    known = Headers()
    received = before + frame(b"".join(PLANS[0])) + after
    for start in range(len(received) + 1):
        assert known.found(received, start) is None
    for bad in (len(received) + 1, -1):
        with pytest.raises(ValueError, match="bytes"):
            known.found(received, bad)


def test_what_is_no_plan() -> None:
    plan = FakeFastPull({}).plan("T", 0)
    good = (plan, PLANS[0], ORDER, ANSWER, 1 << 20, 32, 32, ())
    kernels.NativePlan(*good)
    for number, bad in [
        (1, PLANS[0][:3]),
        (1, (b"x" * kernels.TEXT_MAX, *PLANS[0][1:])),
        (2, (2, 0, 2)),
        (2, (3, 0, 1)),
        (3, ANSWER[1:]),
        (5, 0),
        (5, kernels.MESSAGES_MAX + 1),
        (6, 0),
        (7, range(kernels.TAGS_MAX + 1)),
    ]:
        with pytest.raises(ValueError, match="no plan"):
            kernels.NativePlan(*good[:number], bad, *good[number + 1 :])


def test_plans_are_tried_from_the_one_after_the_last() -> None:
    """More of them than are compared with a header: who pulls one queue after the other finds each."""
    fast = FakeFastPull({})
    pulls = kernels.NativePulls(fast)
    taker = pulls.taker()
    plans = [
        kernels.NativePlan(fast.plan("T", row), (b"%d " % row, b" ", b" ", b"."), ORDER, ANSWER, 1, 1, 1, ())
        for row in range(40)
    ]
    for plan in plans:
        taker.add(plan)

    def found(row: int) -> int | None:
        assert taker.answer(Connection(), frame(b"%d 1 2 3." % row), 0) == 0
        return None if pulls.left is None else int(pulls.left.plan.header.queue_id)

    for row in (*range(40), *range(40), 39, 39, 14, 29):
        assert found(row) == row
    assert found(14) is None  # 25 further on
    taker.add(plans[14])
    assert [found(14), found(0), found(39)] == [14, 0, None]
    for plan in plans[1:]:
        plan.forget()
    assert [found(1), found(0)] == [None, 0]
    taker.add(plans[0])
    assert taker.plans == [plans[0]]


@pytest.mark.parametrize("n", [0, 7, MESSAGES - 1])
def test_damage_to_any_byte_of_a_record_is_what_it_is_on_the_slow_path(n: int) -> None:
    """Seen where it is in the head, a length or the topic; else the record is given out as it is."""
    pulls = pull_frames.Pulls()
    record, physical_offset = pulls.records[0][n], pulls.places[0][n]
    start = physical_offset - pull_frames.BASE
    place = RecordPlace(len(record), physical_offset, 0, pull_frames.FIRST + n, pull_frames.TOPIC)
    a, b, c, d = pull_frames.HEADERS[0]
    data = frame(a + b"%d" % (pull_frames.FIRST + n) + b + b"0" + c + b"1" + d)
    seen = 0
    for at in range(start, start + len(record)):
        for bit in (0, 4, 7):
            pulls.log[at] ^= 1 << bit
            why = why_not_at(pulls.log.tobytes(), start, len(record), place)
            taken, sent = pulls.take(data)
            assert (taken, bool(sent)) == ((0, False) if why else (len(data), True)), (at - start, bit, why)
            pulls.log[at] ^= 1 << bit
            seen += bool(why)
    assert seen >= 3 * (4 + 4 + 4 + 8 + 8 + 4 + 1 + len(pull_frames.TOPIC) + 2)


def test_damaged_frames_units_and_records() -> None:
    """The bytes that a model gives, out of a socket."""
    done, answered = pull_frames.run(200_000)
    assert done >= 200_000 and answered > 50


def test_a_filter_needs_enough_of_the_units_it_may_look_at() -> None:
    """With fewer at hand it is left, unless as many of them match as an answer has."""
    pulls = pull_frames.Pulls()
    a, b, c, d = pull_frames.HEADERS[2]
    data = frame(a + b"%d" % pull_frames.FIRST + b + b"0" + c + b"1" + d)
    answered = []
    for count in range(1, pull_frames.SPAN + 1):
        pulls.read_ahead(2, pulls.units[1][: 20 * count])
        matching = sum(pull_frames.code_of(n) in pull_frames.TAGS for n in range(count))
        is_enough = matching >= pull_frames.COUNT_MAX or count == pull_frames.SPAN
        assert pulls.take(data) == (pulls.expected(data) if is_enough else (0, b"")), count
        answered.append(is_enough)
    assert answered == [False] * 13 + [True] * 4


def test_a_socket_takes_what_it_can() -> None:
    """The head, a record or the half of one is left for later, or everything: no byte is lost or sent twice."""
    a, b, c, d = pull_frames.HEADERS[0]
    model, kept = pull_frames.Pulls(), set()
    for first in range(MESSAGES - 1):
        data = b"".join(
            frame(a + b"%d" % (pull_frames.FIRST + n) + b + b"0" + c + b"1" + d)
            for n in (first, MESSAGES - 9, 1)
        )
        _, expected = model.expected(data)
        for room, is_full in ((1, False), (1, True), (10_000, False), (1 << 20, False)):
            sent, left = pull_frames.Pulls().take_with(data, room, is_full=is_full)
            assert sent + left == expected
            kept.add("all" if not left else "some" if sent else "none")
    assert kept == {"all", "some", "none"}
