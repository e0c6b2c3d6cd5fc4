"""A cluster of processes that can be killed: a name server, a master, a slave, and the link between the two.

slave ──▶ Link ──▶ master      the log; a fault of the link is none of the clients' connections
both stores lie on small file systems of their own if this process may mount them, so a disk can be filled
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from mqlake.client import Admin
from mqlake.errors import MqlakeError
from mqlake.formats.record import decode_record
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.store_view import StoreView
from tests.campaign.forker import Forker, runs
from tests.campaign.history import Log, Record
from tests.campaign.proxy import Link
from tests.ports import free_ports
from tests.waiting import until_async

FILE_SIZE = 1 << 20
DISK_BYTES = 256 << 20
STORE = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    # what is asked here is whether answers are kept, not how fast they come
    "syncFlushTimeout": 20_000,
    "osPageCacheBusyTimeOutMills": 60_000,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": "false",
}
HA = {
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 2500,
    "slaveTimeout": 2000,
    "slaveReadEnable": "true",
}


class Node:
    """One broker. `log` has all that its processes said."""

    def __init__(
        self, name: str, directory: Path, settings: Mapping[str, object], forker: Forker, *, own_disk: bool
    ) -> None:
        self.name = name
        self._forker = forker
        self.root = directory / name
        self.log = directory / f"{name}.log"
        self.root.mkdir()
        self.disk = self.root if own_disk and _mount(self.root) else None
        self.store = self.root / "store"
        self.port = free_ports(4) + 2  # the port below is the VIP channel's, that above the slaves'
        self.settings = {**STORE, **settings, "listenPort": self.port, "storePathRootDir": self.store}
        self.pid = 0

    @property
    def runs(self) -> bool:
        return self.pid > 0 and runs(self.pid)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, namesrv: str) -> None:
        args = ["broker", "--host", "127.0.0.1", "-n", namesrv]
        args += [f"--set={key}={value}" for key, value in self.settings.items()]
        self.pid = self._forker.fork(args, self.log)

    def send_signal(self, number: int) -> None:
        if self.runs:
            os.kill(self.pid, number)

    async def end(self, number: int) -> None:
        self.send_signal(number)
        if number is not signal.SIGKILL:
            self.send_signal(signal.SIGCONT)
        await until_async(lambda: not self.runs, f"{self.name} has ended")

    def fill_disk(self) -> None:
        """Nothing is left but what the store has allocated."""
        assert self.disk is not None
        with (self.disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(64 * 1024)):
                pass

    def empty_disk(self) -> None:
        if self.disk is not None:
            (self.disk / "ballast").unlink(missing_ok=True)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def close(self) -> None:
        self.send_signal(signal.SIGKILL)
        if self.disk is not None:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)


def _mount(directory: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "mqlake-campaign", str(directory)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


class Cluster:
    """`async with`: all of it runs, and nothing does afterwards."""

    def __init__(self, directory: Path, *, replicas: int = 1, own_disks: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._forker = Forker(directory / "forker.log")
        self.namesrv = f"127.0.0.1:{free_ports(1)}"
        common = {
            "brokerName": "a",
            "brokerClusterName": "c",
            "transactionTimeOut": 2000,
            "transactionCheckInterval": 2000,
        }
        role = (
            {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2, **HA} if replicas else {}
        )
        self.master = Node("master", directory, {**common, **role}, self._forker, own_disk=own_disks)
        self.nodes = [self.master]
        self.slave: Node | None = None
        self.link: Link | None = None
        if replicas:
            ha_port = self.master.port + 1
            self.master.settings["haListenPort"] = ha_port
            self.link = Link(("127.0.0.1", ha_port))
            self.slave = Node(
                "slave",
                directory,
                {**common, **HA, "brokerRole": "SLAVE", "brokerId": 1},
                self._forker,
                own_disk=own_disks,
            )
            self.nodes.append(self.slave)

    async def __aenter__(self) -> Cluster:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        host, _, port = self.namesrv.partition(":")
        args = ["namesrv", "--host", host, "--port", port, "--kv-path", str(self.directory / "kv.json")]
        self._forker.fork(args, self.directory / "namesrv.log")
        if self.link is not None and self.slave is not None:
            await self.link.start()
            self.slave.settings["haMasterAddress"] = f"127.0.0.1:{self.link.port}"
        for node in self.nodes:
            node.start(self.namesrv)
        await self.ready()

    async def ready(self, what: Iterable[Node] | None = None) -> None:
        """Until the name server knows the nodes."""
        wanted = {node.address for node in (self.nodes if what is None else what)}

        async def known() -> bool:
            for node in self.nodes:
                if node.address in wanted and not node.runs:
                    raise RuntimeError(f"{node.name} ended:\n{node.last_words()}")
            async with Admin(self.namesrv) as admin:
                try:
                    info = await admin.examine_broker_cluster_info()
                except MqlakeError:
                    return False
            found = {
                address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()
            }
            return wanted <= found

        await until_async(known, "the name server knows the brokers")

    async def heal(self) -> None:
        """Every node runs, every link is up, every disk has room."""
        for node in self.nodes:
            node.empty_disk()
        if self.link is not None:
            self.link.set("up")
        for node in self.nodes:
            node.send_signal(signal.SIGCONT)
            if not node.runs:
                node.start(self.namesrv)
        await self.ready()

    async def close(self) -> None:
        if self.link is not None and self.link.port:
            await self.link.close()
        for node in self.nodes:
            node.close()
        self._forker.close()


# ------------------------------------------------------------------ file faults


def damage(store: Path, dice: random.Random, copy: Path | None) -> str:
    """One file of a node that does not run: a bit flipped, its end cut off, or all as it was when `copy` was made.
    What was done."""
    files = sorted((store / "commitlog").iterdir())
    file = dice.choice(files)
    kind = dice.choice(["flip", "flip", "truncate", *(["older copy"] if copy is not None else [])])
    if kind == "flip":
        at = dice.randrange(file.stat().st_size)
        with file.open("r+b") as raw:
            raw.seek(at)
            byte = raw.read(1)[0]
            raw.seek(at)
            raw.write(bytes([byte ^ 1 << dice.randrange(8)]))
        return f"a bit of byte {at} of {file.name} flipped"
    if kind == "truncate":
        size = dice.randrange(file.stat().st_size)
        os.truncate(file, size)
        return f"{file.name} cut to {size} bytes"
    assert copy is not None
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    return "an older copy put back"


# ------------------------------------------------------------------ what is left


def read_log(store: StoreView, topics: Iterable[str]) -> Log:
    """The records of some topics, and all bytes of the log."""
    wanted, records = set(topics), []
    offset, end = store.min_phy_offset, store.max_phy_offset
    start, size = offset, store.config.mapped_file_size_commit_log
    while offset < end:
        head = store.commit_log_files.select(offset, 8)
        if head is not None and bytes(head[4:]) == b"\xcb\xd4\x31\x94":
            offset += size - offset % size
            continue
        raw = store.select_one_message_by_offset(offset)
        assert raw is not None, f"no record at {offset}, the log ends at {end}"
        message = decode_record(raw)
        if message.topic in wanted:
            records.append(
                Record(
                    offset=offset,
                    topic=message.topic,
                    queue=message.queue_id,
                    queue_offset=message.queue_offset,
                    key=message.keys,
                    body=message.body,
                    stored=message.store_timestamp,
                )
            )
        offset += message.store_size
    data = bytearray()
    for mapped_file in store.commit_log_files.files_from(start):
        data += mapped_file.view[: min(size, end - mapped_file.file_from_offset)]
    return Log(records, start, bytes(data))


def log_after_a_crash(node: Node, scratch: Path, topics: Iterable[str]) -> Log:
    """What a restart of the node would have, from a copy."""
    shutil.copytree(node.store, scratch)
    settings = {key: value for key, value in STORE.items() if key in _FILE_SIZES}
    try:
        with open_store(scratch, settings) as store:
            assert isinstance(store, DefaultMessageStore)
            return read_log(store, topics)
    finally:
        shutil.rmtree(scratch)


_FILE_SIZES = {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"}
