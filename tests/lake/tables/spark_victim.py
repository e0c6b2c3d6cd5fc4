"""A run on Spark, of which a process is killed at a named point.

    python -m tests.lake.tables.spark_victim CASE      a case as JSON, see tests.lake.tables.victim

"victim" of a case says what is killed: "driver" (its JVM ends by itself), "jvm", "all" (at once), or "worker", a
process of a task, at the first batch that it writes or file that it closes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mqlake.lake.tables.append_run
from tests.lake.tables import victim

WORKER_POINTS = ("a batch is written", "a file is closed")
WRITTEN_BY_TASKS = {"planned", *WORKER_POINTS, "all files are written"}
write_pieces = mqlake.lake.tables.append_run.write_pieces


def driver_points(format: str) -> list[str]:
    """Those that are passed with Spark's session there, and in the driver."""
    return [point for point in victim.points_of(format) if point not in WRITTEN_BY_TASKS]


def children(pid: int) -> Iterator[int]:
    """All descendants of a process."""
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from children(int(each))
        yield int(each)


def jvm() -> int:
    [found] = [pid for pid in children(os.getpid()) if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def killer(name: str, marker: str) -> Callable[[], None]:
    """Says in the file `marker` that it was there, and kills."""

    def kill() -> None:
        Path(marker).touch()
        if name == "jvm":
            os.kill(jvm(), signal.SIGKILL)
        elif name == "all":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def write_and_die(case: Mapping[str, Any]) -> Callable[..., Any]:
    """Takes the place of write_pieces in a task."""

    def write(pieces: Sequence[Any], targets: Mapping[str, Any]) -> Any:
        victim.kill_at(dict(case), case["format"], killer("worker", case["marker"]))
        return write_pieces(pieces, targets)

    return write


def main() -> None:
    from mqlake.lake.tables.config import LakeFile
    from mqlake.lake.tables.topic import RunOptions, TopicTable, steps
    from mqlake.spark import session
    from mqlake.spark.jobs import tables as module

    case = json.loads(sys.argv[1])
    lake = LakeFile.load(case["file"])
    spark = session(master="local[2]", short=True)
    if case.get("victim") == "worker":
        module.write_pieces = write_and_die({**case, "format": lake.lake.format})  # type: ignore[attr-defined]
    elif "victim" in case:
        victim.kill_at(case, lake.lake.format, killer(case["victim"], case["marker"]))
    options = RunOptions(case.get("step_bytes", 60_000), 8000)
    made = [TopicTable.open(lake.lake, topic, options) for topic in lake.topics.values()]
    for _ in steps(made, module.SparkEngine(spark)):
        pass
    spark.stop()


if __name__ == "__main__":
    main()
