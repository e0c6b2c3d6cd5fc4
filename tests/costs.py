"""What each test file costs: processor time, with that of all processes that ended while it ran.

    MQLAKE_COSTS=/tmp/costs make test      at the end: the dearest files, and all of them in /tmp/costs
    python -m tests.costs /tmp/costs > tests/longest.txt      who takes long, for the order of the next runs

A session or a broker that many files share counts for the file in whose time it ends, the last one of its worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "MQLAKE_COSTS"
SHOWN = 25
LONG_S = 1.0
"""From so much processor time on a file is one of the longest."""


@contextmanager
def of(file: str) -> Iterator[None]:
    """Adds a line to the file that the variable names, if it is set; workers append to one file."""
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    before, began = os.times(), time.monotonic()
    yield
    after = os.times()
    own = after.user + after.system - before.user - before.system
    others = after.children_user + after.children_system - before.children_user - before.children_system
    line = {"file": file, "cpu": round(own + others, 2), "children": round(others, 2)}
    line["wall"] = round(time.monotonic() - began, 2)
    with open(path, "ab", buffering=0) as costs:
        costs.write(json.dumps(line).encode() + b"\n")


def summary(lines: Iterable[str]) -> list[str]:
    """The dearest files, and all together, as a table in seconds."""
    found = sorted(map(json.loads, lines), key=lambda line: -line["cpu"])
    total = sum(line["cpu"] for line in found)
    rows = [
        f"{line['cpu']:8.1f} {line['children']:10.1f} {line['wall']:8.1f}  {line['file']}" for line in found
    ]
    return ["     CPU   children     wall", *rows[:SHOWN], f"{total:8.1f}  in {len(found)} files"]


def report() -> list[str]:
    """The summary; empty when nothing was asked for."""
    path = os.environ.get(VARIABLE)
    return summary(Path(path).read_text().splitlines()) if path and os.path.exists(path) else []


def longest(lines: Iterable[str]) -> list[str]:
    """The files that take LONG_S of a processor, or twenty times that in waiting, those first that take the most time
    from beginning to end."""
    found = sorted(map(json.loads, lines), key=lambda line: -line["wall"])
    return list(
        dict.fromkeys(line["file"] for line in found if max(line["cpu"], line["wall"] / 20) >= LONG_S)
    )


if __name__ == "__main__":
    print(*longest(Path(sys.argv[1]).read_text().splitlines()), sep="\n")
