"""The power goes while timers deliver: progress on the disk never says more than the copies that are there, so each
timer message is delivered, none before its time, and what the disk has of a delivery is not delivered again."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.timer.timer_checkpoint import TimerCheckpoint
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_wheel import TimerWheel
from tests.clock import START_MS, Clock
from tests.crash.power import Disk
from tests.store.timer.timed_store import TimedStore

COUNT = 12
DUE = START_MS + 20_000
QUIET: dict[str, object] = {
    "flushIntervalCommitLog": 600_000,
    "flushCommitLogThoroughInterval": 600_000,
    "flushIntervalConsumeQueue": 600_000,
    "timerFlushIntervalMs": 600_000,
}
"""Nothing is flushed but by a test."""
Moment = tuple[type, str]
MOMENTS: dict[str, Moment] = {
    "copies are on the disk": (DefaultMessageStore, "flush"),
    "the timer log is": (TimerLog, "flush"),
    "the wheel is": (TimerWheel, "flush"),
    "the progress is": (TimerCheckpoint, "flush"),
}


def due(number: int) -> int:
    """A step each, and all but the first later than the start."""
    return DUE + number % 6 * 1000


def fill(root: Path) -> None:
    opened = TimedStore(root, Clock(), QUIET)
    for number in range(COUNT):
        opened.put(number, due(number))
    opened.run()
    opened.close()


def cut_when(moment: Moment, monkeypatch: pytest.MonkeyPatch, cut: Callable[[], None]) -> None:
    """Cuts the power the first time that `moment` has passed."""
    owner, name = moment
    real = getattr(owner, name)
    left = [cut]

    def call(self: object, *args: object) -> object:
        result = real(self, *args)
        if left:
            left.pop()()
        return result

    monkeypatch.setattr(owner, name, call)


def come_back(root: Path, now: int) -> Counter[int]:
    """After the cut, with the clock as it was then and going on: how often each message was delivered."""
    opened = TimedStore(root, Clock(now), QUIET)
    try:
        opened.run()
        early = [number for number in opened.bodies() if due(number) > opened.clock.now]
        assert early == [], "delivered before their time"
        opened.run_until(DUE + 10_000)
        return Counter(opened.bodies())
    finally:
        opened.close()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_cut_while_progress_is_written(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, moment: str, seed: int
) -> None:
    """Half of the messages are delivered, and nothing of that is on the disk but what the flush brings there."""
    root, after = in_memory / "store", in_memory / "after"
    fill(root)
    now = DUE + 3000
    dice = random.Random(f"{moment}{seed}")
    with Disk(root) as disk:
        opened = TimedStore(root, Clock(now), QUIET)
        with monkeypatch.context() as patch:
            while opened.timers.run_once() == 0:
                pass
            assert 0 < opened.timers.delivered < COUNT
            cut_when(MOMENTS[moment], patch, lambda: disk.cut(after, dice))
            opened.timers.flush()
        opened.die()
    assert come_back(after, now) == Counter(range(COUNT))


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_at_any_time(in_memory: Path, seed: int) -> None:
    """Again and again, with the clock going on in between."""
    dice = random.Random(seed)
    root, now = in_memory / "0", START_MS + 1000
    fill(root)
    for number in range(1, 5):
        following = in_memory / str(number)
        with Disk(root) as disk:
            opened = TimedStore(root, Clock(now), QUIET)
            for _ in range(dice.randrange(1, 4)):
                now = opened.clock.now = now + dice.randrange(1000, 4000) + 15_000 * (now < DUE - 5000)
                opened.timers.run_once()
                if dice.random() < 0.4:
                    opened.timers.flush()
            disk.cut(following, dice)
            opened.die()
        shutil.rmtree(root)
        root = following
    assert come_back(root, now) == Counter(range(COUNT))
