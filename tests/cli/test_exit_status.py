"""What is not there is exit status 1 everywhere, a wrong command line 2: each command, asked for what is missing."""

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
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

ID = "7F000001000000010000000000000000"
"""Of a message of a broker at 127.0.0.1:1."""
NO = "Missing"
BROKER = ["-b", NO]
ALONE = ["--master", "local[1]"]
MISSING: dict[str, list[list[str]]] = {
    "serve": [["-c", "none"]],
    "broker": [["-c", "none"]],
    "namesrv": [["-c", "none"]],
    "replica status": [["--store", "none"], ["--store", "store"]],
    "proxy": [["--server-cert", "none", "--server-key", "none"]],
    "console": [["--store", "none"]],
    "produce": [[NO, "none"], [NO, "-m", "x", "--credentials", "none"], [NO, "-m", "x", "--context", NO]],
    "consume": [[NO, "-e"]],
    "context delete": [[NO, "--yes"]],
    "context show": [[NO], []],
    "context use": [[NO]],
    "admin topic clusters": [[NO]],
    "admin topic create": [["New", "-b", NO], ["New", "-c", NO]],
    "admin topic delete": [[NO, "--yes"]],
    "admin topic list": [["-c", NO]],
    "admin topic perm": [[NO, "-p", "r"]],
    "admin topic remap": [[NO, "-b", "broker-a"], ["-f", "none", NO]],
    "admin topic route": [[NO]],
    "admin topic static": [["New", "-q", "1", "-b", NO], ["-f", "none", NO]],
    "admin topic status": [[NO]],
    "admin group clone-offset": [["-s", NO, "-d", "G", "-t", "There", "--yes"]],
    "admin group config": [[NO]],
    "admin group connections": [[NO]],
    "admin group create": [["New", "-b", NO]],
    "admin group delete": [[NO, "--yes"]],
    "admin group list": [["-c", NO]],
    "admin group polling": [["G", "-t", NO]],
    "admin group progress": [[NO]],
    "admin group reset-offset": [["G", "-t", NO, "-s", "latest", "--yes"]],
    "admin group set-mode": [["G", "-t", NO, "-m", "POP"]],
    "admin group skip": [["G", "-t", NO, "--yes"]],
    "admin group status": [[NO]],
    "admin message by-id": [["-i", ID, "-t", "There"]],
    "admin message view": [[ID, "-t", "There"]],
    "admin message by-key": [["There", "-k", NO], [NO, "-k", NO]],
    "admin message by-offset": [
        ["There", "-b", "broker-a", "-i", "0", "-o", "99"],
        ["There", *BROKER, "-i", "0", "-o", "0"],
        [NO, "-b", "broker-a", "-i", "0", "-o", "0"],
    ],
    "admin message by-unique-key": [["There", "-i", NO]],
    "admin message consume": [["G", "-d", NO, "-t", "There", "-i", ID]],
    "admin message send": [["There", "-p", "x", *BROKER]],
    "admin timer list": [BROKER, ["-t", NO]],
    "admin timer recall": [[NO, "v1"]],
    "admin timer status": [BROKER],
    "admin producer connections": [[NO, "-t", "There"]],
    "admin producer list": [BROKER],
    "admin broker add-write": [BROKER],
    "admin broker clean-queues": [[*BROKER, "--yes"], ["-c", NO, "--yes"]],
    "admin broker clean-topics": [[*BROKER, "--yes"]],
    "admin broker config": [BROKER, ["-b", "broker-a", "-k", NO]],
    "admin broker consume-stats": [BROKER],
    "admin broker delete-expired-log": [[*BROKER, "--yes"]],
    "admin broker ha": [BROKER, ["-c", NO]],
    "admin broker promote": [["-b", "127.0.0.1:1", "--yes"]],
    "admin broker set": [[*BROKER, "-k", "k", "-v", "v"]],
    "admin broker status": [BROKER, ["-c", NO]],
    "admin broker wipe-write": [BROKER],
    "admin namesrv config": [["-n", "127.0.0.1:1"]],
    "admin namesrv set": [["-n", "127.0.0.1:1", "-k", "k", "-v", "v"]],
    "admin failover status": [BROKER],
    "admin failover elect": [["1", *BROKER]],
    "admin failover resign": [BROKER],
    "admin failover exclude": [["1", *BROKER]],
    "admin kv delete": [["-s", NO, "-k", NO, "--yes"]],
    "admin kv get": [["-s", NO, "-k", NO]],
    "admin kv list": [["-s", NO]],
    "admin kv put": [["-n", "127.0.0.1:1", "-s", "s", "-k", "k", "-v", "v"]],
    "admin user check": [["-c", NO]],
    "admin user copy": [["-f", "127.0.0.1:1", "-t", "127.0.0.1:1"]],
    "admin user create": [["-u", "u", "-p", "p", *BROKER]],
    "admin user delete": [["-u", NO, "--yes"]],
    "admin user export": [["none/users"], ["users", *BROKER]],
    "admin user get": [["-u", NO]],
    "admin user import": [["none"]],
    "admin user list": [BROKER],
    "admin user update": [["-u", NO, "-p", "p"]],
    "admin acl copy": [["-f", "127.0.0.1:1", "-t", "127.0.0.1:1"]],
    "admin acl create": [["-s", "User:" + NO, "-a", "Pub", "-r", "Topic:T"]],
    "admin acl delete": [["-s", "User:" + NO, "--yes"]],
    "admin acl get": [["-s", "User:" + NO]],
    "admin acl list": [BROKER],
    "admin acl test": [["--as", NO, "--topic", "T", "--action", "PUB"]],
    "admin acl update": [["-s", "User:" + NO, "-a", "Pub", "-r", "Topic:T"]],
    "admin stats": [["-t", NO]],
    "store info": [["none"], ["empty"]],
    "store dump": [
        ["none"],
        ["store", "--topic", NO],
        ["store", "--topic", "There", "--queue", "7"],
        ["store", "--offset", "999999999"],
    ],
    "store search": [
        ["none", "--key", "k"],
        ["store", "--key", NO],
        ["store", "--id", "7F000001000000010000000000FFFFFF"],
        ["store", "--id", "A" * 32],
        ["store", "--topic", NO],
        ["store", "--topic", "There", "--tag", NO],
        ["store", "--from", "2099-01-01T00:00:00Z"],
    ],
    "store verify": [["none"]],
    "store timers": [["none"]],
    "store append": [["new", "--topic", "T", "--file", "none"]],
    "store heads": [["none"]],
    "store rebuild": [["none"]],
    "store repair": [["none"]],
    "store dropped": [["none"], ["store", NO]],
    "store diff": [["store", "none"], ["none", "store"]],
    "store truncate": [["none", "--to", "0", "--yes"]],
    "store backup": [["none", "--to", "out"]],
    "store archive info": [["file:///none/none"]],
    "store archive queues": [["file:///none/none", "store"], ["file:///none/none", "none"]],
    "store archive verify": [["file:///none/none"]],
    "store archive repair": [["file:///none/none"]],
    "store restore": [["none", "--to", "out"], ["empty", "--to", "out"]],
    "store offload": [["none", "file:///tmp"]],
    "store bench": [["none"]],
    "lake add": [["none", "--topic", "There", "--warehouse", "lake"]],
    "lake run": [
        ["none", "--topic", "There", "--warehouse", "lake"],
        ["none.toml"],
        ["store", "--topic", NO, "--warehouse", "lake"],
    ],
    "lake status": [["none.toml"], ["made", "--topic", NO]],
    "lake query": [["select 1", "none.toml"], ["select * from Missing", "made"]],
    "lake verify": [["none.toml"], ["made", "--topic", NO]],
    "lake rewind": [["none.toml", "--to-version", "1"], ["made", "--topic", NO, "--to-version", "1"]],
    "lake compact": [["none.toml"], ["made", "--topic", NO]],
    "lake expire": [["none.toml"], ["made", "--topic", NO]],
    "lake orphans": [["none.toml"], ["made", "--topic", NO]],
    "spark verify": [["none", *ALONE]],
    "spark rebuild": [["none", *ALONE]],
    "spark diff": [["store", "none", *ALONE]],
    "spark search": [["none", "--key", "k", *ALONE]],
    "spark stats": [["none", *ALONE]],
    "spark export": [["none", "out", *ALONE], ["store", "out", "--avro-schema", "none", *ALONE]],
    "spark compact": [["none", "out", *ALONE]],
    "spark migrate": [["none", "out"]],
    "spark replay": [["none", "--to-broker", "127.0.0.1:1", *ALONE]],
    "metaq serve": [["-c", "none"]],
    "metaq produce": [["T", "none", "--server", "127.0.0.1:1"]],
    "metaq stats": [["--server", "127.0.0.1:1"]],
    "metaq store dump": [["none", "T", "0"], ["store", "T", "0"]],
    "metaq store info": [["none"]],
    "metaq store repair": [["none"]],
    "metaq store verify": [["none"]],
    "metaq migrate": [["none", "out"]],
    "metaq partitions close": [["T", "0", "1", "--admin", "127.0.0.1:1"]],
    "metaq partitions list": [["--admin", "127.0.0.1:1"]],
    "metaq partitions open": [["T", "--admin", "127.0.0.1:1"]],
    "metaq transactions end": [["commit", "k", "--admin", "127.0.0.1:1", "--yes"]],
    "metaq transactions list": [["--admin", "127.0.0.1:1"]],
    "metaq reload": [["--admin", "127.0.0.1:1"]],
}
"""Command → what it is asked for and does not find."""
NOTHING = {
    "completion": "a wrong shell is a wrong command line",
    "context list": "a list may be empty",
    "context set": "makes one",
    "admin cluster list": "a list may be empty",
    "doctor": "of a directory that is not there it says what a new store would need",
    "demo": "makes its directory",
    "spark ingest": "Spark reads the files, in a session of its own",
    "metaq consume": "asks a ZooKeeper, which takes its time to be away",
}
"""Commands that are not in MISSING, and why."""
WRONG = [
    ["store", "search", "store"],
    ["store", "dump", "store", "--time", "yesterday"],
    ["store", "info", "store", "--set", "mappedFileSizeCommitLog=1"],
    ["lake", "status", "store"],
    ["lake", "query", "select", "made"],
    ["admin", "group", "reset-offset", "G", "-t", "There", "-s", "sometime", "--yes"],
    ["admin", "topic", "perm", "There", "-p", "everything"],
    ["produce"],
    ["spark", "verify", "store", "--master", "nobody"],
]
"""What cannot be asked for at all: 2."""
EMPTY = [
    ["store", "dump", "store", "--max", "0"],
    ["store", "timers", "store"],
    ["store", "dropped", "store"],
    ["admin", "timer", "list"],
    ["admin", "producer", "list"],
    ["consume", "Empty", "-e"],
    ["context", "list"],
]
"""Lists of all that there is, which is nothing: 0."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`store` with two messages, `made`, the lake of its topic, and an empty directory."""
    directory = tmp_path_factory.mktemp("exits")
    for name in ("empty", "made"):
        (directory / name).mkdir()
    for number, args in enumerate(
        (
            ["store", "append", "store", "--topic", "There", "--set", "mappedFileSizeCommitLog=1m"],
            ["lake", "add", "store", "--topic", "There", "--warehouse", "made"],
        )
    ):
        made = subprocess.run(
            [MQLAKE, *args],
            input="one\ntwo\n" if not number else "",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=directory,
            check=False,
        )
        assert made.returncode == 0, made.stderr
    return directory


def run(place: Path, cases: list[list[str]], namesrv: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.every_command"],
        input=json.dumps([{"args": args, "streams": {}} for args in cases]),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        cwd=place,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
            "HOME": str(place),
            "NAMESRV_ADDR": namesrv,
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_command_is_asked() -> None:
    names = {" ".join(path) for path in leaves(cli)} | {"replica"}  # which is a group, too
    assert MISSING.keys() | NOTHING.keys() | {"replica"} == names and not MISSING.keys() & NOTHING.keys()
    assert all(MISSING.values())


def test_exit_status(place: Path, tmp_path: Path) -> None:
    missing = [[*name.split(), *args] for name, cases in MISSING.items() for args in cases]
    cases = [*((each, 1) for each in missing), *((each, 2) for each in WRONG), *((each, 0) for each in EMPTY)]
    with MqlakeBroker(tmp_path, {"brokerName": "broker-a"}) as broker:
        before = [
            ["produce", "There", "-m", "x"],
            ["admin", "group", "create", "G"],
            ["admin", "topic", "create", "Empty"],
        ]
        done = run(place, [*before, *(args for args, _ in cases)], broker.namesrv)
    assert [each["status"] for each in done[: len(before)]] == [0] * len(before), done[: len(before)]
    for (args, expected), result in zip(cases, done[len(before) :], strict=True):
        assert result["status"] == expected, (args, expected, result)
        assert "Traceback" not in result["err"], (args, result)
        if expected or (args in EMPTY and "--max" not in args):
            assert result["err"].strip() or result["out"].strip(), args  # it says what
