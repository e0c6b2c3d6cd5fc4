"""A life of a failover group in virtual time: replicas whose clocks drift, a service that is slow, lost, answers twice.

Replica     the real Machine and Membership over a model log; may be killed, paused, cut off
Service     one value that is compared and swapped; requests and answers are late, lost, or come twice
FailoverLife     faults for some seconds, then peace; the promises are looked at with each event
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from mqlake.broker.failover.machine import (
    DRIFT,
    Action,
    Announce,
    Announced,
    End,
    Follow,
    Found,
    KeepEpoch,
    Lead,
    Machine,
    Read,
    Reply,
    Settings,
    Sleep,
    Steps,
    StopFollowing,
    Stuck,
    Write,
)
from mqlake.broker.failover.record import Announcement, Record
from mqlake.store.ha.membership import Member, Membership
from tests.simulation.life import BrokenPromiseError
from tests.simulation.world import Host, World

LEASE_S = 3.0
PEACE_S = 40.0
CHOICE_S = 15.0
"""After so long an operator's choice has come true."""
KIND = "failover"


class Service:
    def __init__(self, world: World) -> None:
        self.world = world
        self.value: bytes | None = None
        self.version = 0
        self.announced: dict[int, Announcement] = {}
        self.is_up = True
        self.badness = world.dice.choice((0.0, 0.01, 0.05))
        """How often requests and answers are late, lost or doubled."""
        self.cut_off: set[str] = set()
        self.slow: set[str] = set()
        """Whose answers are late."""

    def ask(
        self, host: Host, action: Action, done: Callable[[Found | int | list[Announcement] | None], None]
    ) -> None:
        """`done` once: with the answer, or None when it takes too long."""
        world, dice = self.world, self.world.dice
        answered, life = False, host.life

        def answer(value: Found | int | list[Announcement] | None) -> None:
            nonlocal answered
            if not answered and host.life == life:
                answered = True
                done(value)

        def arrive() -> None:
            if not self.is_up or host.name in self.cut_off:
                if dice.random() < 0.5:  # it waits in a queue, and is done when nobody expects it any more
                    world.after(dice.uniform(0.1, 4.0), arrive)
                return
            value = self._apply(action)
            if host.name in self.cut_off or (dice.random() < self.badness):
                return
            late = dice.uniform(0.3, 1.5) if host.name in self.slow else 0.0
            world.after(self._delay() + late, lambda: answer(value), host)

        if not (dice.random() < self.badness):
            world.after(self._delay(), arrive)
        if dice.random() < self.badness:
            world.after(self._delay() * 3, arrive)
        world.after(dice.uniform(0.5, 2.5), lambda: answer(None), host)

    def _delay(self) -> float:
        dice = self.world.dice
        if dice.random() < self.badness:
            return dice.uniform(0.05, 3.5)
        return dice.uniform(0.0005, 0.01)

    def _apply(self, action: Action) -> Found | int | list[Announcement] | None:
        if isinstance(action, Read):
            return Found(None if self.value is None else Record.from_json(self.value), self.version)
        if isinstance(action, Write):
            if action.version != self.version:
                return 0
            self.value, self.version = action.record.to_json(), self.version + 1
            return self.version
        if isinstance(action, Announce):
            self.announced[action.announcement.replica] = action.announcement
            return 1
        return list(self.announced.values())


class Replica(Host):
    """One broker: its disk outlives its processes."""

    def __init__(self, life: FailoverLife, number: int) -> None:
        super().__init__(life.world, f"r{number}")
        self.all = life
        self.number = number
        self.rate = 1 + life.world.dice.uniform(-DRIFT, DRIFT) * 0.98
        self.disk: list[int] = []
        """Messages by their offset; the log as the kernel has it."""
        self.epoch = 0
        self.node = life.world.dice.getrandbits(31)
        self.is_full = False
        """Its disk takes the log of a master, and no messages."""
        self.start()

    def clock(self) -> float:
        return self.world.now * self.rate

    def start(self) -> None:
        self.runs = True
        self.log = list(self.disk)
        self.membership = Membership((self.number, self.node), self.clock)
        settings = Settings(lease_ms=int(LEASE_S * 1000), founds=self.number == 0)
        self.machine = Machine(self, self.membership, settings, epoch=self.epoch)
        self.steps: Steps = self.machine.run()
        self.follows: Record | None = None
        self.connection = 0
        """Its number; one that is older carries nothing more."""
        self.reported: dict[Member, int] = {}
        self.by_connection: dict[Member, int] = {}
        self.waiting: list[int] = []
        """Offsets of messages that are not acknowledged yet, ascending."""
        self.stuck = ""
        self.heard = 0.0
        self._act(next(self.steps))

    def kill(self) -> None:
        self.die(silently=True)

    def lose_power(self) -> None:
        """What was not synced is gone in part; the store is another member from now on."""
        self.kill()
        dice = self.world.dice
        if dice.random() < 0.7:
            del self.disk[len(self.disk) - dice.randrange(min(len(self.disk), 5) + 1) :]
        self.node = dice.getrandbits(31)

    # --- what the machine sees

    def log_end(self) -> int:
        return len(self.log)

    def why_no_puts(self) -> str:
        return "the disk is full" if self.is_full else ""

    def acks(self) -> Mapping[Member, int]:
        return dict(self.reported)

    # --- what it wants done

    def _step(self, reply: Reply) -> None:
        self._act(self.steps.send(reply))

    def _act(self, action: Action) -> None:
        asked_at = self.clock()
        life, world = self.all, self.world

        def reply_soon(delay: float = 0.0) -> None:
            world.after(delay, lambda: self._step(Reply(asked_at, self.clock())), self)

        match action:
            case Read() | Write() | Announce() | Announced():

                def done(value: Found | int | list[Announcement] | None) -> None:
                    now = self.clock()
                    if isinstance(value, Found):
                        self._step(Reply(asked_at, now, found=value))
                    elif isinstance(value, list):
                        self._step(Reply(asked_at, now, announced=value))
                    else:
                        self._step(Reply(asked_at, now, version=value))

                life.service.ask(self, action, done)
            case Sleep(seconds):
                reply_soon(seconds / self.rate * world.dice.uniform(1.0, 1.05))
            case StopFollowing():
                self.follows = None
                self.connection += 1
                reply_soon()
            case Follow(record):
                self.follows = record
                self._connect()
                reply_soon()
            case KeepEpoch(epoch):
                self.epoch = epoch
                reply_soon(world.dice.uniform(0, 0.01))
            case Lead(record):
                life.leads(self, record)
                reply_soon()
            case Stuck(reason):
                self.stuck = reason
                reply_soon()
            case End(reason, cut):
                world.note(f"{self.name} ends: {reason}")
                self.die(silently=True)
                world.after(world.dice.uniform(0.1, 0.5), lambda: self._again(cut))

    def _again(self, cut: int | None) -> None:
        if self.runs:  # who was to start it after a kill came first, and no two processes have one store
            return
        if cut is not None and len(self.disk) > cut:
            self.cut(cut)
        if self.world.dice.random() < 0.1:  # killed between the cut and the epoch
            self.world.after(0.5, lambda: self._again(None))
        elif not self.runs:
            self.start()

    def cut(self, at: int) -> None:
        del self.disk[at:]

    # --- the log between them

    def _connect(self) -> None:
        self.connection += 1
        number, record, life, world = self.connection, self.follows, self.all, self.world
        if record is None:
            return
        master = life.replicas[record.master]
        delay = world.dice.uniform(0.001, 0.02)

        def hello() -> None:
            if not life.are_linked(self, master) or not master.runs:
                world.after(0.3, again, self)
                return
            world.after(0, welcome, master)

        def again() -> None:
            if self.connection == number and self.follows is record:
                self._connect()

        def welcome() -> None:
            membership = master.membership
            if not (membership.leads and membership.epoch == record.epoch):
                world.after(0.3, again, self)
                return
            me = self.membership.own
            master.by_connection[me] = number
            master.reported.pop(me, None)
            serve()

        def serve() -> None:
            """On the master: what has come."""
            me = self.membership.own
            if master.by_connection.get(me) != number:
                return
            if not life.are_linked(self, master) or not self.runs:
                if world.dice.random() < 0.3:
                    master.by_connection.pop(me, None)
                    master.reported.pop(me, None)
                    world.after(0.1, again, self)
                    return
                world.after(0.05, serve, master)
                return
            data = list(master.log)
            world.after(world.dice.uniform(0.001, 0.03), lambda: arrive(data), self)
            world.after(world.dice.uniform(0.005, 0.06), serve, master)

        def arrive(data: list[int]) -> None:
            if self.connection != number or self.follows is not record:
                return
            if not life.are_linked(self, master):
                return
            self.heard = world.now
            if len(self.log) < len(data):
                some = data[len(self.log) : len(self.log) + world.dice.randint(1, 4)]
                self.log += some
                self.disk += some
            end, me = len(self.log), self.membership.own

            def report() -> None:
                if master.by_connection.get(me) == number and life.are_linked(self, master):
                    master.reported[me] = max(end, master.reported.get(me, 0))
                    master.acknowledge()

            world.after(world.dice.uniform(0.001, 0.02), report, master)

        def watch() -> None:
            """A slave leaves a connection on which nothing comes."""
            if self.connection == number and self.follows is record:
                if world.now - self.heard > 3.0:
                    self._connect()
                else:
                    world.after(1.0, watch, self)

        self.heard = world.now
        world.after(3.5, watch, self)
        world.after(delay, hello)

    # --- messages

    def put(self, message: int) -> None:
        if not self.runs or self.is_full or self.membership.why_not(self.clock()):
            return
        self.log.append(message)
        self.disk.append(message)
        self.waiting.append(len(self.log) - 1)
        self.acknowledge()

    def acknowledge(self) -> None:
        until = self.membership.confirm(self.acks(), len(self.log), self.clock())
        while self.waiting and self.waiting[0] < until:
            self.all.acknowledged(self, self.waiting.pop(0))
        if until > 0:
            self.all.shown(self, until)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """An operator's, of whom to be master."""

    replica: Replica
    at: float


class FailoverLife:
    """`run()` raises BrokenPromiseError, with the seed."""

    KIND = KIND

    def __init__(self, seed: int, *, seconds: float = 20.0) -> None:
        self.seed, self.seconds = seed, seconds
        self.world = world = World(seed)
        self.service = Service(world)
        self.puts = self.answers = self.elections = self.choices = 0
        self._acknowledged: dict[int, int] = {}
        """Offset to message."""
        self._shown: list[int] = []
        """To consumers, by offset."""
        self._masters: dict[int, Member] = {}
        self._cut_links: set[frozenset[int]] = set()
        self._chosen: Choice | None = None
        """What an operator said last."""
        self.is_peace = False
        self.pace = world.dice.choice((0.3, 0.6, 1.2))
        """Faults in a second."""
        self.replicas: list[Replica] = []
        for number in range(world.dice.choice((2, 2, 3))):
            self.replicas.append(Replica(self, number))

    def are_linked(self, one: Replica, other: Replica) -> bool:
        return frozenset((one.number, other.number)) not in self._cut_links

    def broken(self, what: str) -> BrokenPromiseError:
        recent = "\n".join(self.world.recent)
        return BrokenPromiseError(
            f"{what}\n{recent}\nagain: python -m tests.simulation --kind {KIND} --seed {self.seed} --lives 1"
        )

    # --- promises

    def leads(self, replica: Replica, record: Record) -> None:
        me = replica.membership.own
        self.elections += 1
        self.world.note(f"{replica.name} leads epoch {record.epoch} from {len(replica.log)}")
        if self._masters.setdefault(record.epoch, me) != me:
            raise self.broken(f"epoch {record.epoch} has two masters")
        for offset, message in self._acknowledged.items():
            if offset >= len(replica.log) or replica.log[offset] != message:
                raise self.broken(
                    f"message {message}, acknowledged at {offset}, is lost: {replica.name} leads"
                )
        if len(self._shown) > len(replica.log):
            raise self.broken(f"the confirmed end went back from {len(self._shown)} to {len(replica.log)}")
        if self._chosen is not None and self._chosen.replica is replica:
            self._chosen = None
        self.one_lease()

    def acknowledged(self, replica: Replica, offset: int) -> None:
        self.answers += 1
        self._acknowledged[offset] = replica.log[offset]
        self.one_lease()

    def shown(self, replica: Replica, until: int) -> None:
        known = len(self._shown)
        self._shown += replica.log[known:until]
        if replica.log[max(0, known - 3) : known] != self._shown[max(0, known - 3) : known]:
            raise self.broken(f"a queue offset before {known} was given twice")

    def one_lease(self) -> None:
        holders = [
            each.name
            for each in self.replicas
            if each.runs and each.membership.leads and each.membership.lease_left(each.clock()) > 0
        ]
        if len(holders) > 1:
            raise self.broken(f"{' and '.join(holders)} hold the lease at the same time")

    def _look_at_choice(self, choice: Choice) -> None:
        """What an operator has chosen is so by now, or the one that was to be master failed."""
        replica = choice.replica
        if self._chosen is not choice or not replica.runs or replica.is_paused:
            return
        raise self.broken(f"{replica.name} is not master, which an operator has chosen at {choice.at:.4f}")

    def _fails(self, *replicas: Replica) -> None:
        """A fault of one of these: what an operator has chosen need not come true."""
        if self._chosen is not None and self._chosen.replica in replicas:
            self._chosen = None

    # --- life

    def run(self) -> str:
        world, dice = self.world, self.world.dice
        for _ in range(int(self.seconds * 25)):
            world.after(dice.uniform(0, self.seconds), self._put)
        at = 0.5
        while at < self.seconds:
            world.after(at, self._fault)
            at += dice.expovariate(self.pace)
        world.run(self.seconds)
        self._heal()
        world.after(PEACE_S - CHOICE_S - 5.0, self._choose)
        before = self.answers
        for number in range(40):
            world.after(PEACE_S - 10 + number * 0.05, self._put)
        world.run(PEACE_S)
        self._check_end(before)
        return world.trace

    def _put(self) -> None:
        self.puts += 1
        message = self.puts
        for replica in self.replicas:  # clients try all
            if replica.runs and not replica.is_paused:
                replica.put(message)

    def _fault(self) -> None:
        if self.is_peace:
            return
        world, dice = self.world, self.world.dice
        replica = dice.choice(self.replicas)
        masters = [each for each in self.replicas if each.runs and each.membership.leads]
        if masters and dice.random() < 0.5:
            replica = masters[0]
        fault = dice.choice(
            (
                "kill",
                "kill",
                "power",
                "pause",
                "link",
                "cut off",
                "worse",
                "service",
                "move",
                "exclude",
                "full",
            )
        )
        if fault == "power" and dice.random() < 0.7:  # more often there would soon be no member left
            fault = "link"
        world.note(f"{fault} {replica.name}")
        if fault != "move":
            self._fails(*(self.replicas if fault in ("service", "link") else [replica]))
        match fault:
            case "kill" | "power":
                if replica.runs:
                    replica.kill() if fault == "kill" else replica.lose_power()
                    world.after(dice.uniform(0.1, dice.choice((1.0, 12.0))), lambda: self._start(replica))
            case "pause":
                if replica.runs and not replica.is_paused:
                    life = replica.life
                    replica.pause()
                    world.after(dice.uniform(0.5, 8.0), lambda: self._resume(replica, life))
            case "link":
                pair = frozenset(each.number for each in dice.sample(self.replicas, 2))
                self._cut_links.add(pair)
                world.after(dice.uniform(0.5, 6.0), lambda: self._cut_links.discard(pair))
            case "cut off":
                self.service.cut_off.add(replica.name)
                world.after(dice.uniform(0.5, 12.0), lambda: self.service.cut_off.discard(replica.name))
            case "worse":  # a network that is slow, and then is gone
                self.service.slow.add(replica.name)
                world.after(3.0, lambda: self.is_peace or self.service.cut_off.add(replica.name))
                world.after(3.0, lambda: self.service.slow.discard(replica.name))
                world.after(dice.uniform(6.0, 12.0), lambda: self.service.cut_off.discard(replica.name))
            case "service":
                self.service.is_up = False
                world.after(dice.uniform(0.5, 6.0), lambda: setattr(self.service, "is_up", True))
            case "full":
                replica.is_full = True
                world.after(
                    dice.uniform(1.0, 12.0), lambda: self.is_peace or setattr(replica, "is_full", False)
                )
            case "move" | "exclude":
                self._order(fault, replica)

    def _order(self, order: str, replica: Replica) -> None:
        """What an operator writes."""
        service = self.service
        if service.value is None or not service.is_up:
            return
        record = Record.from_json(service.value)
        excluded = {replica.number} if replica.number not in record.excluded else set()
        changed = (
            dataclasses.replace(record, successor=replica.number)
            if order == "move"
            else dataclasses.replace(record, excluded=tuple(sorted(excluded)))
        )
        service.value, service.version = changed.to_json(), service.version + 1
        if order == "move":
            self._is_chosen(replica, record)

    def _is_chosen(self, replica: Replica, record: Record) -> None:
        """It comes true if nothing keeps the replica from it now, and nothing does later."""
        self._chosen = None
        is_master = record.master == replica.number and not record.released
        is_well = replica.runs and not replica.is_paused and not replica.is_full
        is_linked = all(self.are_linked(replica, each) for each in self.replicas if each is not replica)
        service = self.service
        hears = replica.name not in service.cut_off | service.slow and not service.badness
        is_able = replica.membership.own in record.in_sync and replica.number not in record.excluded
        if is_well and is_linked and hears and is_able and not is_master:
            self._chosen = choice = Choice(replica, self.world.now)
            self.choices += 1
            self.world.after(CHOICE_S, lambda: self._look_at_choice(choice))

    def _choose(self) -> None:
        """In peace, somebody else than the master."""
        service = self.service
        if service.value is None or any(each.is_full for each in self.replicas):
            return
        record = Record.from_json(service.value)
        others = [
            each
            for each in self.replicas
            if each.number != record.master and each.membership.own in record.in_sync
        ]
        if others:
            self._order("move", self.world.dice.choice(others))

    def _start(self, replica: Replica) -> None:
        if not replica.runs:
            replica.start()

    def _resume(self, replica: Replica, life: int) -> None:
        if replica.life == life and replica.is_paused:
            replica.resume()

    def _heal(self) -> None:
        self.is_peace = True
        service = self.service
        service.is_up, service.badness = True, 0.0
        service.cut_off.clear()
        service.slow.clear()
        self._cut_links.clear()
        stays_full = self.world.dice.choice((None, *self.replicas))
        for replica in self.replicas:
            replica.is_full = replica.is_full and replica is stays_full
        if service.value is not None:
            record = dataclasses.replace(Record.from_json(service.value), excluded=())
            members = {(each.number, each.node) for each in self.replicas}
            if not members & record.members:  # all that were in it lost power: an operator says who goes on
                record = dataclasses.replace(record, successor=record.master, unclean=True)
                self._acknowledged.clear()
                del self._shown[:]
            service.value, service.version = record.to_json(), service.version + 1
        for replica in self.replicas:
            if replica.is_paused:
                replica.resume()
            elif not replica.runs:
                replica.start()

    def _check_end(self, before: int) -> None:
        masters = [each for each in self.replicas if each.runs and each.membership.leads]
        if len(masters) != 1:
            states = ", ".join(
                f"{each.name}: {each.stuck or each.membership.refusal}" for each in self.replicas
            )
            raise self.broken(f"{len(masters)} masters in the end: {states}")
        if masters[0].is_full:
            raise self.broken(f"{masters[0].name} is master in the end, and takes no messages")
        if self.answers == before:
            raise self.broken("no message is acknowledged in the end")
        log = masters[0].log
        for offset, message in self._acknowledged.items():
            if offset >= len(log) or log[offset] != message:
                raise self.broken(f"message {message}, acknowledged at {offset}, is lost in the end")
        for replica in self.replicas:
            if replica.log != log[: len(replica.log)]:
                raise self.broken(f"the log of {replica.name} is no prefix of its master's")
            if len(log) - len(replica.log) > 5:
                raise self.broken(f"{replica.name} does not follow in the end: {replica.stuck}")
