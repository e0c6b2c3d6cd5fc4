"""`mqlake console`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.console.pages import PAGES
from tests.cli.test_serve import MQLAKE, children_of, ready, serving
from tests.store.small_store import fill
from tests.waiting import PATIENCE_S, until


def test_it_shows_directories_without_any_broker(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", count=10)
    process = subprocess.Popen(
        [*MQLAKE, "console", "--store", str(store), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    with urllib.request.urlopen(f"{url}stores/store?format=json", timeout=PATIENCE_S) as answer:
        assert json.load(answer)["messages"] == 10
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_serve_shows_its_own_cluster(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*MQLAKE, "serve", "--ephemeral", "--grpc-port", "-1", "--console-port", "0", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    with urllib.request.urlopen(f"{found['console']}brokers?format=json", timeout=PATIENCE_S) as answer:
        assert [each["address"] for each in json.load(answer)["brokers"]] == found["brokers"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_console_that_dies_takes_no_broker_with_it_and_comes_back(tmp_path: Path) -> None:
    """It has a process of its own beside `mqlake serve`: what a page costs, no broker pays."""
    with serving(tmp_path, "--json", "--grpc-port=-1", "--console-port=0") as process:
        where = ready(process)
        [console] = children_of(process.pid)
        os.kill(console, signal.SIGKILL)
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith(f"the console (process {console}) ended with status -9, restarting it in")

        def shown() -> list[str]:
            try:
                with urllib.request.urlopen(f"{where['console']}brokers?format=json") as answer:
                    return [each["address"] for each in json.load(answer)["brokers"]]
            except OSError:
                return []

        until(lambda: shown() == where["brokers"], "it is back at the same address, and so is the broker")
        process.kill()
        process.wait()
        until(lambda: not shown(), "it ends with the process that started it")


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["console", "--store", str(tmp_path)])
    assert result.exit_code == 1 and str(tmp_path) in result.stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = CliRunner().invoke(cli, ["console"])
    assert result.exit_code == 3 and "mqlake[console]" in result.stderr


def test_the_guide_types_what_the_commands_take() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text(encoding="utf-8")
    lines = [line.partition("  #")[0] for line in guide.splitlines() if line.startswith("mqlake ")]
    assert len(lines) >= 8
    for line in lines:
        name, *arguments = shlex.split(line)[1:]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, line
        command.make_context(name, arguments)  # raises for an option that is not there


def test_the_guide_names_every_page() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"/{page.path.rpartition('/')[2]}".split("/{")[0] in guide, page.path


def test_mcp_changes_nothing() -> None:
    result = CliRunner().invoke(cli, ["console", "--mcp", "--allow-changes"])
    assert result.exit_code == 2 and "read-only" in result.stderr
