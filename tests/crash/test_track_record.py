"""Known ways in which RocketMQ's store has lost or spoilt messages, each with the number it has in RocketMQ's tracker:
what the Java store 5.3.3 does today, live where it can be shown, and what mqlake does in the same place.

docs/reliability.md is the table; its last column names these tests. Those that show RocketMQ 5.3.3 alone, which no
change here can change, are left to the night.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mqlake.base.config_file import ConfigFile
from mqlake.errors import StoreCorruptError, StoreLockedError
from mqlake.formats.batch import encode_messages
from mqlake.formats.record import encode_record
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner, crc32, host_bytes
from mqlake.store.check.repair import repair_store
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.log.log_end import SECTOR
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.recovery import RecoveryReport
from mqlake.store.results import PutMessageStatus
from tests.crash.power import Disk
from tests.crash.test_failing_calls import QUEUES, SYNC, Victim, assert_fenced
from tests.interop.java_peer import (
    SMALL_FILES,
    TEST_JVM,
    JavaPeerError,
    JavaStore,
    OpenJavaStore,
    batch,
    by_key,
    item,
    put,
)
from tests.waiting import PATIENCE_S, trying, until

FIRST_LOG_FILE = f"{0:020d}"
PUT_OK = "PUT_OK"


@contextlib.contextmanager
def failing(pid: int, call: str, error: str, *files: Path) -> Iterator[None]:
    """System calls of a running process fail while the block runs."""
    command = ["strace", "-f", "-o", "/dev/null", "-p", str(pid), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:error={error}"]
    for file in files:
        command += ["-P", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        assert any("attached" in line for line in strace.stderr), "strace cannot attach"
        yield
        strace.terminate()


def mqlake_store(root: Path, config: dict[str, Any], clock: Any = None) -> DefaultMessageStore:
    settings = {**config, "storePathRootDir": str(root)}
    made = MessageStoreConfig.from_mapping(settings)
    store = DefaultMessageStore(made) if clock is None else DefaultMessageStore(made, clock_ms=clock)
    store.load()
    store.start()
    return store


def recovered(root: Path, config: dict[str, Any]) -> tuple[RecoveryReport, list[bytes]]:
    """What mqlake's recovery says, and the bodies in queue T-0 then."""
    reports: list[RecoveryReport] = []
    with open_store(root, config, on_recovered=reports.append) as store:
        found: list[bytes] = []
        at = store.min_offset_in_queue("T", 0)
        while at < store.max_offset_in_queue("T", 0):
            result = store.get_message("g", "T", 0, at, 32)
            found += [message.body for message in result.messages()]
            at = result.next_begin_offset
        return reports[0], found


def overwrite(root: Path, offset: int, data: bytes) -> None:
    with (root / "commitlog" / FIRST_LOG_FILE).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def end_of(result: dict[str, Any]) -> int:
    return int(result["wroteOffset"]) + int(result["wroteBytes"])


class Past:
    """Store times of long ago, a second apart: for checkpoints to have something to go by."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 1000
        return self.now


class TestAcknowledgedAfterAFailedFlush:
    """#2706 #3129 #5235 #7016"""

    @pytest.mark.nightly
    def test_java_acknowledges(self, java_store: JavaStore, tmp_path: Path) -> None:
        config = {**SMALL_FILES, "flushDiskType": "SYNC_FLUSH"}
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, tmp_path, config)
            assert store.put([put("T", b"before")])[0]["status"] == PUT_OK
            with failing(peer.pid, "msync", "EIO"):
                results = store.put([put("T", b"during"), put("T", b"too")])
            assert [result["status"] for result in results] == [PUT_OK] * 2
            assert store.settle()["flushedWhere"] == end_of(results[-1]), "counted as flushed"
            peer.halt()

    @pytest.mark.nightly
    def test_java_5_5_tries_again_and_believes_it(self, later_java_store: JavaStore, tmp_path: Path) -> None:
        """While the disk fails: FLUSH_DISK_TIMEOUT. But the kernel reports a lost page once, and the next try, which
        has nothing left to write, succeeds: what no disk has is acknowledged."""
        config = {**SMALL_FILES, "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 2000}
        with later_java_store.new_peer() as peer:
            store = OpenJavaStore(peer, tmp_path, config)
            assert store.put([put("T", b"before")])[0]["status"] == PUT_OK
            with failing(peer.pid, "msync", "EIO:when=1"):
                results = store.put([put("T", b"during"), put("T", b"too")])
            assert [result["status"] for result in results] == [PUT_OK] * 2
            assert store.settle()["flushedWhere"] == end_of(results[-1]), "counted as flushed"
            with failing(peer.pid, "msync", "EIO"):
                assert store.put([put("T", b"all the time")])[0]["status"] == "FLUSH_DISK_TIMEOUT"
            peer.halt()

    def test_mqlake_does_not(self, tmp_path: Path) -> None:
        """Nor when the second try succeeds: the kernel has dropped the pages of the first."""
        victim = Victim(tmp_path / "store", SYNC)
        before, during, after, _ = victim.run(
            "fdatasync",
            "EIO",
            "2",
            [f"commitlog/{FIRST_LOG_FILE}"],
            ("put", 1),
            ("put", 1),
            ("put", 2),
            ("shutdown", None),
        )
        assert before == [[PUT_OK, ""]]
        assert during[0][0] == "FLUSH_DISK_TIMEOUT"
        assert "Input/output error" in during[0][1]
        assert_fenced(after, "flushing the commit log failed")
        with victim.mended():
            assert victim.stored >= 1


class TestCheckpointAheadOfTheFlush:
    """#678 #10073"""

    CONFIG: ClassVar = {
        **SMALL_FILES,
        "flushIntervalConsumeQueue": 10**6,
    }  # the queues are not flushed while this runs

    @pytest.mark.nightly
    def test_java_writes_it_ahead(self, java_store: JavaStore, tmp_path: Path) -> None:
        """An index file that is full brings the checkpoint to the disk, with a time for the queues of what was
        dispatched."""
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, tmp_path, self.CONFIG)
            store.put([put("T", b"x", keys=f"k{number}") for number in range(900)])
            store.settle()
            on_disk = StoreCheckpoint(str(tmp_path / "checkpoint"), read_only=True)
            peer.halt()
        assert on_disk.index_msg_timestamp > 0
        assert on_disk.logics_msg_timestamp > 0

    def test_mqlake_does_not(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {**self.CONFIG, "flushIntervalConsumeQueue": 1}) as store:
            for _ in trying("there are two index files"):
                if store.index is not None and len(store.index.files) >= 2:
                    break
                store.put_message(MessageExtBrokerInner("T", b"x", keys="k"))
            assert store.wait_until_dispatched(PATIENCE_S)
            path = str(tmp_path / "checkpoint")
            until(lambda: StoreCheckpoint(path, read_only=True).index_msg_timestamp)
            # every round flushes queues that are worth it, but only the thorough one (in a minute) has them all
            assert StoreCheckpoint(path, read_only=True).logics_msg_timestamp == 0


class TestCheckpointStandsStill:
    """#7233"""

    CONFIG: ClassVar = {**SMALL_FILES, "flushDiskType": "SYNC_FLUSH", "flushIntervalConsumeQueue": 1}

    @pytest.mark.nightly
    def test_java_forgets_what_nobody_waits_for(self, java_store: JavaStore, tmp_path: Path) -> None:
        with java_store.open(tmp_path, self.CONFIG) as store:
            store.put([put("T", b"x", waitStoreMsgOk=False) for _ in range(50)])
            store.flush()
            assert store.settle()["physicMsgTimestamp"] == 0

    def test_mqlake_does_not(self, tmp_path: Path) -> None:
        with open_store(tmp_path, self.CONFIG) as store:
            msg = MessageExtBrokerInner("T", b"x")
            msg.wait_store_msg_ok = False
            result = store.put_message(msg)
            assert result.append_result is not None
            path = str(tmp_path / "checkpoint")
            while (
                StoreCheckpoint(path, read_only=True).physic_msg_timestamp
                < result.append_result.store_timestamp
            ):
                store.wait_until_dispatched(0.01)


class TestTornProperties:
    """#7437: body and magic are right, the end of the record never reached the disk."""

    @staticmethod
    def tear(root: Path, result: dict[str, Any]) -> None:
        end = end_of(result)
        sector = (end - SECTOR) // SECTOR * SECTOR
        assert int(result["wroteOffset"]) < sector - 100
        overwrite(root, sector, bytes(end - sector))

    def test_java_takes_it_and_mqlake_does_not(self, java_store: JavaStore, tmp_path: Path) -> None:
        root = tmp_path / "store"
        long = put("T", b"second", properties={"p": "v" * 1500})
        results = java_store.write(root, SMALL_FILES, [put("T", b"first"), long], halt=True)
        self.tear(root, results[-1])
        shutil.copytree(root, tmp_path / "copy")

        contents = java_store.read(root, SMALL_FILES)
        assert [record["body"] for record in contents.records] == [b"first", b"second"]
        assert contents.records[1]["properties"]["p"].endswith("\0" * 100)

        report, bodies = recovered(tmp_path / "copy", SMALL_FILES)
        assert bodies == [b"first"]
        assert report.torn_reason == "a part of the record never reached the disk"


class TestStaleRecords:
    """#10017: behind the end lie whole records of another place, as reused or copied files hold them."""

    def test_java_takes_them_and_mqlake_does_not(self, java_store: JavaStore, tmp_path: Path) -> None:
        root = tmp_path / "store"
        bodies = [b"body %d" % number for number in range(5)]
        results = java_store.write(root, SMALL_FILES, [put("T", body) for body in bodies], halt=True)
        log = (root / "commitlog" / FIRST_LOG_FILE).read_bytes()
        overwrite(root, end_of(results[-1]), log[results[1]["wroteOffset"] : results[2]["wroteOffset"]])
        shutil.copytree(root, tmp_path / "copy")

        contents = java_store.read(root, SMALL_FILES)
        assert [record["body"] for record in contents.records] == [*bodies, b"body 1"]

        report, found = recovered(tmp_path / "copy", SMALL_FILES)
        assert found == bodies
        assert "physical offset" in report.torn_reason


def killed_java_store(java_store: JavaStore, root: Path) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Twelve messages of a RocketMQ that was killed under ASYNC_FLUSH: the results of its puts, and the bodies."""
    bodies = [b"body %d " % number * 40 for number in range(12)]
    return java_store.write(root, SMALL_FILES, [put("T", body) for body in bodies], halt=True), bodies


class TestDamageInTheMiddle:
    """Whole messages after it prove that it is none of a torn tail."""

    def test_java_gives_up_what_follows_and_mqlake_does_not(
        self, java_store: JavaStore, tmp_path: Path
    ) -> None:
        root = tmp_path / "store"
        results, bodies = killed_java_store(java_store, root)
        overwrite(root, results[5]["wroteOffset"] + 100, b"\xff")
        shutil.copytree(root, tmp_path / "copy")

        contents = java_store.read(root, SMALL_FILES)
        assert [record["body"] for record in contents.records] == bodies[:5]

        with pytest.raises(StoreCorruptError, match="body CRC; whole messages follow") as error:
            open_store(tmp_path / "copy", SMALL_FILES)
        assert error.value.offset == results[5]["wroteOffset"]
        repair_store(tmp_path / "copy", SMALL_FILES)
        assert recovered(tmp_path / "copy", SMALL_FILES)[1] == bodies[:5] + bodies[6:]


class TestHoleInTheMiddle:
    """What a power cut leaves under ASYNC_FLUSH."""

    def test_java_gives_up_what_follows_and_mqlake_keeps_it_for_java_too(
        self, java_store: JavaStore, tmp_path: Path
    ) -> None:
        root = tmp_path / "store"
        results, bodies = killed_java_store(java_store, root)
        hole = results[5]["wroteOffset"]
        overwrite(root, hole, bytes(results[7]["wroteOffset"] - hole))
        shutil.copytree(root, tmp_path / "copy")

        contents = java_store.read(root, SMALL_FILES)
        assert [record["body"] for record in contents.records] == bodies[:5]

        report, found = recovered(tmp_path / "copy", SMALL_FILES)
        assert found == bodies[:5] + bodies[7:]
        assert report.fences == [(hole, results[7]["wroteOffset"] - hole, "zeros where a record should be")]
        for crashed in (False, True):
            if crashed:
                (tmp_path / "copy" / "abort").write_text("1")
            contents = java_store.read(tmp_path / "copy", SMALL_FILES)
            # it gives the message after a hole once for each that is missing
            messages = {m["queueOffset"]: m for m in contents.queues["T", 0].messages}
            assert [message["body"] for message in messages.values()] == found
            places = [(r["wroteOffset"], r["logicsOffset"]) for r in results[:5] + results[7:]]
            assert [(m["physicalOffset"], m["queueOffset"]) for m in messages.values()] == places
            saved = [record["body"] for record in contents.records if record["sysFlag"] != 0xC]
            assert saved == found


class TestChecksumOfZero:
    """#9121: a record whose checksum happens to be 0 is whole."""

    CONFIG: ClassVar = {**SMALL_FILES, "enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    NOW = 1_700_000_000_000
    HOST = ("127.0.0.1", 10911)

    def property_crc(self, body: bytes) -> int:
        host = host_bytes(self.HOST)
        record = encode_record(
            body, crc32(body), 0, 0, 0, 0, 0, self.NOW, host, self.NOW, host, 0, 0, b"T", b"", prop_crc=True
        )
        return crc32(record[:-20])

    def body_for_zero(self) -> bytes:
        """A CRC is linear in the bits of its input: eight bytes of body leave room to solve for 0."""
        rest, chosen, pivots = self.property_crc(bytes(8)), 0, {}
        for bit in range(64):
            value, bits = self.property_crc((1 << bit).to_bytes(8, "big")) ^ rest, 1 << bit
            for top, (pivot, pivot_bits) in sorted(pivots.items(), reverse=True):
                if value >> top & 1:
                    value, bits = value ^ pivot, bits ^ pivot_bits
            if value:
                pivots[value.bit_length() - 1] = value, bits
        for top, (pivot, pivot_bits) in sorted(pivots.items(), reverse=True):
            if rest >> top & 1:
                rest, chosen = rest ^ pivot, chosen ^ pivot_bits
        return chosen.to_bytes(8, "big")

    def test_java_5_3_3_and_mqlake_take_it(self, java_store: JavaStore, tmp_path: Path) -> None:
        root, body = tmp_path / "store", self.body_for_zero()
        with mqlake_store(root, self.CONFIG, lambda: self.NOW) as store:
            for content in (body, b"next"):
                msg = MessageExtBrokerInner("T", content)
                msg.born_timestamp, msg.born_host, msg.store_host = self.NOW, self.HOST, self.HOST
                assert store.put_message(msg).is_ok
            first = bytes(store.select_one_message_by_offset(0) or b"")
            assert first.endswith(b"__CRC32#\x010000000000\x02")
        (root / "abort").write_bytes(b"")
        _, bodies = recovered(root, self.CONFIG)
        assert bodies == [body, b"next"]
        (root / "abort").write_bytes(b"")
        contents = java_store.read(root, self.CONFIG)
        assert [record["body"] for record in contents.records] == [body, b"next"]


class TestIndexAfterACrash:
    """#8007"""

    CONFIG: ClassVar = {
        **SMALL_FILES,
        "mappedFileSizeCommitLog": 4096,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
    }

    def test_java_loses_the_old_keys_and_mqlake_makes_them_again(
        self, java_store: JavaStore, tmp_path: Path
    ) -> None:
        root = tmp_path / "store"
        with mqlake_store(root, self.CONFIG, Past()) as store:  # so old that recovery does not come by
            for number in range(100):
                store.put_message(MessageExtBrokerInner("T", b"x" * 100, keys=f"k{number}"))
        with java_store.open(root, self.CONFIG) as java:
            assert len(java.query([by_key("T", "k3")])[0]["physicalOffsets"]) == 1
        java_store.write(root, self.CONFIG, [put("T", b"last", keys="last")], halt=True)
        shutil.copytree(root, tmp_path / "copy")

        answers = java_store.read(root, self.CONFIG, [by_key("T", "k3"), by_key("T", "last")]).answers
        assert [len(answer["physicalOffsets"]) for answer in answers] == [0, 1]

        with open_store(tmp_path / "copy", self.CONFIG) as store:
            for key in ("k3", "last"):
                assert [message.keys for message in store.query_message("T", key, 8).messages()] == [key]


class TestPoolWithSyncFlush:
    """#7523"""

    CONFIG: ClassVar = {
        **SMALL_FILES,
        "flushDiskType": "SYNC_FLUSH",
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 3,
    }

    @pytest.mark.nightly
    def test_java_5_3_3_flushes_in_time(self, java_store: JavaStore, tmp_path: Path) -> None:
        exports = "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"
        with java_store.new_peer(jvm=(*TEST_JVM, exports)) as peer:
            store = OpenJavaStore(peer, tmp_path, self.CONFIG)
            assert {result["status"] for result in store.put([put("T", b"x")] * 5)} == {PUT_OK}
            store.close()

    def test_so_does_mqlake(self, tmp_path: Path) -> None:
        with open_store(tmp_path, self.CONFIG) as store:
            for _ in range(200):
                assert store.put_message(MessageExtBrokerInner("T", b"x" * 500)).is_ok
            assert store.flushed_where == store.max_phy_offset
            assert len(store.commit_log_files.mapped_files) > 1


class TestFullDisk:
    """#9693: the file system of the store has no room left. Needs the right to mount."""

    @pytest.fixture
    def small_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A directory that is a tmpfs of 300 KiB, for a JVM or a Python that is started through `java`, `python`."""
        disk, commands = tmp_path / "disk", tmp_path / "bin"
        disk.mkdir()
        commands.mkdir()
        mount = f"mount -t tmpfs -o size=300k tmpfs {disk}"
        if subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount], check=False, capture_output=True
        ).returncode:
            pytest.skip("a file system cannot be mounted here")
        for name, real in (("java", shutil.which("java")), ("python", sys.executable)):
            script = f'#!/bin/sh\nexec unshare --mount sh -c \'{mount} && exec {real} "$@"\' {name} "$@"\n'
            (commands / name).write_text(script)
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
        return disk

    CONFIG: ClassVar = {
        **SMALL_FILES,
        "maxHashSlotNum": 10,
        "maxIndexNum": 40,
        "mappedFileSizeCommitLog": 1 << 17,
    }

    @pytest.mark.nightly
    def test_java_faults(self, java_store: JavaStore, small_disk: Path) -> None:
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, small_disk / "store", {**self.CONFIG, "diskMaxUsedSpaceRatio": 99})
            with pytest.raises(JavaPeerError, match=r"InternalError: a fault occurred in .* memory access"):
                for _ in range(100):
                    store.put([put("T", seed=1, size=5000)])
            peer.kill()

    def test_mqlake_answers(self, small_disk: Path) -> None:
        code = f"""
import json
from mqlake.message import MessageExtBrokerInner
from mqlake.store.message_store import open_store
with open_store({str(small_disk / "store")!r}, json.loads('''{json.dumps(self.CONFIG)}''')) as store:
    for _ in range(100):
        result = store.put_message(MessageExtBrokerInner("T", bytes(5000)))
        if not result.is_ok:
            break
    for _ in range(300):
        assert not store.put_message(MessageExtBrokerInner("T", bytes(5000))).is_ok
    print(result.status.name, result.reason)
"""
        done = subprocess.run(
            ["python", "-c", code], text=True, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(("CREATE_MAPPED_FILE_FAILED", "SERVICE_NOT_AVAILABLE"))
        assert "No space left on device" in done.stdout
        # a line for each of what lasts, again when there has been room for a moment, but not for each put
        assert done.stderr.count("No space left on device") <= 10, done.stderr


class TestConfigurationFiles:
    """#3401: of Java it cannot be shown here, as the peer is a store without a broker around it."""

    def test_mqlake_has_the_old_or_the_new_content_after_a_power_cut(self, tmp_path: Path) -> None:
        dice = random.Random(1)
        for number in range(40):
            root, copy = tmp_path / str(number) / "config", tmp_path / f"cut-{number}"
            root.mkdir(parents=True)
            file = ConfigFile(str(root / "topics.json"))
            file.persist({"version": 0})
            persisted = [0]
            stopped = threading.Event()

            def keep_persisting(file: ConfigFile = file, done: list[int] = persisted) -> None:
                while not stopped.is_set():  # noqa: B023
                    version = done[-1] + 1
                    file.persist({"version": version, "filler": "x" * (version * 97 % 3000)})
                    done.append(version)

            with Disk(root) as disk:
                thread = threading.Thread(target=keep_persisting)
                thread.start()
                while len(persisted) < 1 + number % 4:
                    pass
                before = persisted[-1]
                disk.cut(copy, dice)
                stopped.set()
                thread.join()
            found = ConfigFile(str(copy / "topics.json")).load()
            assert before <= found["version"] <= persisted[-1]


class TestNotWriteableForEver:
    """#2398: a queue could not be written for a while (a full disk), then it can."""

    @pytest.mark.campaign
    @pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="takes half a minute: MQLAKE_CAMPAIGN=1")
    def test_java_takes_no_message_any_more(self, java_store: JavaStore, tmp_path: Path) -> None:
        """After 30 tries a second apart it gives up; space that returns changes nothing, only a restart does."""
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, tmp_path, SMALL_FILES)
            store.put([put("Other", b"x")])
            store.settle()
            with failing(
                peer.pid, "openat", "ENOSPC", tmp_path / "consumequeue" / "T" / "0" / FIRST_LOG_FILE
            ):
                store.put([put("T", b"x")])
                while store.put([put("Other", b"x")])[0]["status"] == PUT_OK:
                    pass
            for _ in range(50):
                assert store.put([put("Other", b"x")])[0]["status"] == "SERVICE_NOT_AVAILABLE"
            peer.halt()

    def test_mqlake_goes_on(self, tmp_path: Path) -> None:
        victim = Victim(tmp_path / "store", {})
        refused, taken, dispatched, _ = victim.run(
            "pwrite64",
            "ENOSPC",
            "1..3",
            QUEUES,
            ("put_until_refused", 1_000_000),
            ("put_until_taken", 1000),
            ("dispatched", 30),
            ("shutdown", None),
        )
        assert refused[-1][0] == "SERVICE_NOT_AVAILABLE"
        assert taken[-1] == [PUT_OK, ""]
        assert dispatched


QUEUE_FILES = int(os.environ.get("MQLAKE_QUEUE_FILES", "20000"))


@pytest.fixture(scope="module")
def many_queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("queues") / "store"
    with open_store(root, SMALL_FILES) as store:
        assert store.put_message(MessageExtBrokerInner("Base", b"x")).is_ok
    unit = root / "consumequeue" / "Base" / "0" / FIRST_LOG_FILE
    os.utime(unit, (1_600_000_000, 1_600_000_000))  # not written to lately
    for number in range(QUEUE_FILES):
        topic = root / "consumequeue" / f"topic{number // 100}"
        if number % 10_000 == 0:  # a file takes 65,000 names at most
            source = root / f"unit-{number}"
            shutil.copy2(unit, source)
        queue = topic / str(number % 100)
        queue.mkdir(parents=True)
        os.link(source, queue / FIRST_LOG_FILE)
    yield root
    shutil.rmtree(root)


class TestManyQueues:
    """#5091: 20,000 files here; MQLAKE_QUEUE_FILES=200000 for what the issue is about."""

    @pytest.fixture
    def few_descriptors(self) -> Iterator[int]:
        """A fifth of the files: Linux gives a process 1024 unless told otherwise."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(soft, 4096)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        yield limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
    def test_mqlake_starts_in_seconds(
        self, many_queues: Path, few_descriptors: int, clean: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if not clean:
            (many_queues / "abort").write_bytes(b"")
        began = time.process_time()
        with open_store(many_queues, SMALL_FILES) as store:
            seconds = time.process_time() - began
            assert sum(1 for _ in store.consume_queues) == QUEUE_FILES + 1
            last = f"topic{(QUEUE_FILES - 1) // 100}"
            assert store.max_offset_in_queue(last, 99) == 1
            assert len(os.listdir("/proc/self/fd")) < few_descriptors
        with capsys.disabled():
            print(f" {QUEUE_FILES} queue files: opened in {seconds:.1f} s of processor time ", end="")
        # generous: the machine may be slow; the issue speaks of 150 s for 200,000 on a large one
        assert seconds < 30 + QUEUE_FILES / 2000

    @pytest.mark.nightly
    def test_java_needs_a_descriptor_for_each(
        self, many_queues: Path, few_descriptors: int, java_store: JavaStore
    ) -> None:
        with (
            java_store.new_peer(jvm=(*TEST_JVM, "-XX:-MaxFDLimit")) as peer,
            pytest.raises(JavaPeerError, match="load"),
        ):
            OpenJavaStore(peer, many_queues, SMALL_FILES)
        assert "Too many open files" in peer.log.read_text(errors="replace")


class TestRecordLargerThanAFile:
    """No number: a record that no commit log file can hold."""

    CONFIG: ClassVar = {**SMALL_FILES, "maxMessageSize": 1 << 20}
    BODY_SIZE = 100_000

    @pytest.mark.nightly
    def test_java_acknowledges_and_does_not_store_it(self, java_store: JavaStore, tmp_path: Path) -> None:
        with java_store.open(tmp_path, self.CONFIG) as store:
            results = store.put([put("T", b"a"), put("T", seed=1, size=self.BODY_SIZE), put("T", b"b")])
            assert [result["status"] for result in results] == [PUT_OK] * 3
            store.settle()
            assert [record["body"] for record in store.contents().records] == [b"a", b"b"]

    def test_mqlake_refuses(self, tmp_path: Path) -> None:
        with open_store(tmp_path, self.CONFIG) as store:
            result = store.put_message(MessageExtBrokerInner("T", bytes(self.BODY_SIZE)))
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            assert "a commit log file takes" in result.reason
            assert store.max_phy_offset == 0


class TestBatchWithTooManyProperties:
    """No number: each part is within the limit, the sum of a message's own properties and the batch's is not."""

    CONFIG: ClassVar = {**SMALL_FILES, "mappedFileSizeCommitLog": 1 << 20, "maxMessageSize": 1 << 20}
    OWN: ClassVar = {"p": "v" * 20_000}
    SHARED: ClassVar = {"q": "w" * 20_000}

    @pytest.mark.nightly
    def test_java_acknowledges_and_loses_all_from_there_on(
        self, java_store: JavaStore, tmp_path: Path
    ) -> None:
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, tmp_path, self.CONFIG)
            large = batch("T", [item(b"1", properties=self.OWN)], properties=self.SHARED)
            results = store.put([put("T", b"before"), large, put("T", b"after")])
            assert [result["status"] for result in results] == [PUT_OK] * 3
            peer.halt()
        contents = java_store.read(tmp_path, self.CONFIG)
        assert [record["body"] for record in contents.records] == [b"before"]

    def test_mqlake_refuses(self, tmp_path: Path) -> None:
        with open_store(tmp_path, self.CONFIG) as store:
            msg = MessageExtBatch("T", encode_messages([Message("T", b"1", properties=self.OWN)]))
            msg.properties = dict(self.SHARED)
            assert store.put_messages(msg).status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
            assert store.max_phy_offset == 0


class TestSecondOpen:
    """No number: another process opens a store that is in use."""

    @pytest.mark.nightly
    def test_java_takes_files_from_the_running_one(self, java_store: JavaStore, tmp_path: Path) -> None:
        """It recovers first and takes the lock then: the file made ahead is deleted under the running store, which
        goes on to write into it."""
        root = tmp_path / "store"
        with java_store.new_peer() as peer:
            store = OpenJavaStore(peer, root, SMALL_FILES)
            store.put([put("T", seed=number, size=1000) for number in range(50)])
            ahead = root / "commitlog" / f"{SMALL_FILES['mappedFileSizeCommitLog']:020d}"
            assert ahead.exists()
            with pytest.raises(JavaPeerError, match="Lock failed"):
                OpenJavaStore(java_store.peer, root, SMALL_FILES)
            assert not ahead.exists()
            results = store.put([put("T", seed=number, size=1000) for number in range(50, 150)])
            assert {result["status"] for result in results} == {PUT_OK}
            assert (
                max(result["wroteOffset"] for result in results) > 2 * SMALL_FILES["mappedFileSizeCommitLog"]
            )
            assert not ahead.exists(), "acknowledged messages in a file without a name"
            peer.halt()

    def test_mqlake_looks_at_the_lock_first(self, tmp_path: Path) -> None:
        with open_store(tmp_path, SMALL_FILES) as store:
            for number in range(50):
                store.put_message(MessageExtBrokerInner("T", bytes(1000), keys=f"k{number}"))
            assert store.wait_until_dispatched(PATIENCE_S)
            before = set(tmp_path.rglob("*"))
            with pytest.raises(StoreLockedError):
                open_store(tmp_path, SMALL_FILES)
            # the running store may have made a file ahead meanwhile, or replaced its temporary one
            assert {path for path in before if path.suffix != ".tmp"} <= set(tmp_path.rglob("*"))
            assert store.put_message(MessageExtBrokerInner("T", b"on it goes")).is_ok
