"""What filling a table takes: memory, whatever the size of the log and of its messages; and time for many topics.

Each table is filled in a process of its own, which notes its resident memory before, and the peak (VmHWM) after it.
Pages of mapped files count.

    python -m bench.lake_memory FORMAT ROOT          prints {"growth_bytes": …, "cpu_seconds": …, "rows": …}
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.context import MIB, Context
from bench.measure import Line
from bench.memory import status
from bench.workload import BORN_HOST, STORE_HOST, TOPIC, make_log
from mqlake.lake.tables.append_run import LocalEngine
from mqlake.lake.tables.config import FORMATS, Lake, Topic
from mqlake.lake.tables.topic import TopicTable, steps
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store

GROWTH_MAX = 600 * MIB
SLOPE_MAX = 1.5
"""Processor time a topic in the many to that in the few: each topic has its files and its commit, and no pass over the
log of its own."""


def lake_memory(context: Context) -> Iterator[Line]:
    scale = context.scale
    settings = {"mappedFileSizeCommitLog": scale.recovered_file}
    large = {
        "mappedFileSizeCommitLog": max(scale.recovered_file, 4 * scale.lake_body),
        "maxMessageSize": 2 * scale.lake_body,
    }
    cases: list[tuple[str, Callable[[Path], object]]] = [
        (f"{size / MIB:g} MiB of log", functools.partial(make_log, nbytes=size, settings=settings))
        for size in scale.lake_memory
    ]
    least = min(scale.lake_memory)
    if scale.lake_queues:
        put = functools.partial(
            _put, messages=least // 4096, size=1024, queues=scale.lake_queues, settings=settings
        )
        cases.append((f"{scale.lake_queues} queues", put))
    if scale.lake_body:
        put = functools.partial(
            _put, messages=least // scale.lake_body, size=scale.lake_body, queues=4, settings=large
        )
        cases.append((f"bodies of {scale.lake_body / 1e6:g} MB", put))
    for name, make in cases:
        with context.scratch("lake-memory") as directory:
            with context.progress.step(f"lake-memory: {name}"):
                make(directory / "store")
            for format in scale.lake_formats:
                done = _measured(format, directory / "store")
                yield Line(
                    f"memory of a table's run, {format}, {name}",
                    done["growth_bytes"] / MIB,
                    "MiB",
                    target=f"< {GROWTH_MAX // MIB}",
                    met=done["growth_bytes"] < GROWTH_MAX,
                    work=f"{done['rows']:g} rows, {done['cpu_seconds']:.2f} s of processor time",
                )


def _measured(format: str, root: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.lake_memory", format, str(root)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _put(
    root: Path, messages: int, size: int, queues: int, settings: dict[str, int], topics: int = 0
) -> None:
    """Messages of different bodies, one after the other to each queue, or to each of so many topics."""
    with open_store(root, settings) as store:
        for number in range(messages):
            topic = f"Many{number % topics:05}" if topics else TOPIC
            message = MessageExtBrokerInner(topic, number.to_bytes(4, "big") * (size // 4))
            message.queue_id = number // max(1, topics) % queues
            message.born_timestamp = time.time_ns() // 1_000_000
            message.born_host, message.store_host = BORN_HOST, STORE_HOST
            assert store.put_message(message).is_ok


def fill(format: str, root: Path) -> dict[str, float]:
    """In this process, which is therefore one that does nothing else."""
    make_log(root.parent / f"small-{format}", 64 << 10, {"mappedFileSizeCommitLog": MIB})
    _table(format, root.parent / f"small-{format}").append_new()  # what is imported and compiled once
    table = _table(format, root)
    before, began = status("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")
    rows = table.append_new().rows
    return {
        "growth_bytes": status("VmHWM") - before,
        "cpu_seconds": time.process_time() - began,
        "rows": rows,
    }


def _table(format: str, root: Path) -> TopicTable:
    lake = Lake(f"{root}-lake-{format}", format)
    return TopicTable.open(lake, Topic(TOPIC, {"bench": str(root)}))


def lake_topics(context: Context) -> Iterator[Line]:
    """One run over many topics takes no more time for each of them than over few."""
    few, many = context.scale.lake_topics
    messages = 20
    for format in FORMATS:
        took = {}
        for topics in (few, many):
            with context.scratch("lake-topics") as directory:
                root = directory / "store"
                _put(
                    root,
                    topics * messages,
                    256,
                    1,
                    {"mappedFileSizeCommitLog": context.scale.recovered_file},
                    topics,
                )
                lake = Lake(str(directory / "lake"), format)
                began = time.process_time()
                tables = TopicTable.open_all(
                    lake, [Topic(f"Many{number:05}", {"bench": str(root)}) for number in range(topics)]
                )
                done = [each for step in steps(tables, LocalEngine()) for each in step.tables]
                took[topics] = (time.process_time() - began) / topics
                assert sum(each.rows for each in done) == topics * messages
        yield Line(
            f"one run of {many} topics, {format}",
            1 / took[many],
            "topics/s",
            1 / took[few],
            f"of {few}",
            ratio=took[few] / took[many],
            cpu_us=took[many] * 1e6,
            peer_cpu_us=took[few] * 1e6,
            target=f">= {1 / SLOPE_MAX:.2g}",
            met=took[many] <= took[few] * SLOPE_MAX,
            work=f"{messages} messages a topic",
        )


if __name__ == "__main__":
    print(json.dumps(fill(sys.argv[1], Path(sys.argv[2]))))
