"""A life of a master and its slaves under faults that a seed decides, and what must hold in each.

an answer 0     as many hosts as were asked for have the bytes on their disks at that moment, and for ever
an append       before it the slave's log is a prefix of the log of the master that sends
trouble         a slave that is ahead or diverged says so, changes nothing, and owes nobody what has to be cut
the end         when faults stop, every slave has what its master has, in bounded time; every put was answered
"""

from __future__ import annotations

from collections.abc import Callable

from mqlake.store.results import PutMessageStatus
from tests.simulation.roles import HOUSEKEEPING_S, SLAVE_TIMEOUT_S, Master, Slave
from tests.simulation.world import Link, LinkState, World

SETTLE_S = 60.0
COMPARED = 8192
"""Bytes before the end of a record that are compared: what differs once differs up to the end."""


class BrokenPromiseError(AssertionError):
    pass


class Life:
    KIND = "mqlake"
    """What `python -m tests.simulation --kind` calls it."""

    def __init__(self, seed: int, *, seconds: float = 15.0) -> None:
        self.seed = seed
        self.seconds = seconds
        self.world = World(seed)
        dice = self.world.dice
        self.need_ack = dice.choice((2, 2, 3))
        self.master = self.make_master(self.world, self._answered)
        self.slaves: list[Slave] = []
        self.acknowledged = 0
        """End of the last record that was answered 0: all before it is owed."""
        self.answers = self.puts = 0
        self.forgotten = 0
        """Puts of a master that died: nobody is owed an answer."""
        self._open_since: dict[int, float] = {}
        self.lives = [bytes(self.master.log.data)]
        for number in range(dice.choice((1, 1, 2))):
            link = Link(self.world)
            link.delay = dice.choice((0.0005, 0.005, 0.05))
            slave = self.make_slave(self.world, f"slave{number}", self.master, link)
            self._watch(slave)
            self.slaves.append(slave)

    def make_master(self, world: World, on_answer: Callable[[int, PutMessageStatus], None]) -> Master:
        return Master(world, self.need_ack, on_answer)

    def make_slave(self, world: World, name: str, master: Master, link: Link) -> Slave:
        return Slave(world, name, master, link)

    def fail(self, text: str) -> None:
        recent = "\n".join(self.world.recent)
        raise BrokenPromiseError(
            f"seed {self.seed}: {text}\n{recent}\n"
            f"again: python -m tests.simulation --kind {self.KIND} --seed {self.seed} --lives 1"
        )

    # --- what must hold

    def _answered(self, end: int, status: PutMessageStatus) -> None:
        self.answers += 1
        begun = self._open_since.pop(end)
        self.world.note(f"answer {status.name} for {end}")
        if status is not PutMessageStatus.PUT_OK:
            return
        holders = 1 + sum(self._has(slave, end, slave.log.synced) for slave in self.slaves)
        if self.master.log.synced < end:
            self.fail(f"{end} was acknowledged, and the master's disk has {self.master.log.synced}")
        if holders < self.need_ack:
            self.fail(f"{end} was acknowledged with {holders} of {self.need_ack} disks")
        if self.world.now - begun > SLAVE_TIMEOUT_S + 1 and not self._was_paused_since(begun):
            self.fail(f"{end} was answered after {self.world.now - begun:.2f} s")
        self.acknowledged = max(self.acknowledged, end)

    def _has(self, slave: Slave, end: int, on_disk: int) -> bool:
        """True if the slave has the master's bytes before `end`."""
        start = max(0, end - COMPARED)
        return on_disk >= end and slave.log.data[start:end] == self.master.log.data[start:end]

    def _was_paused_since(self, begun: float) -> bool:
        return self._paused_until > begun

    _paused_until = 0.0

    def _watch(self, slave: Slave) -> None:
        def before_append(offset: int) -> None:
            theirs = self.master.log.data
            if (
                slave.log.data[:offset] != theirs[:offset]
                and slave.log.data[:offset] != self.lives[-1][:offset]
            ):
                self.fail(f"{slave.name} appends at {offset} to what is no prefix of its master's log")

        slave.log.on_append = before_append

    def _check_durable(self) -> None:
        held = sum(self._has(slave, self.acknowledged, slave.log.max_offset) for slave in self.slaves)
        if self.acknowledged and held < self.need_ack - 1:
            self.fail(f"{self.acknowledged} was acknowledged, and {held} slaves have it")
        if self.master.log.max_offset < self.acknowledged:
            self.fail(
                f"{self.acknowledged} was acknowledged, the master's log ends at {self.master.log.max_offset}"
            )

    # --- the life

    def run(self) -> str:
        """The digest of what happened. BrokenPromiseError."""
        world = self.world
        self._produce()
        self._fault()
        world.run(self.seconds)
        self._heal()
        self._settle()
        return world.trace

    def _produce(self) -> None:
        master, dice = self.master, self.world.dice
        if master.runs and not master.is_paused:
            for _ in range(dice.choice((1, 1, 3))):
                self.puts += 1
                self._put()
        self.world.after(dice.expovariate(3), self._produce)

    def _put(self) -> None:
        size = self.world.dice.choice((16, 40, 200, 700))
        # the answer may come at once, so what it closes has to be open
        self._open_since[self.master.log.end_of_next(size)] = self.world.now
        self.master.put(size)

    def _fault(self) -> None:
        dice = self.world.dice
        faults = [self._kill_slave, self._crash_slave, self._pause_slave, self._link, self._link, self._disk]
        faults += [self._kill_master, self._crash_master, self._pause_master, self._crash_all]
        dice.choice(faults)()
        self._check_durable()
        self.world.after(dice.expovariate(0.7), self._fault)

    def _some_slave(self) -> Slave:
        return self.world.dice.choice(self.slaves)

    def _restart_slave(self, slave: Slave) -> None:
        if not slave.runs:
            slave.begin()

    def _end_slave(self, slave: Slave, *, crash: bool) -> None:
        if not slave.runs:
            return
        self.world.note(f"{slave.name} {'crashes' if crash else 'is killed'}")
        slave.die(silently=crash)
        if crash:
            slave.log.crash(self.world.dice.randint(0, len(slave.log.ends)))
        self.world.after(self.world.dice.uniform(0, 6), lambda: self._restart_slave(slave))

    def _kill_slave(self) -> None:
        self._end_slave(self._some_slave(), crash=False)

    def _crash_slave(self) -> None:
        self._end_slave(self._some_slave(), crash=True)

    def _end_master(self, *, crash: bool) -> None:
        master, dice = self.master, self.world.dice
        if not master.runs:
            return
        self.world.note(f"master {'crashes' if crash else 'is killed'}")
        self.lives.append(bytes(master.log.data))
        master.die(silently=crash)
        self._open_since.clear()
        if crash:
            master.log.crash(dice.randint(0, len(master.log.ends)))

        def begin() -> None:
            if not master.runs:
                master.begin()

        self.world.after(dice.uniform(0, 6), begin)

    def _kill_master(self) -> None:
        self._end_master(crash=False)

    def _crash_master(self) -> None:
        self._end_master(crash=True)

    def _crash_all(self) -> None:
        if self.world.dice.random() < 0.3:
            self._end_master(crash=True)
            for slave in self.slaves:
                self._end_slave(slave, crash=True)

    def _pause_slave(self) -> None:
        slave = self._some_slave()
        if slave.runs and not slave.is_paused:
            self.world.note(f"{slave.name} is paused")
            slave.pause()
            self.world.after(self.world.dice.choice((0.3, 1.0, HOUSEKEEPING_S * 2)), slave.resume)

    def _pause_master(self) -> None:
        master = self.master
        if master.runs and not master.is_paused:
            self.world.note("master is paused")
            master.pause()
            seconds = self.world.dice.choice((0.3, 1.0, HOUSEKEEPING_S * 2))
            self._paused_until = self.world.now + seconds
            self.world.after(seconds, master.resume)

    def _link(self) -> None:
        slave, dice = self._some_slave(), self.world.dice
        state: LinkState = dice.choice(("hung", "hung", "cut"))
        self.world.note(f"link of {slave.name}: {state}")
        slave.link.set(state)
        self.world.after(dice.choice((0.2, 1.0, HOUSEKEEPING_S * 2.5)), lambda: slave.link.set("up"))

    def _disk(self) -> None:
        slave = self._some_slave()
        self.world.note(f"disk of {slave.name} is full")
        slave.log.disk_is_full = True

        def free() -> None:
            slave.log.disk_is_full = False

        self.world.after(self.world.dice.uniform(0.2, 5), free)

    # --- the end

    def _heal(self) -> None:
        world = self.world
        world.note("all is healed")
        # what was planned goes on as planned, but no new fault
        self._fault = lambda: None  # type: ignore[method-assign]
        world.run(10)
        self._produce = lambda: None  # type: ignore[method-assign]
        for slave in self.slaves:
            slave.link.set("up")
            slave.log.disk_is_full = False
            if slave.is_paused:
                slave.resume()
            self._restart_slave(slave)
        if self.master.is_paused:
            self.master.resume()
        if not self.master.runs:
            self.master.begin()

    def _settle(self) -> None:
        world, end = self.world, self.world.now + SETTLE_S
        while world.now < end and not self._is_settled():
            world.run(1.0)
            for slave in self.slaves:
                if slave.is_elsewhere or self._is_far_ahead(slave):
                    self._operate(slave)
        if not self._is_settled():
            states = ", ".join(
                f"{slave.name} {slave.log.max_offset} {slave.client.trouble.value} {slave.client.trouble_text}"
                for slave in self.slaves
            )
            self.fail(
                f"no agreement {SETTLE_S:g} s after all was healed: master {self.master.log.max_offset}, {states}"
            )
        self._check_durable()
        if self._open_since:
            self.fail(f"puts without an answer: {sorted(self._open_since)[:5]}")

    def _is_settled(self) -> bool:
        return all(slave.log.data == self.master.log.data for slave in self.slaves) and not self._open_since

    def _is_far_ahead(self, slave: Slave) -> bool:
        """By more than it begins a connection with: its master closes that and says so; so do both ends to whoever
        compares them."""
        return self.master.runs and slave.log.max_offset - slave.verify_bytes > self.master.log.max_offset

    def _operate(self, slave: Slave) -> None:
        """What its operator does with a slave that says it is ahead or diverged: cuts, and starts it again."""
        at = self.master.log.max_offset if self._is_far_ahead(slave) else slave.client.diverged_at
        self.world.note(f"{slave.name} is cut at {at}")
        if at is None:
            self.fail(f"{slave.name} is {slave.client.trouble.value}, and does not say from where on")
            return
        if len(self.lives) == 1:
            self.fail(f"{slave.name} is {slave.client.trouble.value} of a master that never lost anything")
        slave.die(silently=False)
        slave.log.cut(at)
        slave.begin()
        self._check_durable()
