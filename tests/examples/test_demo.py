"""The demo: whole, and its parts without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import ConfigError, StoreError
from mqlake.spark.jobs.verify import StoresReport
from mqlake.store import ReadOnlyStore
from mqlake_flights import demo as module
from mqlake_flights.demo import (
    Check,
    Demo,
    Lookup,
    Result,
    demo,
    difference,
    keys_to_ask,
    next_steps,
    prepare_directory,
    program,
    run_writer,
)
from mqlake_flights.flights import count_truth


@pytest.mark.spark
def test_flights_in_a_kill_and_every_figure_agrees(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    command = [
        sys.executable,
        "-c",
        "from mqlake.cli.main import main; main()",
        "demo",
        str(directory),
        "--rows",
        "4000",
        "--json",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["ok"]
    assert all(check["ok"] for check in report["checks"])
    assert len(report["checks"]) >= 18
    killed, last = report["writers"]
    assert killed["killed"]
    assert 2000 <= killed["acknowledged"] < 4000
    assert killed["acknowledged"] <= last["firstRow"] < last["acknowledged"] == 4000
    assert last["recovery"].startswith("no clean exit")
    assert sum(queue["messages"] for queue in report["queues"]) == 4000
    assert all(Path(path).exists() for path in report["made"].values())
    assert Path(report["made"]["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in run.stderr
    with ReadOnlyStore(directory / "store") as store:
        assert sum(chunk.count for chunk in store.scan()) == 4000


def test_a_killed_writer_and_its_successor(tmp_path: Path) -> None:
    run = Demo(str(tmp_path), 600)
    killed = run_writer(run, kill_at=300)
    assert os.path.exists(tmp_path / "store" / "abort")
    last = run_writer(run, kill_at=None)
    assert 300 <= killed.acknowledged <= last.first_row < 600 == last.acknowledged
    assert "no clean exit" in last.recovery
    with ReadOnlyStore(tmp_path / "store") as store:
        rows = [int(message.properties["row"]) for message in messages_of(store)]
    assert rows == list(range(600))
    again = run_writer(run, kill_at=None)
    assert (again.first_row, again.acknowledged) == (600, 600)


def messages_of(store: ReadOnlyStore) -> list[Any]:
    return [
        store.look_message_by_offset(int(o)) for chunk in store.scan() for o in chunk.scan.physical_offset
    ]


def test_a_writer_that_fails(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a directory")
    with pytest.raises(StoreError, match="ended with 1 instead of 0"):
        run_writer(Demo(str(tmp_path), 10), kill_at=None)


def test_exit_status_1_and_what_disagrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(run: Demo, *_: object) -> Result:
        run.check("minutes of delay", {("UA", 1): 5, ("UA", 2): 7}, {("UA", 1): 5, ("UA", 2): 8})
        return Result(StoresReport(), {}, {(code, 1): (1, 1) for code in count_truth(200).by_airline}, [])

    monkeypatch.setattr(module, "read_with_spark", fake)
    monkeypatch.setattr(module, "ask_lake", lambda *_: None)
    result = CliRunner().invoke(demo, [str(tmp_path / "demo"), "--rows", "200"])
    assert result.exit_code == 1
    assert "DISAGREES  minutes of delay: ('UA', 2): 7 expected, 8 found" in result.output
    as_json = CliRunner().invoke(demo, [str(tmp_path / "demo"), "--rows", "200", "--keep", "--json"])
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert [check["name"] for check in report["checks"] if not check["ok"]] == ["minutes of delay"]
    assert [writer["killed"] for writer in report["writers"]] == [False]


def test_the_next_steps_can_be_typed_where_the_demo_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # after `make demo` there is no mqlake on the PATH, so a bare name would be "command not found"
    ours = tmp_path / ".venv-demo" / "bin" / "mqlake"
    ours.parent.mkdir(parents=True)
    ours.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv-demo/bin/mqlake", "demo"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = Result(StoresReport(), {}, {}, [Lookup("flights-9E", "N170PQ", [1], [1], 0.1, 0.1)])
    search, query = next_steps(Demo(str(tmp_path / "mqlake-demo"), 1), found).splitlines()
    assert search == ".venv-demo/bin/mqlake store search mqlake-demo/store --topic flights-9E --key N170PQ"
    assert query.strip().startswith(".venv-demo/bin/mqlake lake query '") and query.endswith(
        "' mqlake-demo/store"
    )
    monkeypatch.setenv("PATH", str(ours.parent))
    assert program() == "mqlake"


def test_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(cli, ["demo", str(tmp_path / "demo")])
    assert result.exit_code == 3
    assert (
        "Java 17 or newer is missing (no java on the PATH); install it with: apt-get install" in result.output
    )
    assert not (tmp_path / "demo").exists()


def test_other_peoples_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ConfigError, match="not empty"):
        prepare_directory(str(tmp_path), fresh=True)
    assert (tmp_path / "store").is_dir()


def test_a_table_and_the_log_after_it(tmp_path: Path) -> None:
    run = Demo(str(tmp_path), 3000)
    run_writer(run, kill_at=None)
    module.ask_lake(run, count_truth(3000))
    assert [check.ok for check in run.checks] == [True, True], run.checks
    assert run.checks[0].expected and (tmp_path / "lake" / "lake.toml").exists()


@pytest.mark.parametrize("fresh", [True, False])
def test_what_a_demo_made_is_replaced(tmp_path: Path, fresh: bool) -> None:
    directory = tmp_path / "demo"
    prepare_directory(str(directory), fresh=fresh)
    (directory / "store").mkdir()
    (directory / "flights.png").touch()
    (directory / "mine").touch()
    prepare_directory(str(directory), fresh=fresh)
    left = {path.name for path in directory.iterdir()}
    assert left == {".mqlake-demo", "mine"} | (set() if fresh else {"store"})


def test_keys_to_ask() -> None:
    truth = count_truth(3000)
    keys = keys_to_ask(truth)
    assert len(keys) == 3
    assert truth.by_key[keys[0]] == max(
        n for (topic, key), n in truth.by_key.items() if not key.startswith(topic.removeprefix("flights-"))
    )


def test_differences_in_words() -> None:
    assert difference(Check("n", 3, 4)) == "3 expected, 4 found"
    many = Check("m", dict.fromkeys(range(9), 1), {})
    assert difference(many).endswith("2: 1 expected, None found and 6 more")
