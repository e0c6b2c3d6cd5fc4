"""Which worker of `make test` runs which test file, and when.

    gw0, 3, 6…   Spark, longest file first ──────────▶ then what is left of the others
    gw1, 4…      Java peers, longest file first ─────▶
    gw2, 5, 7…   the rest, longest file first ───────▶

A file runs in one worker. What takes long to start (a Spark session, a JVM of RocketMQ's) lives as long as its worker,
so a worker stays with one kind of file as long as there is one. Each kind has workers by the processor time that its
files take together, so that all kinds last to the end. Long files come first: the last ones are short, and all workers
end at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK, JAVA, REST = "spark", "java", "rest"
BY_START = (REST, JAVA, SPARK)
"""The sooner a worker has what they need, the earlier: this is what it takes when none of its own kind is left."""
FIRST_KINDS = (SPARK, JAVA, REST, SPARK, JAVA, REST, SPARK, REST)
"""By the worker's number; more workers begin again."""

LONGEST = tuple((Path(__file__).parent / "longest.txt").read_text(encoding="utf-8").split())
"""Files that take the most time, longest first, as `python -m tests.costs` finds them. One that is missing here only
runs later than it might, and in `make quick`."""

TOGETHER = {"tests/spark/test_automatic.py": "tests/spark/jobs/test_connect.py"}
"""Files that run in the worker of another, which has started what they need: a Spark Connect server."""

KIND_OF = (
    # with Spark, but in processes of their own
    ("tests/spark/test_cluster.py", REST),
    ("tests/interop/test_spark_java_broker.py", SPARK),
    ("tests/interop/test_java_reads_spark.py", SPARK),
    ("tests/interop/test_metaq_spark.py", SPARK),
    ("tests/bench/test_spark.py", SPARK),
    ("tests/lake/test_notebooks.py", SPARK),
    ("tests/bench/", JAVA),
    ("tests/spark/", SPARK),
    ("tests/interop/", JAVA),
    ("tests/crash/", JAVA),
)
"""By the beginning of the path; the first that fits counts."""


def kind_of(file: str) -> str:
    return next((kind for beginning, kind in KIND_OF if file.startswith(beginning)), REST)


def is_quick(file: str) -> bool:
    """True if `make quick` runs the file: it takes little time, and needs neither Spark nor RocketMQ."""
    return kind_of(file) == REST and file not in LONGEST


def in_order(items: list[pytest.Item], file_of: Callable[[pytest.Item], str]) -> None:
    """Sorts the tests by file: the longest first, then those with the most tests."""
    counts: dict[str, int] = {}
    for item in items:
        counts[file_of(item)] = counts.get(file_of(item), 0) + 1
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(
        key=lambda item: (places.get(file_of(item), len(places)), -counts[file_of(item)], file_of(item))
    )


class KindScheduling(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, in the order of collection; each worker has a kind of file that it prefers, and files of
    TOGETHER are one."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test at which a worker died, if it died. That test is over, and the rest of its file is run elsewhere.

        xdist 3.8 would run the test again and again, and give a worker files that are over, for which it waits.
        """
        workload = self.assigned_work.get(node, {})
        crashed = next(
            (test for tests in workload.values() for test, over in tests.items() if not over), None
        )
        if crashed is not None:
            workload[self._split_scope(crashed)][crashed] = True
        for file in [file for file, tests in workload.items() if all(tests.values())]:
            del workload[file]
        super().remove_node(node)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = self.nodes.index(node)
        self.workqueue.move_to_end(preferred(list(self.workqueue), number), last=False)
        super()._assign_work_unit(node)


def preferred(files: Sequence[str], worker: int) -> str:
    """Of the files that are left, in their order, the one that a worker takes next."""
    kinds = (FIRST_KINDS[worker % len(FIRST_KINDS)], *BY_START)
    return min(files, key=lambda file: kinds.index(kind_of(file)))
