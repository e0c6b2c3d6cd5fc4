"""Every snippet of docs/client.md runs, in its order, against `mqlake serve`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mqlake.remoting.loop import run
from tests.documents import snippets
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_programs_run(mqlake_broker: MqlakeBroker) -> None:
    names: dict[str, Any] = {}
    programs = snippets("docs/client.md", "python")
    assert len(programs) >= 7
    for program in programs:
        names.pop("main", None)
        code = program.replace("127.0.0.1:9876", mqlake_broker.namesrv)
        exec(compile(code, str(GUIDE), "exec"), names)
        if inspect.iscoroutinefunction(names.get("main")):
            run(names["main"]())
    assert names["seen"] == [("orders", b"a book", ["order-1"], 0)] and len(names["offsets"]) == 100


def test_the_commands_run(mqlake_broker: MqlakeBroker, tmp_path: Path) -> None:
    (commands,) = snippets("docs/client.md", "sh")
    environment = {
        **os.environ,
        "NAMESRV_ADDR": mqlake_broker.namesrv,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2.5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "greeting hello\n" in done.stdout and len((tmp_path / "numbers.jsonl").read_text().splitlines()) == 6
    )
