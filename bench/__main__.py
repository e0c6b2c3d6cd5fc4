"""The benches' command: `python -m bench [--quick] [--only NAME] [--rounds N] [--json FILE] [--against CHECKOUT]`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import against
from bench.context import FULL, QUICK, Context, Scale
from bench.measure import Line, Progress

BENCHES = {
    "append-1k": "append.append_single_1k",
    "append-128": "append.append_single_128",
    "batch-1k": "append.append_batch_1k",
    "batch-128": "append.append_batch_128",
    "sync-flush": "append.sync_flush",
    "recover": "opening.recover",
    "rebuild": "opening.rebuild",
    "get": "reading.get",
    "verify": "reading.verify",
    "start": "opening.start",
    "memory": "memory.memory",
    "socket-sends": "sockets.socket_sends",
    "socket-sync": "sockets.socket_sync",
    "socket-pulls": "sockets.socket_pulls",
    "neighbours": "neighbours.neighbours",
    "broker-sync": "broker.sync",
    "broker-async": "broker.asynchronous",
    "broker-batch": "broker.batch",
    "broker-transactions": "broker.transactions",
    "broker-drain": "broker.drain",
    "grpc": "grpc_clients.grpc_clients",
    "replication-sync": "replication.sync_master",
    "replication-keep-up": "replication.keeping_up",
    "replication-catch-up": "catch_up.catch_up",
    "timers": "timers.timers",
    "pop": "pop.pop",
    "metaq-put": "metaq.put",
    "metaq-get": "metaq.get",
    "metaq-open": "metaq.opening",
    "spark": "spark.spark",
    "spark-export": "spark_export.spark_export",
    "lake-table": "lake.lake_table",
    "lake-live": "lake_live.lake_live",
    "lake-query": "lake.lake_query",
    "lake-narrow": "lake_narrow.lake_narrow",
    "lake-union": "lake.lake_union",
    "lake-commits": "lake_commits.lake_commits",
    "lake-memory": "lake_memory.lake_memory",
    "lake-topics": "lake_memory.lake_topics",
    "spark-live": "spark.spark_live",
}
"""Name → module and function. A module is imported when it is run: some take seconds."""


def bench(name: str) -> Callable[[Context], Iterator[Line]]:
    """The bench of that name."""
    module, _, function = BENCHES[name].partition(".")
    found: Callable[[Context], Iterator[Line]] = getattr(importlib.import_module(f"bench.{module}"), function)
    return found


def run(
    names: list[str], scale: Scale, directory: Path, progress: Progress, show: Callable[[Line], None]
) -> list[Line]:
    """The lines of the named benches; each is shown when it is there."""
    lines = []
    with Context(directory, scale, progress) as context:
        for name in names:
            for line in bench(name)(context):
                lines.append(line)
                progress.clear()
                show(line)
    return lines


def machine() -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour; rougher figures")
    parser.add_argument("--only", action="append", metavar="NAME", help="this bench (may be repeated)")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="of each side of a line; default: 9, or 5 with --quick"
    )
    parser.add_argument(
        "--java", action="store_true", help="RocketMQ's broker beside mqlake's in the socket benches, too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured there")
    parser.add_argument(
        "--dir", type=Path, help="where to work (12 GB free); default: the temporary directory"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare mqlake with the one of another checkout, without peers; "
        f"exit status 1 if a line takes over {against.TOLERATED - 1:.0%}% more CPU time",
    )
    given = parser.parse_args(arguments)
    known = list(BENCHES if given.against is None else against.LINES)
    names = given.only or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no bench {', '.join(unknown)}; there are {', '.join(known)}")
    scale = dataclasses.replace(QUICK if given.quick else FULL, java=given.java)
    if given.rounds is not None:
        if given.rounds < 1:
            parser.error("--rounds: at least 1")
        scale = dataclasses.replace(scale, rounds=given.rounds)
    progress = Progress()
    print(f"# {' '.join(f'{key}={value}' for key, value in machine().items())}")
    lines: Sequence[Line | against.Compared]
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-", dir=given.dir) as directory:
        if given.against is None:
            lines = run(names, scale, Path(directory), progress, show)
        else:
            lines = against.against(given.against, names, scale, Path(directory), progress, show)
    if given.json is not None:
        measured = {"machine": machine(), "lines": [dataclasses.asdict(line) for line in lines]}
        given.json.write_text(json.dumps(measured, indent=1) + "\n")
    return int(any(isinstance(line, against.Compared) and line.is_slower for line in lines))


def show(line: object) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
