"""One life of a cluster: clients work, faults happen, and in the end the checker looks at what is left.

faults      kill -9, SIGSTOP, the link cut, slow or hung, a full disk, a damaged file of the slave; by the seed
crash       both nodes are killed: what was acknowledged has to be in either log, whichever is the one that is left
end         all is healed; delayed messages and transactions come to their end; both logs are compared
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from mqlake.client import Admin, ClientConfig
from mqlake.errors import MqlakeError
from mqlake.store.read_only import ReadOnlyStore
from tests.campaign.cluster import Cluster, Node, damage, log_after_a_crash, read_log
from tests.campaign.history import Violation, check, dump
from tests.campaign.workload import DELAYS_MS, TOPICS, Workload
from tests.waiting import PATIENCE_S, until_async

SETTLE_S = 90.0


@dataclasses.dataclass
class Outcome:
    """What a life was like."""

    seed: int
    violations: list[Violation] = dataclasses.field(default_factory=list)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    consumed: int = 0
    log_bytes: int = 0
    seconds: float = 0.0
    remarks: list[str] = dataclasses.field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {**vars(self), "violations": [str(each) for each in self.violations]}


class Life:
    def __init__(self, directory: Path, seed: int, *, seconds: float, replicas: int = 1) -> None:
        """`seconds`: of faults; starting, healing and checking come on top."""
        self.directory = directory
        self.seconds = seconds
        self.dice = random.Random(seed)
        self.cluster = Cluster(directory, replicas=replicas)
        self.workload = Workload(self.cluster.namesrv, seed=seed)
        self.outcome = Outcome(seed)
        self._copies = 0
        self._damaged = False

    async def run(self) -> Outcome:
        began = time.monotonic()
        try:
            async with self.cluster:
                await self.workload.start()
                try:
                    await self._trouble()
                    if self.dice.random() < 0.5:
                        await self._crash_of_all()
                    await self._end()
                finally:
                    await self.workload.stop()
                    await self.workload.close()
                await self._judge()
        finally:
            dump(self.workload.history, str(self.directory / "history"))
        outcome = self.outcome
        for op in self.workload.history:
            if op.kind != "consume":
                outcome.sends[f"{op.kind} {op.outcome}"] += 1
        outcome.consumed = self.workload.consumed
        if missing := self._missing():
            outcome.remarks.append(f"{len(missing)} acknowledged messages were not consumed: {missing[:5]}")
        outcome.seconds = time.monotonic() - began
        return outcome

    # ------------------------------------------------------------------ faults

    async def _trouble(self) -> None:
        end = time.monotonic() + self.seconds
        await asyncio.sleep(self.dice.uniform(1, 2))
        while time.monotonic() < end:
            fault = self.dice.choice(self._faults())
            self.outcome.faults[fault.__name__.strip("_").replace("_", " ")] += 1
            await fault()
            self.workload.check()
            await asyncio.sleep(self.dice.uniform(0.3, 3))

    def _faults(self) -> list[Callable[[], Awaitable[None]]]:
        faults = [self._kill_master, self._pause_master]
        if self.cluster.master.disk is not None:
            faults.append(self._full_disk)
        if self.cluster.slave is not None:
            faults += [self._kill_slave, self._pause_slave, self._cut_link, self._slow_link, self._hung_link]
            faults += [self._kill_both, self._damaged_file]
        return faults

    async def _kill(self, *nodes: Node) -> None:
        for node in nodes:
            await node.end(signal.SIGKILL)
        await asyncio.sleep(self.dice.uniform(0, 1.5))
        for node in nodes:
            node.start(self.cluster.namesrv)
        await self.cluster.ready(nodes)

    async def _kill_master(self) -> None:
        await self._kill(self.cluster.master)

    async def _kill_slave(self) -> None:
        assert self.cluster.slave is not None
        await self._kill(self.cluster.slave)

    async def _kill_both(self) -> None:
        nodes = list(self.cluster.nodes)
        self.dice.shuffle(nodes)
        await self._kill(*nodes)

    async def _pause(self, node: Node) -> None:
        node.send_signal(signal.SIGSTOP)
        # shorter and longer than haHousekeepingInterval
        await asyncio.sleep(self.dice.choice((0.3, 1.0, 4.0)))
        node.send_signal(signal.SIGCONT)

    async def _pause_master(self) -> None:
        await self._pause(self.cluster.master)

    async def _pause_slave(self) -> None:
        assert self.cluster.slave is not None
        await self._pause(self.cluster.slave)

    async def _cut_link(self) -> None:
        await self._link("cut")

    async def _slow_link(self) -> None:
        await self._link("slow")

    async def _hung_link(self) -> None:
        await self._link("hung")

    async def _link(self, state: str) -> None:
        assert self.cluster.link is not None
        self.cluster.link.set(state)  # type: ignore[arg-type]
        await asyncio.sleep(self.dice.uniform(0.2, 5))
        self.cluster.link.set("up")

    async def _full_disk(self) -> None:
        node = self.dice.choice(self.cluster.nodes)
        await asyncio.to_thread(node.fill_disk)
        await asyncio.sleep(self.dice.uniform(0.5, 3))
        if self.dice.random() < 0.3:
            await node.end(signal.SIGKILL)
        node.empty_disk()
        if not node.runs:
            node.start(self.cluster.namesrv)
            await self.cluster.ready([node])

    async def _damaged_file(self) -> None:
        """Of the slave: it may refuse to start, cut, or follow again; its master must not notice."""
        slave = self.cluster.slave
        assert slave is not None
        await slave.end(signal.SIGKILL)
        copy = self._copy_of(slave)
        done = await asyncio.to_thread(damage, slave.store, self.dice, copy)
        slave.start(self.cluster.namesrv)
        try:
            await self.cluster.ready([slave])
            self.outcome.remarks.append(f"slave: {done}: started")
        except RuntimeError:
            self.outcome.remarks.append(f"slave: {done}: refused to start")
            await self._begin_anew(slave)
            return
        self._damaged |= "older" not in done

    def _copy_of(self, slave: Node) -> Path | None:
        """The copy made the time before, for a file put back; one for the next time is made now."""
        copy = self.directory / f"copy-{self._copies}"
        before = copy if self._copies else None
        self._copies += 1
        shutil.copytree(slave.store, self.directory / f"copy-{self._copies}")
        return before

    async def _begin_anew(self, slave: Node) -> None:
        """What an operator does with a slave whose files are damaged."""
        await slave.end(signal.SIGKILL)
        shutil.rmtree(slave.store)
        slave.start(self.cluster.namesrv)
        await self.cluster.ready([slave])

    # ------------------------------------------------------------------ both are gone

    async def _crash_of_all(self) -> None:
        """Each log alone has what was acknowledged: whichever machine is lost, the other one will do."""
        for node in self.cluster.nodes:
            node.send_signal(signal.SIGSTOP)
        history = list(self.workload.history)
        for node in self.cluster.nodes:
            await node.end(signal.SIGKILL)
        self.outcome.faults["crash of all"] += 1
        for node in self.cluster.nodes:
            if node is self.cluster.slave and self._damaged:
                continue
            log = await asyncio.to_thread(
                log_after_a_crash, node, self.directory / f"scratch-{node.name}", TOPICS.values()
            )
            sends = [op for op in history if op.kind == "send"]
            found = [each for each in check(sends, log, complete=False) if each.rule == "lost"]
            self.outcome.violations += [
                dataclasses.replace(each, text=f"{node.name}: {each.text}") for each in found
            ]
        for node in self.cluster.nodes:
            node.start(self.cluster.namesrv)
        await self.cluster.ready()

    # ------------------------------------------------------------------ the end

    async def _end(self) -> None:
        await self.cluster.heal()
        if self._damaged and self.cluster.slave is not None:
            await self._begin_anew(self.cluster.slave)
        self.workload.check()
        acknowledged = self.workload.count("send", "ok")
        await until_async(lambda: self.workload.count("send", "ok") > acknowledged + 20, "sends work again")
        await self.workload.stop()
        config = ClientConfig(namesrv_addr=self.workload.namesrv, timeout_s=PATIENCE_S)
        async with Admin(config) as admin:
            await until_async(lambda: self._same_end(admin), "the slave has what its master has", SETTLE_S)
            # what is not known to be stored may still be delivered
            await asyncio.sleep(max(DELAYS_MS.values()) / 1000 + 1)
            with contextlib.suppress(AssertionError):  # the checker says what is missing
                await until_async(self._nothing_is_open, timeout_s=SETTLE_S)
            await until_async(lambda: self._same_end(admin), "the slave has what its master has", SETTLE_S)

    async def _same_end(self, admin: Admin) -> bool:
        ends = []
        for node in self.cluster.nodes:
            try:
                info = await admin.brokers.get_broker_runtime_info(node.address)
            except MqlakeError:
                return False
            ends.append(int(info["commitLogMaxOffset"]))
        return len(set(ends)) == 1

    def _nothing_is_open(self) -> bool:
        """True if the consumer has all that was acknowledged."""
        return not self._missing()

    def _missing(self) -> list[str]:
        history = self.workload.history
        consumed = {op.key for op in history if op.kind == "consume"}
        return [
            op.key
            for op in history
            if op.outcome == "ok" and op.key not in consumed and (op.kind != "transaction" or op.committed)
        ]

    async def _judge(self) -> None:
        for node in self.cluster.nodes:
            await node.end(signal.SIGTERM)
        logs = {}
        for node in self.cluster.nodes:
            settings = {"mappedFileSizeCommitLog": node.settings["mappedFileSizeCommitLog"]}
            settings["mappedFileSizeConsumeQueue"] = node.settings["mappedFileSizeConsumeQueue"]
            with ReadOnlyStore(node.store, settings) as view:
                logs[node.name] = await asyncio.to_thread(read_log, view, TOPICS.values())
        master = logs.pop("master")
        self.outcome.log_bytes = master.end - master.start
        self.outcome.violations += check(self.workload.history, master, logs)


async def live(directory: Path, seed: int, *, seconds: float, replicas: int = 1) -> Outcome:
    """One life in `directory`, which stays when something is wrong."""
    outcome = await Life(directory, seed, seconds=seconds, replicas=replicas).run()
    if not outcome.violations and "MQLAKE_CAMPAIGN_KEEP" not in os.environ:
        shutil.rmtree(directory)
    return outcome
