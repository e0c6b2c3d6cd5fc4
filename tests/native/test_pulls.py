"""Headers that differ in three numbers, against a regular expression; the answers are test_fast_pull's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake import native
from mqlake.formats.record import RecordPlace, why_not_at
from mqlake.native import pull_layout as layout
from tests.fuzz import pull_frames
from tests.fuzz.pull_frames import MESSAGES

kernels = native.module("pulls")
assert kernels is not None
NUMBER = rb"(0|[1-9][0-9]{0,17})"
PLANS = (
    (b'{"code":11,"q":"0","o":"', b'","c":"', b'","opaque":', b"}"),
    (b'{"code":11,"q":"1","o":"', b'","c":"', b'","opaque":', b',"flag":0}'),
)
ORDER = (2, 0, 1)
"""Which of the numbers is opaque, queueOffset, commitOffset."""


def tables() -> tuple[np.ndarray, np.ndarray]:
    numbers, octets = np.zeros(layout.NUMBERS_SIZE, np.int64), np.zeros(layout.OCTETS_SIZE, np.uint8)
    for row, pieces in enumerate(PLANS):
        at, text = row * layout.TEXT_SIZE, b"".join(pieces)
        octets[at : at + len(text)] = np.frombuffer(text, np.uint8)
        plan = numbers[row * layout.PLAN_SIZE :]
        plan[: layout.ANSWER_0] = [at, *map(len, pieces), *ORDER]
    return numbers, octets


def frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def expected(headers: list[bytes]) -> list[tuple[int, ...]]:
    found = []
    for header in headers[: layout.PULLS_MAX]:
        for row, pieces in enumerate(PLANS):
            match = re.fullmatch(NUMBER.join(map(re.escape, pieces)), header)
            numbers = [] if match is None else [int(each) for each in match.groups()]
            if numbers and numbers[2] < 2**31:
                found.append((row, *(numbers[n] for n in ORDER)))
                break
        else:
            break
    return found


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


@given(st.lists(headers(), max_size=20), st.integers(0, 1), st.integers(0, 30))
def test_headers_are_recognised_as_by_a_regular_expression(texts: list[bytes], hint: int, cut: int) -> None:
    numbers, octets = tables()
    frames = [frame(text) for text in texts]
    data = b"".join(frames)
    whole, size = [], 0
    for text, each in zip(texts, frames, strict=True):
        size += len(each)
        if size <= len(data) - cut:
            whole.append(text)
    received = np.frombuffer(data[: max(0, len(data) - cut)], np.uint8)
    count = kernels.NativePulls(numbers, octets).match(received, 0, hint, len(PLANS))
    pulls = numbers[layout.PULLS_AT : layout.RUNS_AT].reshape(-1, layout.PULL_SIZE)[:count]
    wanted = expected(whole)
    assert [tuple(pull[: layout.END]) for pull in pulls.tolist()] == wanted
    ends = np.cumsum([len(each) for each in frames[:count]], dtype=np.int64)
    assert pulls[:, layout.END].tolist() == ends.tolist()


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_lengths_that_lie(before: bytes, after: bytes) -> None:
    numbers, octets = tables()
    received = np.frombuffer(before + frame(b"".join(PLANS[0])) + after, np.uint8)
    pulls = kernels.NativePulls(numbers, octets)
    for start in range(len(received)):
        assert 0 <= pulls.match(received, start, 0, 2) <= 1
    for bad in ((len(received) + 1, 0, 2), (-1, 0, 2), (0, -1, 2), (0, 0, 0), (0, 0, layout.PLANS_MAX + 1)):
        with pytest.raises(ValueError, match="bytes, plan"):
            pulls.match(received, *bad)
    with pytest.raises(ValueError, match="17 pulls"):
        pulls.give(layout.PULLS_MAX + 1, -1)
    with pytest.raises(ValueError, match="no arrays of pull_layout"):
        kernels.NativePulls(numbers[1:], octets)


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
