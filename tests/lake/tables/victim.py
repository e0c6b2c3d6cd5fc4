"""Runs that are killed at a named point, each in a fork of one process that has imported everything.

    python -m tests.lake.tables.victim < cases > results      a line of JSON each

A case is {"file": lake.toml, "point": name, "nth": at which of its calls, "when": "before" | "after", "step_bytes": n}.
A result is {"status": exit status, -9 when it was killed, "error": text}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

POINTS = {
    "planned": "mqlake.lake.tables.source:StoreSource.plan",
    "a batch is written": "mqlake.lake.tables.files:TableWriter.write",
    "a file is closed": "mqlake.lake.tables.files:_OpenFile.close",
    "all files are written": "mqlake.lake.tables.append_run:write_pieces",
    "checked": "mqlake.lake.tables.append_run:check_dense",
    "the state is looked at": "mqlake.lake.tables.{format}:{Format}Table.head",
    "committed": "mqlake.lake.tables.{format}:{Format}Table.commit",
}
ICEBERG_POINTS = {
    "the manifests are written": "mqlake.lake.tables.iceberg:IcebergTable._land",
    "the metadata is written": "pyiceberg.catalog:MetastoreCatalog._write_metadata",
    "the catalog has it": "pyiceberg.catalog.sql:SqlCatalog.commit_table",
}
DELTA_POINTS = {"the log has it": "deltalake:DeltaTable.create_write_transaction"}


def points_of(format: str) -> list[str]:
    return [*POINTS, *(ICEBERG_POINTS if format == "iceberg" else DELTA_POINTS)]


def run(case: dict[str, Any]) -> None:
    from mqlake.lake.tables.append_run import LocalEngine
    from mqlake.lake.tables.config import LakeFile
    from mqlake.lake.tables.topic import RunOptions, TopicTable, steps

    lake = LakeFile.load(case["file"])
    if "point" in case:
        kill_at(case, lake.lake.format)
    options = RunOptions(case.get("step_bytes", 9000), case.get("file_bytes", 4000))
    tables = [TopicTable.open(lake.lake, topic, options) for topic in lake.topics.values()]
    for _ in steps(tables, LocalEngine()):
        pass


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(case: dict[str, Any], format: str, kill: Callable[[], None] = kill_self) -> None:
    """Has `kill` called at the case's point."""
    import importlib

    where = {**POINTS, **ICEBERG_POINTS, **DELTA_POINTS}[case["point"]]
    where = where.format(format=format, Format=format.capitalize())
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    raw = owner.__dict__[name]
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    calls = 0

    def instead(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == case["nth"] and case["when"] == "before":
            kill()
        result = function(*given, **named)
        if calls == case["nth"] and case["when"] == "after":
            kill()
        return result

    setattr(owner, name, staticmethod(instead) if isinstance(raw, staticmethod) else instead)


def main() -> None:
    import deltalake  # noqa: F401
    import pyiceberg.catalog.sql  # noqa: F401

    import mqlake.lake.tables.delta
    import mqlake.lake.tables.iceberg
    import mqlake.lake.tables.topic  # noqa: F401

    children: dict[int, dict[str, Any]] = {}
    for line in sys.stdin:
        given = json.loads(line)
        results = []
        for case in given:  # those of one line run at the same time
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                status = 0
                try:
                    run(case)
                except BaseException as error:
                    os.write(write, f"{type(error).__name__}: {error}".encode()[:4000])
                    status = 1
                os._exit(status)
            os.close(write)
            children[child] = {"read": read}
            results.append(child)
        answers = []
        for child in results:
            with os.fdopen(children[child]["read"], "rb") as errors:
                text = errors.read().decode(errors="replace")
            _, ended = os.waitpid(child, 0)
            answers.append({"status": os.waitstatus_to_exitcode(ended), "error": text})
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
