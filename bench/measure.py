"""Rounds of two sides in turn, and the line that they make.

    warm-up        Java until its rate stops rising (bounded), mqlake a few rounds, with its code loaded at the end
    round 1        mqlake, Java    ─▶ ratio 1
    round 2        Java, mqlake    ─▶ ratio 2        the median of the ratios is the figure: a machine that
    round 3        mqlake, Java    ─▶ ratio 3        is slow for a while is slow for both sides of a round
    ...

Both sides do the same work in every round, which is checked (`Round.work`). CPU time is that of all threads of
the process, the JVM's compiler and collector included.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

from tests.interop.java_peer import warm_up

from bench.idle import wait_until_idle


@dataclasses.dataclass(frozen=True)
class Round:
    """`amount` is what a rate counts (messages, bytes, files); `work` must be equal on both sides."""

    amount: float
    seconds: float
    cpu_seconds: float
    work: tuple[Any, ...] = ()
    latency_us: tuple[float, ...] = ()
    """p50, p99, p999 of a request."""

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


class Side(Protocol):
    """One of the two that are compared; what prepares a round is outside its time."""

    def round(self) -> Round: ...


@dataclasses.dataclass(frozen=True)
class Line:
    """One figure of mqlake, the peer's beside it, and the target. Rates are per second of wall time."""

    name: str
    mqlake: float
    unit: str
    peer: float | None = None
    peer_name: str = "Java"
    ratio: float | None = None
    ratio_best: float | None = None
    cpu_us: float | None = None
    peer_cpu_us: float | None = None
    target: str = ""
    met: bool | None = None
    work: str = ""
    setting: str = ""
    """Where both sides ran."""
    cpu_ratio: float | None = None
    """Work for the same processor time, to the peer's."""
    limit: float | None = None
    """The rate of something that does the least there is to do."""
    limit_ratio: float | None = None
    limit_cpu_us: float | None = None
    latency_us: tuple[float, ...] = ()
    """p50, p99, p999 of a request."""
    peer_latency_us: tuple[float, ...] = ()
    rounds: tuple[tuple[float, float], ...] = ()
    """(mqlake, peer) of every round."""

    def __str__(self) -> str:
        cells = [f"{self.name:<34}", f"{_short(self.mqlake)} {self.unit}".rjust(18)]
        if self.peer is not None:
            cells.append(f"{self.peer_name} {_short(self.peer)}".rjust(14))
        if self.ratio is not None:
            best = f" (best/best {self.ratio_best:.2f})" if self.ratio_best is not None else ""
            cells.append(f"ratio {self.ratio:.2f}{best}".ljust(30))
        if self.cpu_us is not None:
            peer_cpu = "" if self.peer_cpu_us is None else f" | {self.peer_cpu_us:.2f}"
            cells.append(f"CPU {self.cpu_us:.2f}{peer_cpu} µs each".ljust(28))
        if self.cpu_ratio is not None:
            cells.append(f"by CPU {self.cpu_ratio:.2f}")
        if self.limit is not None:
            cells.append(
                f"limit {_short(self.limit)} (ratio {self.limit_ratio:.2f}, CPU {self.limit_cpu_us:.2f})"
            )
        if self.latency_us:
            shown = (
                "/".join(_short(each) for each in side)
                for side in (self.latency_us, self.peer_latency_us)
                if side
            )
            cells.append(f"p50/p99/p999 {' | '.join(shown)} µs")
        if self.setting:
            cells.append(self.setting)
        if self.target:
            cells.append(f"target {self.target}: {'met' if self.met else 'missed'}")
        return "  ".join(cells)


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {letter}"
    return f"{value:.3g}"


def first_of(*names: str) -> ModuleType:
    """The first of these modules that is there: an older checkout has some elsewhere. Raises ImportError."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(f"no module {' or '.join(names)}")


class Stopwatch:
    """Wall and processor time of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        return time.perf_counter() - self._wall

    def cpu_seconds(self) -> float:
        return time.process_time() - self._cpu

    def round(self, amount: float, *work: Any) -> Round:
        return Round(amount, self.seconds(), self.cpu_seconds(), work)


class Progress:
    """One line on stderr that says what is being done; nothing when stderr is no terminal, but for the steps."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if not self._quiet:
            print(
                f"\r\x1b[K{text}" if self._live else text,
                end="" if self._live else "\n",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        if self._live and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self.say(text)
        began = time.monotonic()
        yield
        if time.monotonic() - began > 5:
            self.say(f"{text}: {time.monotonic() - began:.0f} s")


def compare(
    name: str,
    mqlake: Side,
    peer: Side,
    progress: Progress,
    *,
    unit: str,
    rounds: int,
    warm_up_s: float,
    warm_up_rounds: int = 200,
    ratio_min: float | None = None,
    per: Callable[[Round], float] = lambda done: done.amount,
    same_work: bool = True,
    touch: Callable[[], None] = lambda: None,
) -> Line:
    """Alternating rounds, `touch` called before each. `per(round)`: what CPU time is divided by (messages)."""

    def warm(side: Side, label: str) -> None:
        def rate() -> float:
            done = side.round().rate
            progress.say(f"{name}: {label} warms up, {_short(done)} {unit}")
            return done

        warm_up(rate, rounds_max=warm_up_rounds, seconds_max=warm_up_s)

    warm(peer, "Java")
    for _ in range(2):
        mqlake.round()
        wait_until_idle()
    ours: list[Round] = []
    theirs: list[Round] = []
    for number in range(rounds):
        progress.say(f"{name}: round {number + 1} of {rounds}")
        for side, done in [(mqlake, ours), (peer, theirs)][:: -1 if number % 2 else 1]:
            touch()
            done.append(side.round())
        if same_work and ours[-1].work != theirs[-1].work:
            raise RuntimeError(f"{name}: mqlake did {ours[-1].work}, Java {theirs[-1].work}")
    ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
    return Line(
        name,
        statistics.median(a.rate for a in ours),
        unit,
        statistics.median(b.rate for b in theirs),
        ratio=ratio,
        ratio_best=max(a.rate for a in ours) / max(b.rate for b in theirs),
        cpu_us=statistics.median(a.cpu_seconds / per(a) for a in ours) * 1e6,
        peer_cpu_us=statistics.median(b.cpu_seconds / per(b) for b in theirs) * 1e6,
        target="" if ratio_min is None else f">= {ratio_min:g}",
        met=None if ratio_min is None else ratio >= ratio_min,
        work=" ".join(map(str, ours[-1].work)),
        rounds=tuple((a.rate, b.rate) for a, b in zip(ours, theirs, strict=True)),
    )
