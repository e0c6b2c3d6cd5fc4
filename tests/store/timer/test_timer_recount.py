"""The counts of config/timermetrics against what waits."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from mqlake.message import java_hash
from mqlake.store.timer import timer_message_store
from mqlake.store.timer.timer_recount import waiting_by_topic
from tests.clock import START_MS, Clock
from tests.store.timer.timed_store import TimedStore, timed_store

ALIKE = ("Aa", "BB")
"""Topics with the same hash."""


def counted(timed: TimedStore, *known: str) -> Counter[str]:
    timers = timed.timers
    return waiting_by_topic(
        timers._log, timers.curr_read_time_ms, timers.precision_ms, timers.rescue, known, timers._read
    )


@pytest.mark.parametrize("known", [(), ("T",), ALIKE, ("Aa",)])
def test_what_waits_is_counted_by_topic(tmp_path: Path, known: tuple[str, ...]) -> None:
    """Over several files, with rolled, cancelled and delivered messages; two topics of one hash are told apart once
    both are known."""
    assert java_hash(ALIKE[0]) == java_hash(ALIKE[1])
    rng = random.Random(3)
    with timed_store(tmp_path, timerRollWindowSlot=20) as timed:
        wanted: Counter[str] = Counter()
        for number in range(60):
            topic, due = rng.choice(("T", *ALIKE)), START_MS + rng.randrange(1000, 60_000)
            timed.put(number, due, topic)
            if number % 10 == 0:
                timed.recall(number, due, topic)
            elif due >= START_MS + 31_000:
                wanted[topic] += 1
        timed.run_until(START_MS + 31_000)
        found = counted(timed, *known)
        if known == ("Aa",):
            wanted = Counter(T=wanted["T"], Aa=wanted["Aa"] + wanted["BB"])
        if known in (ALIKE, ("Aa",)):
            assert found == wanted
        else:  # the first message that is found names both
            assert (found["T"], found["Aa"] + found["BB"]) == (wanted["T"], wanted["Aa"] + wanted["BB"])


def test_counts_that_are_wrong_are_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a crash before they were written; at the start, and every hour."""
    clock = Clock()
    timed = TimedStore(tmp_path, clock, {})
    for number in range(10):
        timed.put(number, START_MS + 5000 + number * 1000)
    timed.put(10, START_MS + 5000, "Other")
    timed.run()
    timed.timers.metrics.persist()
    timed.run_until(START_MS + 8000)
    timed.timers.flush()
    timed.die()
    with timed_store(tmp_path, clock) as timed:
        assert timed.timers.metrics.timing_counts() == {"T": 6, "Other": 0}
        timed.run_until(START_MS + 11_000)
        assert len(timed.bodies()) == 7
        timed.timers.metrics.add({"T": -3}, START_MS)
        assert timed.timers.metrics.timing_counts()["T"] == 0
    monkeypatch.setattr(timer_message_store, "RECOUNT_S", 0.0)
    with timed_store(tmp_path, clock) as timed:
        timed.run()
        assert timed.timers.metrics.timing_counts() == {"T": 3, "Other": 0}
        timed.timers.metrics.add({"T": -3}, START_MS)
        timed.run_until(START_MS + 13_000)
        assert len(timed.bodies()) == 9
        assert timed.timers.metrics.timing_counts() == {"T": 1, "Other": 0}


@pytest.mark.parametrize("form", ["T+K{0}", "K{0}"])
@pytest.mark.parametrize("recount", [False, True])
def test_a_recall_of_nothing_counts_nothing(tmp_path: Path, form: str, recount: bool) -> None:
    """Without it messages that wait would not be counted, and the figure would be 0 while some wait."""
    with timed_store(tmp_path, timerRollWindowSlot=20) as timed:
        for number in range(4):
            timed.put(number, START_MS + 9000)
        timed.put(4, START_MS + 8000)
        timed.put(5, START_MS + 50_000)  # it rolls
        timed.recall(9, START_MS + 9000, key=form.format(9))  # no such message
        timed.recall(9, START_MS + 8000, key=form.format(9))
        timed.recall(4, START_MS + 9000, key=form.format(4))  # it is due at another time
        timed.recall(0, START_MS + 9000, "Other", key=form.format(0))  # of another topic
        timed.recall(9, START_MS + 50_000, key=form.format(9))
        timed.run()

        def counts(wanted: int) -> None:
            if recount:
                timed.timers._recount()
            assert timed.timers.metrics.timing_counts()["T"] == wanted

        counts(6)
        assert timed.timers.all_congest_num == 6
        for _ in range(2):  # twice is once
            timed.recall(1, START_MS + 9000, key=form.format(1))
            timed.run()
            counts(5)
        timed.put(9, START_MS + 9000)  # after its recall: it is cancelled, too
        timed.run()
        counts(5)
        timed.run_until(START_MS + 12_000)
        assert sorted(timed.bodies()) == [0, 2, 3, 4]
        counts(1)
        timed.run_until(START_MS + 60_000)
        assert sorted(timed.bodies()) == [0, 2, 3, 4, 5]
        counts(0)


def test_a_recall_that_rolls_counts_once(tmp_path: Path) -> None:
    with timed_store(tmp_path, timerRollWindowSlot=10) as timed:
        for number in range(5):
            timed.put(number, START_MS + 34_500)
        timed.recall(2, START_MS + 34_500)
        timed.run_until(START_MS + 33_000)
        assert timed.waiting() > 6 * 2
        assert timed.timers.metrics.timing_counts() == {"T": 4}
        timed.run_until(START_MS + 36_000)
        assert timed.timers.metrics.timing_counts() == {"T": 0}
