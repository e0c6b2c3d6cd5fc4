"""`mqlake metaq`: a broker with its own ZooKeeper, messages, operators, data directories; as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.metaq.formats.record import HEADER_SIZE
from mqlake.metaq.store.message_store import MessageStore
from tests.metaq.records import record
from tests.ports import free_port, listens_on_all
from tests.waiting import PATIENCE_S, trying

MQLAKE = [sys.executable, "-c", "from mqlake.cli.main import main; main()", "metaq"]


class Served:
    """A running `mqlake metaq serve`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*MQLAKE, "serve", "--port", "0", "--admin-port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "listens on" in line:
                break
        text = "".join(said)
        assert "listens on" in text, (text, self.process.stderr and self.process.stderr.read())
        self.zookeeper = (re.findall(r"ZooKeeper runs on (\S+);", text) or [""])[0]
        self.admin = re.findall(r"http://(\S+)", text)[0]
        self.address = re.findall(r"meta://(\S+)", text)[0]

    def stop(self) -> tuple[str, str]:
        self.process.send_signal(signal.SIGTERM)
        out, error = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, error
        return out, error


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    served = Served(*arguments)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


def mqlake(*arguments: str, text: str | None = None, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["metaq", *arguments], input=text)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_a_broker_from_nothing_and_everything_done_with_it(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving(
        "--store", data, "--topic", "t=2", "--topic", "u", "--zookeeper-port", str(free_port())
    ) as served:
        zk = ["--zookeeper", served.zookeeper]
        assert "3 messages sent to t" in mqlake("produce", "t", *zk, text="one\ntwo\nthree\n").output
        sent = mqlake(
            "produce", "u", *zk, "--attribute", "a", "--transaction", "--json", text="x\ny\n"
        ).stdout
        assert [json.loads(line)["offset"] for line in sent.splitlines()] == [-1, -1]
        assert sorted(mqlake("consume", "t", *zk).output.split()) == ["one", "three", "two"]
        shown = mqlake("consume", "u", *zk, "-g", "g", "-c", "1", "--json").output
        assert json.loads(shown)["attribute"] == "a"
        assert mqlake("consume", "u", *zk, "-g", "g", "-c", "1").output.split() == ["y"]
        assert mqlake("consume", "u", *zk, "-g", "g", "--wait", "0.3").output == ""
        direct = ["--server", served.address]
        assert "1 message sent" in mqlake("produce", "u", *direct, text="z\n").output
        assert not listens_on_all(int(served.address.rpartition(":")[2])), "it is for this machine"
        stats = json.loads(mqlake("stats", *zk, "--json").output)
        assert stats[f"meta://{served.address}"]["total_messages"] == "6"
        offsets = json.loads(mqlake("stats", "offsets", *direct, "--json").output)[f"meta://{served.address}"]
        assert sorted(offsets) == ["t part 0", "t part 1", "u part 0"]
        assert offsets["u part 0"].startswith("min_offset 0 max_offset ")
        assert "without a configuration file" in mqlake("stats", "config", *direct, status=1).output
        assert "no broker has" in mqlake("consume", "nosuch", *zk, status=1).output
        assert "has no broker below /other" in mqlake("stats", *zk, "--zk-root", "/other", status=1).output
        admin = ["--admin", served.admin]
        assert "all partitions are open" in mqlake("partitions", "list", *admin).output
        assert "closed: 0 1" in mqlake("partitions", "close", "t", "0", "1", *admin).output
        assert "partition 0-1 is closed (403)" in mqlake("consume", "t", *zk).output
        refused = mqlake("produce", "t", *zk, text="four\n", status=1).output
        assert re.search(r"partition 0-[01] is closed \(403\)", refused)
        mqlake("partitions", "open", "t", *admin)
        mqlake("partitions", "close", "t", "1", "1", *admin)
        half = mqlake("produce", "t", *zk, text="more\n" * 200, status=1).output
        said = (
            r"Error: t: line [12] is not stored: partition 0-1 is closed \(403\); 32 messages stored in t\n"
        )
        assert re.fullmatch(said, half)
        mqlake("partitions", "open", "t", *admin)
        assert mqlake("consume", "t", *zk).output.count("more") == 32
        assert "0 to 1" in mqlake("partitions", "close", "t", "0", "9", *admin, status=2).output
        assert json.loads(mqlake("partitions", "open", "t", *admin, "--json").output) == {}
        assert json.loads(mqlake("transactions", "list", *admin, "--json").output) == {
            "active": 0,
            "prepared": [],
        }
        assert (
            "no prepared"
            in mqlake("transactions", "end", "commit", "XID:1:aa:bb:q", *admin, "--yes", status=2).output
        )
        assert "not reloaded" in mqlake("reload", *admin).output
        info = json.loads(mqlake("store", "info", data, "--json").output)
        assert info["inUse"] and [p["topic"] for p in info["partitions"]] == ["t", "t", "u"]
        in_use = mqlake("store", "repair", data, "--dry-run")
        assert "nothing to repair" in in_use.output
        _, error = served.stop()
        assert error == ""
    with serving(
        "--store", data, "--topic", "t=2", "--zookeeper-port", str(free_port()), "-D", "meta.fast_boot=true"
    ) as served:
        found = mqlake("consume", "t", "--zookeeper", served.zookeeper).output.split()
        assert sorted(found) == [*["more"] * 32, "one", "three", "two"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("meta.fastboot=true", "unknown property 'meta.fastboot'; did you mean 'meta.fast_boot'?"),
        ("meta.fast_boot=yes", "meta.fast_boot=yes: it can be true or false"),
        ("meta.fast_boot", "key=value is needed"),
    ],
)
def test_a_property_that_the_original_does_not_have(tmp_path: Path, given: str, words: str) -> None:
    assert words in mqlake("serve", "--store", str(tmp_path), "-D", given, status=2).output


def test_a_broker_for_other_machines_says_so(tmp_path: Path) -> None:
    with serving(
        "--store", str(tmp_path), "--zookeeper-port", str(free_port()), "--host-name", "127.0.0.1"
    ) as served:
        assert listens_on_all(int(served.address.rpartition(":")[2]))
        assert "listening on every address of this machine" in served.stop()[1]


def test_the_child_goes_with_a_killed_broker(tmp_path: Path) -> None:
    with serving("--store", str(tmp_path), "--zookeeper-port", str(free_port())) as served:
        host, port = served.zookeeper.split(":")
        served.process.kill()
        served.process.communicate()
    for _ in trying("the child has gone"):
        try:
            socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
        except ConnectionRefusedError:
            return


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "missing.ini"], "missing.ini"),
        (["--zookeeper", "127.0.0.1:1", "--topic", "a=x"], "NAME=PARTITIONS"),
        (["--broker-id", "1024"], "1024 is not in the range"),
        (["--host-name", "a b"], "hostName is 'a b'"),
        (["--zookeeper", "host:port"], "host:port,... is needed"),
        (["-F", "samza=x"], "did you mean 'samsa'"),
    ],
)
def test_serve_says_what_is_wrong(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["metaq", "serve", "--store", str(tmp_path), *arguments])
    assert result.exit_code in (1, 2) and said in result.output


def test_nobody_there() -> None:
    assert "127.0.0.1:1" in mqlake("partitions", "list", "--admin", "127.0.0.1:1", status=1).output
    assert "127.0.0.1:1" in mqlake("produce", "t", "--server", "127.0.0.1:1", text="x\n", status=1).output
    assert "No such option" in mqlake("consume", "t", "--server", "127.0.0.1:1", status=2).output
    assert "number of seconds" in mqlake("consume", "t", "-g", "g", "--wait", "nan", status=2).output
    assert "is not a topic name" in mqlake("stats", "a b", "--server", "127.0.0.1:1", status=1).output


def filled(path: Path) -> Path:
    store = MessageStore(str(path), "t", 0, max_segment_size=150, unflush_threshold=0)
    for i in range(10):
        store.append(record(b"%030d" % i, i + 1))
    store.close()
    return path


def segment(path: Path, offset: int) -> Path:
    return path / "t-0" / f"{offset:020d}.meta"


def test_info_dump_and_verify_of_a_good_directory(tmp_path: Path) -> None:
    root = str(filled(tmp_path))
    assert re.search(r"t-0 +4 +0 +500 +500 +0", mqlake("store", "info", root).output)
    lines = mqlake(
        "store", "dump", root, "t", "0", "--offset", "150", "-c", "2", "--json"
    ).output.splitlines()
    assert [(json.loads(line)["offset"], int(json.loads(line)["data"])) for line in lines] == [
        (150, 3),
        (200, 4),
    ]
    assert len(mqlake("store", "dump", root, "t", "0").output.splitlines()) == 10
    assert "offset 9999" in mqlake("store", "dump", root, "t", "0", "--offset", "9999", status=1).output
    inside = mqlake("store", "dump", root, "t", "0", "--offset", "470", status=1).output
    assert "470" in inside and "no whole record begins here" in inside
    assert "no partition t-7" in mqlake("store", "dump", root, "t", "7", status=1).output
    assert "all is well" in mqlake("store", "verify", root).output
    assert json.loads(mqlake("store", "verify", root, "--json").output)["records"] == 10
    assert "is not a directory" in mqlake("store", "info", str(tmp_path / "x"), status=1).output
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"")
    assert "not a MetaQ data directory" in mqlake("store", "info", str(tmp_path / "other"), status=1).output


def test_damage_is_found_and_repaired(tmp_path: Path) -> None:
    root = filled(tmp_path)
    middle = segment(root, 150)
    raw = bytearray(middle.read_bytes())
    raw[50 + HEADER_SIZE] ^= 1
    middle.write_bytes(raw)
    last = segment(root, 450)
    last.write_bytes(last.read_bytes() + b"torn")
    (root / "t-0" / "README").write_bytes(b"")
    found = mqlake("store", "verify", str(root), status=1).output
    assert f"{middle}: byte 50: damage: 50 bytes are not a record" in found
    assert f"{last}: byte 50: torn tail" in found and "README: byte 0: foreign file" in found
    assert f"{middle}: corrupt at byte 50" in mqlake("store", "dump", str(root), "t", "0", status=1).output
    plan = json.loads(mqlake("store", "repair", str(root), "--dry-run", "--json").output)
    assert [(action["kind"], action["offset"], action["size"]) for action in plan["actions"]] == [
        ("fill", 50, 50),
        ("cut", 50, 4),
    ]
    assert middle.read_bytes() == raw
    assert "--yes" in mqlake("store", "repair", str(root), status=2).output
    done = mqlake("store", "repair", str(root), "--yes").output
    assert "2 repairs done" in done
    assert "all is well" in mqlake("store", "verify", str(root)).output
    lines = [
        json.loads(line)
        for line in mqlake("store", "dump", str(root), "t", "0", "--json").output.splitlines()
    ]
    assert len(lines) == 10 and lines[4]["attribute"] == "mqlake:damaged" and lines[4]["offset"] == 200
    backup = next(name for name in os.listdir(root) if name.startswith("repair_"))
    assert (root / backup / "t-0" / f"{middle.name}.50").read_bytes() == raw[50:100]
    assert "nothing to repair" in mqlake("store", "repair", str(root), "--yes").output


def test_a_gap_is_repaired_by_putting_aside_what_is_before_it(tmp_path: Path) -> None:
    root = filled(tmp_path)
    segment(root, 150).unlink()
    assert "gap" in mqlake("store", "verify", str(root), status=1).output
    assert "put aside" in mqlake("store", "repair", str(root), "--yes").output
    store = MessageStore(str(root), "t", 0)
    assert (store.min_offset, store.max_offset) == (300, 500)
    store.close()
