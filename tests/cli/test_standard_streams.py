"""Every command with standard streams that are closed or cannot be written: an exit status and a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqlake.cli.main import cli
from tests.cli.every_command import leaves
from tests.cli.test_main import MQLAKE
from tests.waiting import PATIENCE_S

ONE = ["--server", "127.0.0.1:1"]
OPERATORS = ["--admin", "127.0.0.1:1"]
OTHER = ["--master", "nobody"]
"""What Spark is not started for."""
ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("serve",): ["--config", "none"],
    ("broker",): ["--config", "none"],
    ("namesrv",): ["--config", "none"],
    ("metaq", "serve"): ["--config", "none"],
    ("produce",): ["T", "-m", "x"],
    ("consume",): ["T"],
    ("demo",): ["full"],
    ("console",): ["--store", "none"],
    ("doctor",): ["--store", "none", "-n", "127.0.0.1:1"],
    ("completion",): ["bash"],
    ("store", "offload"): ["none", "out"],
    ("store", "archive", "info"): ["none"],
    ("store", "archive", "queues"): ["none", "none"],
    ("store", "archive", "verify"): ["none"],
    ("store", "archive", "repair"): ["none"],
    ("admin", "failover", "status"): ["-b", "b"],
    ("admin", "failover", "elect"): ["1", "-b", "b"],
    ("admin", "failover", "resign"): ["-b", "b"],
    ("admin", "failover", "exclude"): ["1", "-b", "b"],
    ("store", "append"): ["none/none", "--topic", "T"],
    ("store", "search"): ["none", "--key", "k"],
    ("store", "bench"): [".", "--set", "mappedFileSizeCommitLog=1"],
    ("spark", "verify"): ["none", *OTHER],
    ("spark", "rebuild"): ["none", *OTHER],
    ("spark", "diff"): ["none", "other", *OTHER],
    ("spark", "search"): ["none", "--key", "k", *OTHER],
    ("spark", "stats"): ["none", *OTHER],
    ("spark", "export"): ["none", "out", *OTHER],
    ("spark", "ingest"): ["none", "--to-store", "out", *OTHER],
    ("spark", "compact"): ["none", "out", *OTHER],
    ("spark", "migrate"): ["none", "out"],
    ("spark", "replay"): ["none", "--to-broker", "127.0.0.1:1", *OTHER],
    ("lake", "rewind"): ["none", "--to-version", "1"],
    ("metaq", "migrate"): ["none", "out"],
    ("metaq", "produce"): ["T", *ONE],
    ("metaq", "consume"): ["T", "--group", "G", "--wait", "nan"],
    ("metaq", "stats"): ONE,
    ("metaq", "store", "dump"): ["none", "T", "0"],
    ("metaq", "partitions", "close"): ["T", "0", "1", *OPERATORS],
    ("metaq", "partitions", "list"): OPERATORS,
    ("metaq", "partitions", "open"): ["T", *OPERATORS],
    ("metaq", "transactions", "end"): ["commit", "key", *OPERATORS, "--yes"],
    ("metaq", "transactions", "list"): OPERATORS,
    ("metaq", "reload"): OPERATORS,
    ("admin", "topic", "perm"): ["T", "-p", "rw"],
    ("admin", "topic", "remap"): ["T", "-b", "b"],
    ("admin", "topic", "static"): ["T", "--queues", "4", "-b", "b"],
    ("admin", "group", "reset-offset"): ["G", "-t", "T", "-s", "latest"],
    ("admin", "group", "skip"): ["G", "-t", "T"],
    ("admin", "group", "polling"): ["G", "-t", "T"],
    ("admin", "group", "set-mode"): ["G", "-t", "T", "-m", "POP"],
    ("admin", "group", "clone-offset"): ["-s", "A", "-d", "B", "-t", "T"],
    ("admin", "message", "by-id"): ["-i", "7F00000100002A9F0000000000000000"],
    ("admin", "message", "view"): ["7F00000100002A9F0000000000000000"],
    ("admin", "message", "by-key"): ["T", "-k", "k"],
    ("admin", "message", "by-unique-key"): ["T", "-i", "i"],
    ("admin", "message", "by-offset"): ["T", "-b", "b", "-i", "0", "-o", "0"],
    ("admin", "message", "consume"): ["G", "-d", "c", "-t", "T", "-i", "7F00000100002A9F0000000000000000"],
    ("admin", "message", "send"): ["T"],
    ("admin", "producer", "connections"): ["G", "-t", "T"],
    ("admin", "broker", "set"): ["-b", "b", "-k", "k", "-v", "v"],
    ("admin", "broker", "consume-stats"): ["-b", "b"],
    ("admin", "broker", "wipe-write"): ["-b", "b"],
    ("admin", "broker", "add-write"): ["-b", "b"],
    ("admin", "namesrv", "set"): ["-k", "k", "-v", "v"],
    ("admin", "broker", "promote"): ["-b", "127.0.0.1:1", "--yes"],
    ("admin", "timer", "recall"): ["T", "handle"],
    ("admin", "user", "copy"): ["-f", "127.0.0.1:1", "-t", "127.0.0.1:1"],
    ("admin", "user", "create"): ["-u", "u"],
    ("admin", "user", "delete"): ["-u", "u", "--yes"],
    ("admin", "user", "export"): ["none/none"],
    ("admin", "user", "get"): ["-u", "u"],
    ("admin", "user", "import"): ["full/file"],
    ("admin", "user", "update"): ["-u", "u", "-p", "p"],
    ("admin", "acl", "copy"): ["-f", "127.0.0.1:1", "-t", "127.0.0.1:1"],
    ("admin", "acl", "create"): ["-s", "u", "-a", "Pub", "-r", "Topic:T"],
    ("admin", "acl", "delete"): ["-s", "u", "--yes"],
    ("admin", "acl", "get"): ["-s", "u"],
    ("admin", "acl", "test"): ["--as", "u", "--topic", "T", "--action", "PUB"],
    ("admin", "acl", "update"): ["-s", "u", "-a", "Pub", "-r", "Topic:T"],
    ("replica",): ["--of", "127.0.0.1:1", "--store", "none", "--once"],
    ("replica", "status"): ["--store", "none"],
    ("proxy",): ["-n", "127.0.0.1:1", "--server-cert", "none", "--server-key", "none"],
    ("store", "diff"): ["none", "none"],
    ("store", "truncate"): ["none", "--to", "0", "--yes"],
    ("store", "backup"): ["none", "--to", "out"],
    ("store", "restore"): ["none", "--to", "out"],
    ("context", "list"): ["--json"],
    ("context", "delete"): ["none", "--yes"],
    ("admin", "kv", "list"): ["-s", "n"],
    ("admin", "kv", "get"): ["-s", "n", "-k", "k"],
    ("admin", "kv", "delete"): ["-s", "n", "-k", "k"],
    ("admin", "kv", "put"): ["-s", "n", "-k", "k", "-v", "v"],
}
"""What makes a command do something where nothing is there."""


def arguments(path: tuple[str, ...]) -> list[str]:
    if path in ARGUMENTS:
        return [*path, *ARGUMENTS[path]]
    if path[0] == "admin":
        named = {"topic": ["T"], "group": ["G"]}.get(path[1], [])
        return [*path, *([] if path[2:] == ("list",) else named)]
    return [*path, "none"]  # a directory


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """(command, streams) → what came of it."""
    place = tmp_path_factory.mktemp("streams")
    (place / "full").mkdir()
    (place / "full" / "file").touch()
    kinds: dict[str, tuple[bool, dict[int, str]]] = {
        "closed": (False, {0: "closed", 1: "closed"}),
        "full": (True, {1: "full"}),
    }
    names = [(" ".join(path), kind) for path in leaves(cli) for kind in kinds]
    cases = [
        {"args": [*path, "--help"] if kinds[kind][0] else arguments(path), "streams": kinds[kind][1]}
        for path in leaves(cli)
        for kind in kinds
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.every_command"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        cwd=place,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
            "HOME": str(place),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, json.loads(done.stdout), strict=True))


def test_closed_streams(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (name, kind), result in results.items():
        if kind == "closed":
            assert "Usage:" not in result["err"], (name, result)  # the command did something
            assert result["status"] in (1, 2), (name, result)
            for word in ("Traceback", "Assertion", "Exception ignored", "Aborted"):
                assert word not in result["err"], (name, result)


def test_a_full_disk(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    said = "Error: standard output: No space left on device\n"
    for (name, kind), result in results.items():
        if kind == "full":
            assert result == {"status": 1, "out": "", "err": said}, name


# --- the same with processes of their own


def shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("mqlake ", f"{MQLAKE} ")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=place,
        check=False,
    )


def test_results_on_a_full_disk(tmp_path: Path) -> None:
    made = shell("seq 100 | mqlake store append s --topic T --set mappedFileSizeCommitLog=1m", tmp_path)
    assert made.returncode == 0, made.stderr
    for command in ("store dump s", "store dump s --json", "store info s", "store verify s --json"):
        done = shell(f"mqlake {command} > /dev/full", tmp_path)
        assert done.returncode == 1
        assert done.stderr == "Error: standard output: No space left on device\n"


def test_what_is_closed_is_no_place_for_sockets(tmp_path: Path) -> None:
    produce = "mqlake produce T -m x -n 127.0.0.1:1"
    done = shell(f"{produce} <&- >&-", tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("Error: no name server answers")
    done = shell(f"{produce} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 1
    done = shell("mqlake --version <&- 2>&-", tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("mqlake ")
    done = shell("mqlake --version >&-", tmp_path)
    assert (done.returncode, done.stderr) == (1, "Error: standard output: Bad file descriptor\n")


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    made = shell("seq 9999 | mqlake store append s --topic T --set mappedFileSizeCommitLog=4m", tmp_path)
    assert made.returncode == 0, made.stderr
    done = shell("set -o pipefail; mqlake store dump s | head -1 >/dev/null", tmp_path)
    assert (done.returncode, done.stderr) == (141, "")
