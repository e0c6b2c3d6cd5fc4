"""What docs/operations.md and docs/broker.md tell people to type, typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.documents import snippets
from tests.interop.brokers import MqlakeBroker, Server
from tests.waiting import PATIENCE_S

BIN = Path(sys.executable).parent


def snippet(page: str, language: str) -> str:
    (found,) = snippets(f"docs/{page}", language)
    return found


def typed(commands: str, namesrv: str, place: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=place,
        env={**os.environ, "NAMESRV_ADDR": namesrv, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=2.5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_looking_after_a_cluster(tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path / "broker", {"brokerName": "broker-0"}) as broker:
        before = "mqlake produce orders -m hello -k order-1; mqlake consume orders -g billing -c 1"
        typed(before, broker.namesrv, tmp_path)
        shown = typed(snippet("operations.md", "sh"), broker.namesrv, tmp_path)
    assert "orders: 8 queues" in shown and "0 behind" in shown and "hello" in shown
    assert "fileReservedTime=48" in shown


def test_opening_a_store(tmp_path: Path, capsys: Any) -> None:
    code = snippet("operations.md", "python").replace("/data/", f"{tmp_path}/")
    small = '"mappedFileSizeCommitLog": "1m", "maxHashSlotNum": 100, "maxIndexNum": 400, "flush'
    exec(compile(code.replace('"flush', small), "operations.md", "exec"), {})
    assert capsys.readouterr().out.startswith("PUT_OK 7F000001")


def test_tls(tmp_path: Path) -> None:
    """Every line as it stands: a certificate that clients do not accept would make the last one fail."""
    make, serve, produce, consume = snippet("broker.md", "sh").replace("\\\n", "").splitlines()
    typed(make, "", tmp_path)
    small = "--set=mappedFileSizeCommitLog=1m --set=maxHashSlotNum=100 --set=maxIndexNum=400"
    command = f"cd {tmp_path}; exec {BIN}/{serve} --port=0 --namesrv-port=0 {small}"
    server = Server(["bash", "-euc", command], r"-n (\S+:\d+)", tmp_path / "log", {})
    try:
        assert typed(f"{produce}\n{consume}", server.match.group(1), tmp_path) == "hello\n"
    finally:
        assert server.end(signal.SIGTERM) == 0
