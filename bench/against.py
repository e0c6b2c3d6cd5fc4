"""Two checkouts side by side: each line's rounds in turn, in a process for each checkout, by CPU time.

    this checkout's mqlake   ◀── round 1 ──      ── round 2 ──▶        the bench, Python and packages are the same
    the other's              ── round 1 ──▶      ◀── round 2 ──        on both sides: those that run this command

The ratio is the median of the rounds' own ratios; more than 1 is slower than the other checkout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from bench.alone import LINES
from bench.context import Scale
from bench.idle import wait_until_idle
from bench.measure import Progress, Round

ROOT = Path(__file__).resolve().parent.parent
WARM_UP_ROUNDS = 3
TOLERATED = 1.03
"""A median ratio of CPU time above this is flagged."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """One line. CPU times are microseconds a message, record or file; ratios are this checkout / the other."""

    name: str
    cpu_us: float
    other_cpu_us: float
    cpu_ratio: float
    best_cpu_ratio: float
    """The best round's to the other's best round."""
    wall_ratio: float
    rounds: tuple[tuple[float, float], ...]
    """CPU microseconds each, in every round."""

    @classmethod
    def of(cls, name: str, ours: Sequence[Round], theirs: Sequence[Round]) -> Self:
        def cpu_us(done: Round) -> float:
            return done.cpu_seconds / done.amount * 1e6

        pairs = [(cpu_us(a), cpu_us(b)) for a, b in zip(ours, theirs, strict=True)]
        mine, other = zip(*pairs, strict=True)
        return cls(
            name,
            statistics.median(mine),
            statistics.median(other),
            statistics.median(a / b for a, b in pairs),
            min(mine) / min(other),
            statistics.median(a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)),
            tuple(pairs),
        )

    @property
    def is_slower(self) -> bool:
        return self.cpu_ratio > TOLERATED

    def __str__(self) -> str:
        cpu = f"{self.cpu_us:.3g} | {self.other_cpu_us:.3g} µs"
        flag = "  SLOWER" if self.is_slower else "  faster" if self.cpu_ratio < 1 / TOLERATED else ""
        return (
            f"{self.name:<16} CPU {cpu:>20}  ratio {self.cpu_ratio:.3f} (best {self.best_cpu_ratio:.3f})"
            f"  wall {self.wall_ratio:.3f}{flag}"
        )


class AbsentError(Exception):
    """The checkout lacks what a line needs."""


class Checkout:
    """The process that runs lines with the mqlake below `root`; a `with` ends it."""

    def __init__(self, root: Path, directory: Path, scale: Scale) -> None:
        self.root = root
        self._directory = directory
        source = (root / "src").resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.alone", str(directory), json.dumps(dataclasses.asdict(scale))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self._end)
            found = Path(self._answer()["mqlake"])
            if source not in found.parents:
                raise RuntimeError(f"mqlake came from {found}, not from {source}")
            undo.pop_all()

    @contextlib.contextmanager
    def line(self, name: str) -> Iterator[Callable[[], Round]]:
        """Makes the line's rounds. Raises AbsentError."""
        self._ask("open", name)
        try:
            yield lambda: Round(**self._ask("round", name))
        finally:
            self._ask("close", name)

    def _ask(self, what: str, name: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, name]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.root}: the process of the bench ended: {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "absent" in answer:
            raise AbsentError(f"{self.root}: {answer['absent']}")
        if "error" in answer:
            raise RuntimeError(f"{self.root}: {answer['error']}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._process.communicate()


def against(
    other: Path,
    names: Sequence[str],
    scale: Scale,
    directory: Path,
    progress: Progress,
    show: Callable[[object], None],
) -> list[Compared]:
    """The named lines, of this checkout and of the `other`; each is shown when it is there."""
    if not (other / "src" / "mqlake").is_dir():
        raise FileNotFoundError(f"{other}: no checkout of mqlake, there is no src/mqlake")
    found = []
    with (
        Checkout(ROOT, directory / "this", scale) as ours,
        Checkout(other, directory / "other", scale) as theirs,
    ):
        for name in names:
            try:
                compared = _compare(name, ours, theirs, scale.rounds, progress)
            except AbsentError as error:
                progress.clear()
                show(f"{name:<16} left out: {error}")
                continue
            progress.clear()
            show(compared)
            found.append(compared)
    return found


def _compare(name: str, ours: Checkout, theirs: Checkout, rounds: int, progress: Progress) -> Compared:
    progress.say(f"{name}: preparing")
    with ours.line(name) as our_round, theirs.line(name) as their_round:
        for _ in range(WARM_UP_ROUNDS):
            our_round(), their_round()
            wait_until_idle()
        done: list[tuple[Round, Round]] = []
        for number in range(rounds):
            progress.say(f"{name}: round {number + 1} of {rounds}")
            if number % 2:
                their, our = their_round(), our_round()
            else:
                our, their = our_round(), their_round()
            if our.amount != their.amount:
                raise RuntimeError(f"{name}: {our.amount} here, {their.amount} there")
            done.append((our, their))
    return Compared.of(name, [our for our, _ in done], [their for _, their in done])


__all__ = ["LINES", "Compared", "against"]
