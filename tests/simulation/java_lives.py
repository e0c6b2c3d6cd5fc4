"""Lives with a peer that behaves as RocketMQ does, and what mqlake's end still holds then.

mqlake's master    counts for no put what a slave reports beyond the log's end; a slave of a master that has never
                   lost bytes has the same log in the end
mqlake's slave     appends only to what its master has; says that it is ahead or diverged; never reports an offset that
                   its master does not have, which would acknowledge puts there
"""

from __future__ import annotations

from collections.abc import Callable

from mqlake.store.results import PutMessageStatus
from tests.simulation.java import JavaMaster, JavaSlave
from tests.simulation.life import Life
from tests.simulation.roles import Master, Slave
from tests.simulation.world import Link, World


class LifeWithJavaSlaves(Life):
    """A slave that diverged after its master lost bytes is replaced by an empty one, as operators do."""

    KIND = "java-slave"

    def __init__(self, seed: int, *, seconds: float = 15.0) -> None:
        self.replaced = self.beyond = 0
        super().__init__(seed, seconds=seconds)

    def make_slave(self, world: World, name: str, master: Master, link: Link) -> Slave:
        return JavaSlave(world, name, master, link)

    def _watch(self, slave: Slave) -> None:
        slave.log.sync_flush = False

    def _answered(self, end: int, status: PutMessageStatus) -> None:
        self.answers += 1
        self._open_since.pop(end)
        if status is not PutMessageStatus.PUT_OK:
            return
        self.acknowledged = max(self.acknowledged, end)
        master_end = self.master.log.max_offset
        holders = 1 + sum(
            (end <= slave.log.max_offset <= master_end) if self._lost_bytes else self._has(slave, end, end)
            for slave in self.slaves
        )
        if holders < self.need_ack:
            self.fail(f"{end} was acknowledged with {holders} of {self.need_ack}")

    @property
    def _lost_bytes(self) -> bool:
        return len(self.lives) > 1

    def _crash_slave(self) -> None:
        self._kill_slave()  # what its page cache acknowledged would be gone, which is known of it

    def _crash_all(self) -> None:
        self._crash_master()

    def _check_durable(self) -> None:
        self.beyond += any(slave.log.max_offset > self.master.log.max_offset for slave in self.slaves)

    def _is_far_ahead(self, slave: Slave) -> bool:
        theirs = self.master.log.data
        return slave.runs and not theirs.startswith(slave.log.data)

    def _operate(self, slave: Slave) -> None:
        if self._open_since:
            return  # a report of what is wiped here may be on its way, and would acknowledge a put
        if not self._lost_bytes:
            self.fail(f"{slave.name} has other bytes than a master that never lost any")
        self.replaced += 1
        slave.die(silently=False)
        slave.log.cut(0)
        slave.begin()


class LifeWithAJavaMaster(Life):
    KIND = "java-master"

    def make_master(self, world: World, on_answer: Callable[[int, PutMessageStatus], None]) -> Master:
        master = JavaMaster(world, self.need_ack, on_answer)
        master.on_beyond = lambda report, end: self.fail(
            f"a slave reports {report} to a master whose log ends at {end}"
        )
        return master

    def make_slave(self, world: World, name: str, master: Master, link: Link) -> Slave:
        slave = Slave(world, name, master, link)
        slave.asks_its_master = True
        return slave

    def _answered(self, end: int, status: PutMessageStatus) -> None:
        """What such a master answers is its own affair."""
        self.answers += 1
        self._open_since.pop(end)

    def _check_durable(self) -> None:
        """Its counting is not trusted, so nothing is owed."""

    def _is_far_ahead(self, slave: Slave) -> bool:
        return False
