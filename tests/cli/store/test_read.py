"""info, dump, search: what they print for good and for bad input."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.cli.options import Whole, time_ms
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.message import create_message_id
from mqlake.message.rendering import body_text
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from tests.cli.every_command import leaves
from tests.cli.test_main import MQLAKE, run
from tests.golden import CASES, unpack
from tests.store.small_store import COUNT, SETTINGS, contents, fill, flip, message, record_at

FIELDS = [name for name in COLUMNS if name not in ("brokerName", "path")]
"""What a dump shows of a record is what the log's rows have of it."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only by these tests."""
    return fill(tmp_path_factory.mktemp("read") / "store")


def mqlake(*args: object) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, args)])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def numbers(result: Result) -> list[int]:
    """Which messages (of small_store) came out."""
    return [int(base64.b64decode(line["body"]).split()[1]) for line in lines(result)]


# ---------------------------------------------------------------------- info


def test_info(store: Path) -> None:
    result = mqlake("info", store)
    assert result.exit_code == 0
    for text in ("closed cleanly", "200 in 4 queues of 2 topics", "physicMsgTimestamp", "Orders", "index"):
        assert text in result.stdout


def test_info_as_json(store: Path) -> None:
    found = json.loads(mqlake("info", store, "--json").stdout)
    assert (found["cleanExit"], found["writer"], found["messages"], found["topics"]) == (True, None, COUNT, 2)
    assert found["maxOffset"] == verify_store(store).end_offset
    assert [
        (q["topic"], q["queueId"], q["minOffset"], q["maxOffset"], q["count"]) for q in found["queues"]
    ] == [(topic, queue, 0, 50, 50) for topic in ("Orders", "Payments") for queue in (0, 1)]
    assert found["checkpoint"]["physicMsgTimestamp"] > 0
    assert sum(file["entries"] for file in found["indexFiles"]) == 3 * COUNT


def test_info_beside_a_writer(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", count=5)
    with open_store(root, SETTINGS):
        result = run("store", "info", str(root), "--json")
        found = json.loads(result.stdout)
        assert found["writer"] == os.getpid() and not found["cleanExit"]
        assert f"written by process {os.getpid()}" in run("store", "info", str(root)).stdout


def test_info_of_an_empty_store(tmp_path: Path) -> None:
    result = mqlake("info", fill(tmp_path / "store", count=0))
    assert result.exit_code == 0 and "0 in 0 queues" in result.stdout


# ---------------------------------------------------------------------- dump


def test_dump_as_json(store: Path) -> None:
    found = lines(mqlake("dump", store, "--json"))
    assert len(found) == COUNT and all(list(line) == FIELDS for line in found)
    line, expected = found[7], message(7)
    assert line["topic"] == expected.topic and base64.b64decode(line["body"]) == expected.body
    assert (line["tags"], line["keys"], line["uniqKey"]) == ("Tag1", "key-7 group-7", f"{7:032X}")
    assert line["properties"] == expected.properties
    assert line["bornHost"] == "127.0.0.1:50000"
    assert line["msgId"] == create_message_id(("127.0.0.1", 10911), line["physicalOffset"])
    assert [line["physicalOffset"] for line in found] == sorted(line["physicalOffset"] for line in found)


@pytest.mark.parametrize("case", CASES)
def test_dump_of_javas_stores(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    settings = [f"--set={key}={value}" for key, value in golden.config.items() if not isinstance(value, bool)]
    found = lines(mqlake("dump", golden.root, "--json", *settings))
    assert [(line["physicalOffset"], line["body"]) for line in found] == [
        (record["physicalOffset"], record["body"]) for record in golden.expected["records"]
    ]


def test_dump_as_text(store: Path) -> None:
    result = mqlake("dump", store, "--max", 3)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3
    assert "Orders/0@0" in result.stdout and "message 0 ..." in result.stdout


def test_dump_raw_is_the_log(store: Path) -> None:
    raw = subprocess.run(
        [MQLAKE, "store", "dump", store, "--raw", "--max", "2"], capture_output=True, check=True
    )
    assert contents(store / "commitlog")[f"{0:020}"].startswith(raw.stdout) and len(raw.stdout) > 200


def test_dump_from_an_offset(store: Path) -> None:
    _, position, _ = record_at(store, 30)
    assert numbers(mqlake("dump", store, "--json", "--offset", position)) == list(range(30, COUNT))
    end = verify_store(store).end_offset
    assert numbers(mqlake("dump", store, "--json", "--offset", end)) == []
    result = mqlake("dump", store, "--offset", position + 1)
    assert result.exit_code == 1 and "no record begins there" in result.stderr
    assert mqlake("dump", store, "--offset", 10**15).exit_code == 1


def test_dump_of_a_queue(store: Path) -> None:
    args = ("dump", store, "--json", "--topic", "Orders", "--queue", 1)
    queue = [number for number in range(COUNT) if number % 4 == 2]
    assert numbers(mqlake(*args)) == queue
    assert numbers(mqlake(*args, "--from-offset", 48)) == queue[48:]
    assert numbers(mqlake(*args, "--from-offset", 10, "--max", 3)) == queue[10:13]
    assert numbers(mqlake("dump", store, "--json", "--topic", "Payments", "--max", 3)) == [1, 3, 5]


def test_dump_from_a_time(store: Path) -> None:
    stamps = [line["storeTimestamp"] for line in lines(mqlake("dump", store, "--json"))]
    middle = stamps[100]
    found = [line["storeTimestamp"] for line in lines(mqlake("dump", store, "--json", "--time", middle))]
    assert found == [stamp for stamp in stamps if stamp >= middle]
    args = ("dump", store, "--json", "--topic", "Orders", "--queue", 0, "--time", middle)
    assert all(line["storeTimestamp"] >= middle for line in lines(mqlake(*args)))
    assert lines(mqlake("dump", store, "--json", "--time", "2999-01-01")) == []


def test_dump_of_what_is_not_there(store: Path) -> None:
    result = mqlake("dump", store, "--topic", "Nothing", "--queue", 0)
    assert result.exit_code == 1 and "Orders, Payments" in result.stderr
    assert "it has 0, 1" in mqlake("dump", store, "--topic", "Orders", "--queue", 9).stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--queue", "1"],
        ["--topic", "T", "--from-offset", "1"],
        ["--raw", "--json"],
        ["--offset", "0", "--time", "1"],
        ["--offset", "-1"],
        ["--offset", "0", "--topic", "T", "--queue", "1"],
        ["--time", "yesterday"],
        ["--max", "x"],
    ],
)
def test_dump_with_arguments_that_cannot_be(store: Path, args: list[str]) -> None:
    result = mqlake("dump", store, *args)
    assert result.exit_code == 2 and "Traceback" not in result.output


@pytest.mark.parametrize("args", [(), ("--queue", "0"), ("--time", "0")])
def test_a_topic_that_is_not_there(store: Path, args: tuple[str, ...]) -> None:
    """An empty answer would say that the topic has no messages."""
    result = mqlake("dump", store, "--topic", "Nobody", *args)
    assert result.exit_code == 1 and result.stdout == "" and "topic Nobody" in result.stderr


def test_dump_passes_over_damage_and_names_it(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    path, position, _ = record_at(root, 30)
    flip(path, position + 100)
    result = mqlake("dump", root, "--json")
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == COUNT - 1
    assert f"{path}: corrupt at byte {position}" in result.stderr


def test_what_is_behind_damage_is_there_though_the_clock_went_back(tmp_path: Path) -> None:
    """What consume queues point to is not left over from before."""
    root = fill(tmp_path / "store")
    path, position, _ = record_at(root, 29)
    with path.open("r+b") as file:
        file.seek(position + 56)
        stored = int.from_bytes(file.read(8), "big")
        file.seek(position + 56)
        file.write((stored + 3_600_000).to_bytes(8, "big"))
    path, position, _ = record_at(root, 30)
    flip(path, position)  # its size
    result = mqlake("dump", root, "--json")
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == COUNT - 1
    assert len(mqlake("search", root, "--json", "--scan", "--from", "0").stdout.splitlines()) == COUNT - 1


def test_dump_needs_no_derived_files(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", count=10)
    (root / "consumequeue/Orders/0/00000000000000000000").write_bytes(b"garbage")
    assert numbers(mqlake("dump", root, "--json")) == list(range(10))


def test_a_reader_that_has_enough(store: Path) -> None:
    command = f"{MQLAKE} store dump {store} --json | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    first, status = result.stdout.splitlines()
    assert json.loads(first)["physicalOffset"] == 0 and status in ("0", "141") and result.stderr == ""


# ---------------------------------------------------------------------- search


@pytest.mark.parametrize("scan", [(), ("--scan",)])
def test_search(store: Path, scan: tuple[str, ...]) -> None:
    def found(*args: object) -> list[int]:
        return sorted(numbers(mqlake("search", store, "--json", *args, *scan)))

    assert found("--key", "key-17") == [17]
    assert found("--key", "key-17", "--topic", "Payments") == [17]
    assert found("--key", f"{17:032X}") == [17]
    assert found("--key", "group-3") == list(range(3, COUNT, 10))
    assert found("--key", "group-3", "--tag", "Tag0") == [n for n in range(3, COUNT, 10) if n % 3 == 0]
    assert found("--tag", "Tag2") == list(range(2, COUNT, 3))
    assert found("--tag", "Tag2", "--topic", "Orders") == [n for n in range(2, COUNT, 3) if n % 2 == 0]
    assert found("--topic", "Payments") == list(range(1, COUNT, 2))
    for nothing in (("--key", "none"), ("--key", "key-17", "--topic", "Orders")):
        result = mqlake("search", store, "--json", *nothing, *scan)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "0 messages found\n")


def test_search_by_time(store: Path) -> None:
    stamps = {n: line["storeTimestamp"] for n, line in enumerate(lines(mqlake("dump", store, "--json")))}
    begin, end = stamps[50], stamps[120]
    expected = [n for n, stamp in stamps.items() if begin <= stamp <= end]
    assert numbers(mqlake("search", store, "--json", "--from", begin, "--to", end)) == expected
    orders = mqlake("search", store, "--json", "--from", begin, "--to", end, "--topic", "Orders")
    assert sorted(numbers(orders)) == [n for n in expected if n % 2 == 0]


def test_search_by_id(store: Path) -> None:
    line = lines(mqlake("dump", store, "--json", "--max", 20))[-1]
    assert numbers(mqlake("search", store, "--json", "--id", line["msgId"])) == [19]
    assert numbers(mqlake("search", store, "--json", "--id", line["uniqKey"])) == [19]
    assert numbers(mqlake("search", store, "--json", "--id", "0" * 31 + "F" * 1)) == [15]
    missing = mqlake("search", store, "--json", "--id", "F" * 32)
    assert (missing.exit_code, missing.stdout, missing.stderr) == (1, "", "0 messages found\n")
    result = mqlake("search", store, "--id", "nonsense")
    assert result.exit_code == 1 and "not a message id" in result.stderr


def test_search_says_how_many(store: Path) -> None:
    result = mqlake("search", store, "--key", "key-5")
    assert "1 message found" in result.stderr and "key-5" in result.stdout
    assert len(mqlake("search", store, "--tag", "Tag0", "--max", 4).stdout.splitlines()) == 4


def test_search_where_the_index_was_cleaned(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    sorted((root / "index").iterdir())[0].unlink()
    assert numbers(mqlake("search", root, "--json", "--key", "key-3")) == [3]
    assert numbers(mqlake("search", root, "--json", "--key", "key-150")) == [150]
    for path in (root / "index").iterdir():
        path.unlink()
    assert numbers(mqlake("search", root, "--json", "--key", "key-3", *_sizes())) == [3]


def _sizes() -> list[str]:
    return [f"--set={key}={value}" for key, value in SETTINGS.items()]


def test_search_for_nothing_in_particular(store: Path) -> None:
    assert mqlake("search", store).exit_code == 2
    assert mqlake("search", store, "--id", "A" * 32, "--key", "k").exit_code == 2


# ---------------------------------------------------------------------- bad input for all


@pytest.mark.parametrize(
    "command", ["info", "dump", "search --key k", "verify", "rebuild", "repair", "repair --dry-run"]
)
def test_what_is_no_store(tmp_path: Path, command: str) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    (tmp_path / "empty").mkdir()
    name, *more = command.split()
    for path in (tmp_path, tmp_path / "empty", tmp_path / "notes.txt", tmp_path / "missing"):
        before = contents(tmp_path)
        result = mqlake(name, path, *more)
        assert result.exit_code == 1 and result.stderr.startswith(f"Error: {path}"), result.output
        assert result.stderr.count("\n") == 1 and contents(tmp_path) == before


@pytest.mark.parametrize(
    "command", ["info", "dump", "search --key k", "verify", "append --topic T", "rebuild", "repair"]
)
def test_settings_that_cannot_be(store: Path, command: str) -> None:
    before = contents(store)
    name, *more = command.split()
    for setting, told in (
        ("mappedFileSizeComitLog=1m", "did you mean 'mappedFileSizeCommitLog'"),
        ("mappedFileSizeCommitLog=much", "a whole number is needed"),
        ("mappedFileSizeCommitLog", "key=value is needed"),
        ("storeType=defaultRocksDB", "RocksDB"),
    ):
        result = mqlake(name, store, *more, "--set", setting)
        assert result.exit_code == 2 and told in result.stderr, result.output
    assert contents(store) == before


@pytest.mark.parametrize(
    "command", ["info", "dump", "search --key k", "verify", "append --topic T", "rebuild"]
)
def test_files_of_another_size(store: Path, command: str) -> None:
    before = contents(store)
    name, *more = command.split()
    result = mqlake(name, store, *more, "--set", "mappedFileSizeCommitLog=32k")
    assert result.exit_code == 1 and "commitlog/00000000000000000000: 16384 bytes" in result.stderr
    assert {k: v for k, v in contents(store).items() if k != "lock"} == {
        k: v for k, v in before.items() if k != "lock"
    }


@pytest.mark.parametrize(
    "command", ["info", "dump", "search --key k", "verify", "append --topic T", "rebuild", "repair"]
)
def test_a_log_of_garbage(tmp_path: Path, command: str) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    path = root / "commitlog" / f"{0:020}"
    path.write_bytes(random.Random(5).randbytes(8192))
    before = path.read_bytes()
    name, *more = command.split()
    result = mqlake(name, root, *more)
    assert result.exit_code == 1 and result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert str(path) in result.output and path.read_bytes() == before


# ---------------------------------------------------------------------- small parts


def test_times() -> None:
    assert time_ms("1700000000000") == 1_700_000_000_000
    assert time_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert time_ms("2023-11-14T22:13:20.0001+00:00") == 1_700_000_000_001


def test_bodies_on_a_line() -> None:
    assert body_text(b"plain") == "plain"
    assert body_text("zwölf\n".encode()) == "zwölf·"
    assert body_text(b"\xff\x00") == "0xff00"
    assert body_text(b"x" * 1000) == "x" * 60 + "…"
    assert body_text("ü".encode() * 1000) == "ü" * 60 + "…"
    assert body_text(b"\x00" + "ü".encode() * 1000).endswith("…")


def test_every_number_of_every_command_has_a_largest_value() -> None:
    """Without one, numbers that no long holds end in a traceback somewhere below."""
    unbounded = [
        (" ".join(path), parameter.name)
        for path, command in leaves(cli).items()
        for parameter in command.params
        if isinstance(parameter.type, click.types.IntParamType)
        and not isinstance(parameter.type, Whole)
        and getattr(parameter.type, "max", None) is None
        and not getattr(parameter, "count", False)
    ]
    assert not unbounded


def test_a_number_that_no_long_holds(store: Path) -> None:
    result = mqlake("dump", store, "--max", 10**23)
    assert result.exit_code == 2 and "'--max': 1" + "0" * 23 + " is too large" in result.output
    assert len(lines(mqlake("dump", store, "--json", "--max", 2**63 - 1))) == COUNT


def test_a_topic_that_is_not_there_is_no_empty_answer(store: Path) -> None:
    """A misspelt topic looked like one without messages."""
    for command in (["dump"], ["search", "--key", "k"], ["search"]):
        result = mqlake(command[0], store, *command[1:], "--topic", "Order")
        assert result.exit_code == 1 and not result.stdout
        assert result.stderr.endswith("Error: no record of topic Order; did you mean 'Orders'?\n")
    there = mqlake("search", store, "--topic", "Orders", "--key", "nobody's")
    assert there.exit_code == 1 and "0 messages found" in there.stderr


def test_a_log_of_more_files_than_a_shell_allows(tmp_path: Path) -> None:
    """The limit that a shell sets is the soft one, which a command may raise."""
    (tmp_path / "commitlog").mkdir()
    for number in range(40):
        (tmp_path / "commitlog" / f"{number * 4096:020}").write_bytes(bytes(4096))
    command = ["prlimit", "--nofile=64:1024", MQLAKE, "store", "info", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
