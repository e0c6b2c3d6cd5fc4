"""Runs commands with descriptors closed or full, each in a fork of one process that has imported them all.

    python -m tests.cli.every_command < cases.json > results.json

A case is {"args": [...], "streams": {"0": "closed", "1": "full" | "closed" | "file", ...}}; a stream that is not named
is a file of its own. A result is {"status": exit status, -number of a signal, "out": text, "err": text}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from typing import Any

import click

FAILED = 99
SECONDS_MAX = 120


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command that is no group."""
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= leaves(command, (*path, name))
        else:
            found[(*path, name)] = command
    return found


def run_case(case: dict[str, Any], place: str) -> dict[str, Any]:
    paths = [os.path.join(place, name) for name in ("in", "out", "err")]
    for path in paths:
        with open(path, "w"):
            pass
    child = os.fork()
    if child == 0:
        try:
            for number, path in enumerate(paths):
                kind = case["streams"].get(str(number), "file")
                if kind == "closed":
                    os.close(number)
                    continue
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY
                source = os.open("/dev/full" if kind == "full" else path, flags)
                os.dup2(source, number)
                os.close(source)
            _as_python_starts()
            sys.argv = ["mqlake", *case["args"]]
            os.environ.setdefault("NAMESRV_ADDR", "127.0.0.1:1")
            from mqlake.__main__ import main

            status = 0
            try:
                main()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                status = FAILED
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:
                    status = FAILED  # Python says so in a traceback of its own
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    with open(paths[1], errors="replace") as out, open(paths[2], errors="replace") as err:
        return {"status": os.waitstatus_to_exitcode(ended), "out": out.read(), "err": err.read()}


def _as_python_starts() -> None:
    """A closed descriptor has no stream."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, None)
            continue
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def main() -> None:
    from mqlake.cli.main import cli

    leaves(cli)
    import duckdb  # noqa: F401  for those that read a lake
    import pyarrow.dataset  # noqa: F401
    import pyiceberg.catalog.sql  # noqa: F401
    import pyspark.sql  # noqa: F401  for those that ask for a session

    gc.freeze()
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as place:
        json.dump([run_case(case, place) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
