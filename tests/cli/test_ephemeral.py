"""`mqlake serve --ephemeral`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake import native
from mqlake.cli.main import cli
from tests.cli.test_serve import MQLAKE
from tests.waiting import PATIENCE_S


def started(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [*MQLAKE, "serve", "--ephemeral", "--json", *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_what_a_killed_one_left_goes_with_the_next_one(tmp_path: Path) -> None:
    process, first = started(tmp_path)
    assert Path(first["store"]).parent == tmp_path and (Path(first["store"]) / "broker-0").is_dir()
    process.kill()
    process.communicate()
    assert Path(first["store"]).exists()
    process, second = started(tmp_path)
    assert not Path(first["store"]).exists()
    assert first["store"] != second["store"] and first["namesrv"] != second["namesrv"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_native_code_does_the_work(tmp_path: Path) -> None:
    if native.module("records") is None:
        pytest.skip("nothing is compiled here")
    process, _ = started(tmp_path)
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert str(Path(native.__file__).parent) in mapped


def test_a_directory_is_not_ephemeral(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", "--ephemeral", "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert "do not give --store" in result.stderr
