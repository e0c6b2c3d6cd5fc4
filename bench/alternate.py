"""Two jobs in turn, by wall and processor time, and the line that they make.

Each side's clock says whose processor time counts: this process's, or Spark's too, with its JVM and its Python
workers, those that have ended included.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from bench.context import Context
from bench.measure import Line, Round

Job = Callable[[], object]
Clock = Callable[[], float]

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def compared(
    context: Context,
    name: str,
    ours: Job,
    peer: Job,
    *,
    peer_name: str,
    amount: float,
    unit: str,
    ratio_min: float | None,
    rounds: int | None = None,
    warm_up: int = 1,
    same_work: bool = True,
    clocks: tuple[Clock, Clock] | None = None,
    by_cpu: bool = False,
) -> Line:
    """`clocks`: of the processor time of both sides, where that is known. `by_cpu`: the target is one of that time."""
    own, others = clocks or (time.process_time, time.process_time)

    def timed(job: Job, clock: Clock) -> Round:
        cpu, wall = clock(), time.perf_counter()
        work = job()
        return Round(amount, time.perf_counter() - wall, clock() - cpu, (work,))

    for _ in range(warm_up if context.scale.warm_up_s else 0):
        context.progress.say(f"{name}: warming up")
        timed(ours, own), timed(peer, others)
    pairs = []
    for number in range(rounds or context.scale.recovery_rounds):
        context.progress.say(f"{name}: round {number + 1}")
        if number % 2:
            theirs, mine = timed(peer, others), timed(ours, own)
        else:
            mine, theirs = timed(ours, own), timed(peer, others)
        if same_work and mine.work != theirs.work:
            raise RuntimeError(f"{name}: {mine.work} is not {theirs.work}")
        pairs.append((mine, theirs))
    ratio = statistics.median(a.rate / b.rate for a, b in pairs)
    line = Line(
        name,
        statistics.median(a.rate for a, _ in pairs),
        unit,
        statistics.median(b.rate for _, b in pairs),
        peer_name,
        ratio=ratio,
        ratio_best=max(a.rate for a, _ in pairs) / max(b.rate for _, b in pairs),
        target="" if ratio_min is None else f">= {ratio_min:g}",
        met=None if ratio_min is None else ratio >= ratio_min,
        work=f"{amount:g} {unit}",
        rounds=tuple((a.rate, b.rate) for a, b in pairs),
    )
    if clocks is None:
        return line
    by_time = statistics.median(b.cpu_seconds / max(a.cpu_seconds, 1e-9) for a, b in pairs)
    line = dataclasses.replace(
        line,
        cpu_us=statistics.median(a.cpu_seconds / amount for a, _ in pairs) * 1e6,
        peer_cpu_us=statistics.median(b.cpu_seconds / amount for _, b in pairs) * 1e6,
        cpu_ratio=by_time,
    )
    if not by_cpu or ratio_min is None:
        return line
    return dataclasses.replace(line, target=f"{line.target} by CPU", met=by_time >= ratio_min)


def spark_clock(spark: SparkSession) -> Clock:
    """Processor time of this process, of the session's JVM, and of all that the JVM has started."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return lambda: time.process_time() + cpu_below(jvm)


def cpu_below(root: int) -> float:
    """Seconds of a process and of those below it, which end below it too."""
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))  # user, system, and those of children that ended
    found, below = 0, [root]
    while below:
        pid = below.pop()
        found += ticks.get(pid, 0)
        below += [child for child, parent in parents.items() if parent == pid]
    return found / TICKS_A_SECOND
