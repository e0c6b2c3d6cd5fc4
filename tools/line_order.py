"""A pytest plugin for tools/mutants.py: which tests run which lines of one module, and those of some lines first.

    MQLAKE_LINES_OF=…/recovery.py MQLAKE_LINES_TO=lines.json pytest …   in a random order: it shows that any will do
                            ▼
    {"tests/store/test_recovery.py::test_x": [310, 311, …], …}
                            ▼
    MQLAKE_LINES=lines.json MQLAKE_FIRST=310 pytest -x …                what runs line 310 comes first

A test that runs a changed line mostly is the one that notices, so most mutants need a part of the tests alone; the
others follow, since a fixture may have run the line for them, or a process of their own.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

MODULE, TO = os.environ.get("MQLAKE_LINES_OF", ""), os.environ.get("MQLAKE_LINES_TO", "")
_lines: defaultdict[str, set[int]] = defaultdict(set)
_now = ""


def _trace(frame: FrameType, _event: str, _arg: Any) -> Any:
    if frame.f_code.co_filename != MODULE:
        return None
    seen = _lines[_now]

    def line(inner: FrameType, _event: str, _arg: Any) -> Any:
        seen.add(inner.f_lineno)
        return line

    seen.add(frame.f_lineno)
    return line


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    global _now
    _now = item.nodeid
    if MODULE:
        threading.settrace(_trace)
        sys.settrace(_trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MODULE:
        random.Random(1).shuffle(items)
    elif first := os.environ.get("MQLAKE_FIRST"):
        lines = json.loads(Path(os.environ["MQLAKE_LINES"]).read_text("utf-8"))
        items.sort(key=lambda item: int(first) not in lines.get(item.nodeid, ()))


def pytest_sessionfinish() -> None:
    if MODULE:
        Path(TO).write_text(json.dumps({test: sorted(its) for test, its in _lines.items()}), "utf-8")
