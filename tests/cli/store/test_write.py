"""append and bench."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.store.check.verify import verify_store
from tests.cli.store.test_read import lines, mqlake
from tests.cli.test_main import MQLAKE, run
from tests.golden import unpack
from tests.store.small_store import SETTINGS, contents
from tests.waiting import until

SIZES = [f"--set={key}={value}" for key, value in SETTINGS.items()]


def append(root: Path, text: str | bytes, *args: object) -> Result:
    return CliRunner().invoke(
        cli, ["store", "append", str(root), "--topic", "T", *SIZES, *map(str, args)], text
    )


def dumped(root: Path) -> list[dict[str, object]]:
    return lines(mqlake("dump", root, "--json"))


def bodies(root: Path) -> list[bytes]:
    return [base64.b64decode(str(line["body"])) for line in dumped(root)]


def test_lines(tmp_path: Path) -> None:
    root = tmp_path / "store"
    result = append(root, "one\ntwo\n\nfour")
    assert result.exit_code == 0 and "stored 4 messages" in result.stdout
    assert "queue 0: queue offset 0 to 0" in result.stdout and "physical offset 0 to " in result.stdout
    found = dumped(root)
    assert bodies(root) == [b"one", b"two", b"", b"four"]
    assert [line["queueId"] for line in found] == [0, 1, 2, 3]
    assert len({line["uniqKey"] for line in found}) == 4
    assert verify_store(root).ok


def test_into_an_existing_store(tmp_path: Path) -> None:
    """Its sizes are read from its files: no --set is needed."""
    root = tmp_path / "store"
    append(root, "one\n", "--queue", 2)
    result = CliRunner().invoke(cli, ["store", "append", str(root), "--topic", "T", "--queue", "2"], "two\n")
    assert result.exit_code == 0 and "queue 2: queue offset 1 to 1" in result.stdout
    assert bodies(root) == [b"one", b"two"] and verify_store(root).ok


def test_a_file_and_everything_a_message_can_have(tmp_path: Path) -> None:
    root, source = tmp_path / "store", tmp_path / "lines"
    source.write_text("a\nb\n")
    args = ("--tag", "TagA", "--key", "k1", "--key", "k2", "--property", "color=blue", "--queues", 1)
    assert append(root, "", "--file", source, *args).exit_code == 0
    line = dumped(root)[1]
    assert (line["tags"], line["keys"], line["queueId"]) == ("TagA", "k1 k2", 0)
    assert line["properties"]["color"] == "blue"  # type: ignore[index]
    assert [found["physicalOffset"] for found in lines(mqlake("search", root, "--json", "--key", "k2"))]


def test_json_lines(tmp_path: Path) -> None:
    root = tmp_path / "store"
    objects = [
        {
            "text": "zwölf",
            "tags": "T1",
            "keys": ["a", "b"],
            "queueId": 3,
            "flag": 7,
            "properties": {"x": "1"},
        },
        {"body": base64.b64encode(b"\x00\xff").decode(), "keys": "c d", "bornTimestamp": 1_600_000_000_000},
    ]
    result = append(root, "\n".join(map(json.dumps, objects)) + "\n\n", "--format", "json", "--tag", "T2")
    assert result.exit_code == 0, result.output
    first, second = dumped(root)
    assert bodies(root) == ["zwölf".encode(), b"\x00\xff"]
    assert (first["tags"], first["keys"], first["queueId"], first["flag"]) == ("T1", "a b", 3, 7)
    assert (second["tags"], second["keys"], second["bornTimestamp"]) == ("T2", "c d", 1_600_000_000_000)


def test_a_dump_can_be_appended(tmp_path: Path) -> None:
    golden = unpack("clean", tmp_path)
    dump = mqlake("dump", golden.root, "--json", "--topic", "Orders").stdout
    root = tmp_path / "copy"
    assert append(root, dump, "--format", "json").exit_code == 0
    for old, new in zip((json.loads(line) for line in dump.splitlines()), dumped(root), strict=True):
        for name in ("body", "properties", "queueId", "flag", "bornTimestamp", "uniqKey", "bodyCrc"):
            assert old[name] == new[name]


@pytest.mark.parametrize(
    "args", [("--batch", 10), ("--batch", 7, "--sync"), ("--sync",), ("--delay-level", 3)]
)
def test_batches_sync_and_delay(tmp_path: Path, args: tuple[object, ...]) -> None:
    root = tmp_path / "store"
    result = append(root, "".join(f"line {n}\n" for n in range(100)), *args, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["messages"] == 100
    assert sum(queue["count"] for queue in found["queues"].values()) == 100
    assert sorted(bodies(root)) == sorted(b"line %d" % n for n in range(100))
    topics = {line["topic"] for line in dumped(root)}
    assert topics == ({"SCHEDULE_TOPIC_XXXX"} if "--delay-level" in args else {"T"})
    assert verify_store(root).ok


def test_nothing_to_append(tmp_path: Path) -> None:
    result = append(tmp_path / "store", "")
    assert result.exit_code == 0 and "stored 0 messages" in result.stdout


# ---------------------------------------------------------------------- refused, and nothing is made


@pytest.mark.parametrize(
    ("text", "args", "status", "told"),
    [
        ("x\n", ("--topic", "bad topic"), 1, "contains ' '"),
        ("x\n", ("--topic", "t" * 128), 1, "127 are allowed"),
        ("x\n", ("--topic", ""), 1, "blank"),
        ("x\n", ("--batch", 2, "--delay-level", 1), 2, "exclude each other"),
        ("x\n", ("--property", "novalue"), 2, "key=value"),
        ("x\n", ("--queue", -1), 2, "-1"),
        ("x\n", ("--file", "/nothing/there"), 1, "no such file"),
        ("x" * 300 + "\n", ("--set", "maxMessageSize=200"), 1, "line 1: the body has 300 bytes"),
        ("{\n", ("--format", "json"), 1, "line 1: not JSON"),
        ("[]\n", ("--format", "json"), 1, "line 1: not a JSON object"),
        ('{"body": "%%%"}\n', ("--format", "json"), 1, "base64"),
        ('{"tags": 5}\n', ("--format", "json"), 1, "`tags` must be a string"),
        ('{"keys": [5]}\n', ("--format", "json"), 1, "`keys` must be"),
        ('{"queueId": -5}\n', ("--format", "json"), 1, "`queueId` is -5"),
        ('{"properties": {"a": 1}}\n', ("--format", "json"), 1, "`properties` must be strings"),
    ],
)
def test_refused(tmp_path: Path, text: str, args: tuple[object, ...], status: int, told: str) -> None:
    root = tmp_path / "store"
    result = append(root, text, *args)
    assert result.exit_code == status and told in result.stderr, result.output
    assert "Traceback" not in result.output and not root.exists()


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = append(tmp_path, "x\n")
    assert result.exit_code == 1 and "not a RocketMQ store" in result.stderr
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_a_bad_line_later_on_keeps_what_came_before(tmp_path: Path) -> None:
    root = tmp_path / "store"
    result = append(root, '{"text": "a"}\n{"text": "b"}\n{\n', "--format", "json")
    assert result.exit_code == 1 and "line 3" in result.stderr
    assert bodies(root) == [b"a", b"b"] and verify_store(root).ok


def test_a_record_that_fits_no_file(tmp_path: Path) -> None:
    root = tmp_path / "store"
    result = append(root, "a\n" + "x" * 20000 + "\n")
    assert result.exit_code == 1 and "line 2" in result.stderr and "1 message stored before" in result.stderr
    assert bodies(root) == [b"a"] and verify_store(root).ok


def test_a_killed_append_is_recovered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    process = subprocess.Popen(
        [MQLAKE, "store", "append", str(root), "--topic", "T", "--sync", *SIZES],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write("".join(f"line {n}\n" for n in range(2000)))
        process.stdin.flush()
        until(lambda: process.poll() is not None or (root / "commitlog" / f"{16384:020}").exists())
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = run("store", "append", str(root), "--topic", "T", input="after\n")
    assert result.returncode == 0 and "no clean exit" in result.stderr
    found = bodies(root)
    assert found[-1] == b"after" and found[:-1] == [b"line %d" % n for n in range(len(found) - 1)]
    assert verify_store(root).ok


# ---------------------------------------------------------------------- bench


def test_bench(tmp_path: Path) -> None:
    args = ("--seconds", 0.05, "--size", 100, "--set", "mappedFileSizeCommitLog=4m")
    result = mqlake("bench", tmp_path, *args, "--json")
    assert result.exit_code == 0, result.output
    found = {line["name"]: line["messages"] for line in json.loads(result.stdout)}
    assert len(found) == 7 and all(found.values()) and found["scan"] == found["verify"]
    assert contents(tmp_path) == {}
    text = mqlake("bench", tmp_path, *args)
    assert "messages/s" in text.stdout and "CPU" in text.stdout


def test_bench_where_nothing_is(tmp_path: Path) -> None:
    assert mqlake("bench", tmp_path / "missing").exit_code == 1
