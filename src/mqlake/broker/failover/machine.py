"""Machine: what a replica does about who is master, as a coroutine that yields what it wants done.

    follows ──lease over, and this one is in the in-sync set──▶ stands ──its write is the one that counts──▶ leads
       ▲ ◀────────────────────────────────────────────────────────┘ another's was                             │
       └──── the broker starts again as a slave ◀── End ◀── another epoch, or handed over ◀───────────────────┘

    for reply in ...: action = life.send(reply)      Read, Write, Sleep, ... ; no I/O and no clock in here

Time. A master counts its lease from when it asked for it, a replica waits from when it heard of the newest renewal, and
each takes DRIFT for what their clocks may differ in speed: the first is over before the second is. Nothing is taken
from the service's own clock.

Writes. There is one value, compared and swapped. A write whose answer is lost counts as perhaps done until a write of
this replica, or a later version that it read, shows what became of it; until then every message waits for all who are
in the set in either case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from typing import NamedTuple, Protocol

from mqlake.broker.failover.record import ANYONE, Announcement, Record
from mqlake.errors import FailoverError
from mqlake.store.ha.membership import Member, Membership

DRIFT = 0.02
"""How much faster or slower than another a clock may run."""
POLLS = 12
"""Looks at the service in a lease, of one that follows."""
RENEWALS = 5
"""Renewals of a master in a lease."""
GRACE_S = 0.2
"""How long one that stands waits for others to say how far their logs go."""
BETTER_S = 1.0
"""How long it leaves the election to one with a longer log."""
ASIDE_S = 2.0
"""How long it leaves it to the one that an operator has named."""
SAMPLES = 5
"""Samples of the log's end in failoverMemberTimeout: a member that has had one of them is as late as that is old."""
TROUBLE_S = 1.0
"""How long a master that cannot take messages waits for that to pass, before it looks for one that can."""
SAY_AGAIN_S = 4.0
"""Between two announcements of one that follows: an older one may arrive late, and takes the newer one's place."""
JOIN_STEP_S = 0.02
JOIN_S = 1.0
"""How long messages wait for one that is about to join the set."""
HAND_OVER_STEP_S = 0.01
HAND_OVER_S = 10.0
"""How long a master waits for its successor to have everything."""
FAST_POLL_S = 0.1
"""Pause between two looks while a hand-over is under way."""


# ------------------------------------------------------------------ what it wants done


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Reply: Found, or None when the service does not say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """Swaps in `record` if the version is still that one. Reply: the new version, 0 when another write came first,
    None when nobody knows."""

    record: Record
    version: int


@dataclasses.dataclass(frozen=True, slots=True)
class Announce:
    """Lets the others know how far this log goes. Reply: the version is 1; None when nobody knows."""

    announcement: Announcement


@dataclasses.dataclass(frozen=True, slots=True)
class Announced:
    """Reply: a list of Announcement, or None when the service does not say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sleep:
    """May end sooner when something has changed. Reply: None."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class StopFollowing:
    """Nothing is appended to the log when the reply (None) comes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Follow:
    """The master of `record` sends the log from now on. Reply: None."""

    record: Record


@dataclasses.dataclass(frozen=True, slots=True)
class KeepEpoch:
    """The log is that of this epoch, durably before the reply (None)."""

    epoch: int


@dataclasses.dataclass(frozen=True, slots=True)
class Lead:
    """Messages are taken as soon as the broker can. Reply, at once: None."""

    record: Record


@dataclasses.dataclass(frozen=True, slots=True)
class Stuck:
    """An operator has to look. Reply: None."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The last action: this life of the broker is over, the next begins as a slave. `cut`: where its log ends then."""

    reason: str
    cut: int | None = None


Action = Read | Write | Announce | Announced | Sleep | StopFollowing | Follow | KeepEpoch | Lead | Stuck | End


class Found(NamedTuple):
    record: Record | None
    version: int
    """0 when there is no record."""


class Reply(NamedTuple):
    """When it was asked and answered, on this replica's clock, and the answer."""

    asked_at: float
    now: float
    found: Found | None = None
    version: int | None = None
    announced: list[Announcement] | None = None


Steps = Generator[Action, Reply, None]


class Own(Protocol):
    """The broker as its machine sees it."""

    def log_end(self) -> int: ...
    def why_no_puts(self) -> str:
        """Why its store could take no message if it led, as with a full disk; empty if it could."""
        ...

    def acks(self) -> Mapping[Member, int]:
        """The offset that each connected replica has acknowledged."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    lease_ms: int = 3000
    member_s: float = 2.0
    """A member of the set may lack what is older."""
    address: str = ""
    ha_address: str = ""
    founds: bool = False
    """It may be the first master of a group that has none yet."""


@dataclasses.dataclass(slots=True)
class _Term:
    """A master's knowledge of its own writes."""

    record: Record
    version: int
    renewed_at: float
    """When the newest that was done was asked for."""
    renewal: int
    perhaps: dict[int, tuple[Record, float]] = dataclasses.field(default_factory=dict)
    """Writes with an unknown outcome, by their renewal, and when they were first asked for."""
    over: str = ""
    """Why it is master no more."""


class Machine:
    """`epoch`: the last that this log followed, 0: none."""

    def __init__(
        self,
        own: Own,
        membership: Membership,
        settings: Settings,
        *,
        epoch: int = 0,
    ) -> None:
        self.membership = membership
        self.me = membership.own
        self.settings = settings
        self.epoch = epoch
        self.resigning = ""
        """Why this broker wants another one to be master, if it does."""
        self.record: Record | None = None
        """The newest that it has read or written."""
        self._own = own
        self._seen_version = -1
        self._seen_at = 0.0
        self._stood_for = 0
        """The epoch in which it left the election to another one."""
        self._caught_up: dict[Member, float] = {}
        self._sample = (0.0, 0)
        """When, and where the log ended then."""
        self._joining: dict[Member, float] = {}
        """Replicas that messages wait for already, and since when."""
        self._hand_over_since: float | None = None
        self._said: str | None = None
        """The announced reason why it takes no messages; None: none announced yet."""
        self._say_again_at = 0.0
        self._trouble_since: float | None = None
        self._asked_at = 0.0
        self._unable: frozenset[int] = frozenset()
        """Replicas that have announced that they take no messages."""

    def run(self) -> Steps:
        """The actions, one at a time; the last one is an End."""
        elected = yield from self._follow()
        if elected is not None:
            yield from self._lead(*elected)

    # ------------------------------------------------------------------ a slave

    def _follow(self) -> Generator[Action, Reply, tuple[Record, int, float] | None]:
        """Until it is elected: the record, its version, when it was asked for. None: after an End."""
        poll_s = self.settings.lease_ms / 1000 / POLLS
        followed: Record | None = None
        while True:
            reply = yield Read()
            if reply.found is None:
                yield Sleep(poll_s)
                continue
            record, version = reply.found
            if version != self._seen_version:
                self._seen_version, self._seen_at = version, reply.now
            self.record = record
            if (wrong := self._wrong(record)) is not None:
                yield wrong
                yield Sleep(poll_s)
                continue
            trouble = self._own.why_no_puts()
            if record is None:
                if self.settings.founds:
                    elected = yield from self._take_over(None, 0)
                    if elected is not None:
                        return elected
                yield Sleep(poll_s)
                continue
            if followed is None or record.epoch != followed.epoch or record.epoch != self.epoch:
                aligned = yield from self._align(record, follows=followed is not None)
                if aligned is None:
                    return None
                followed = None
                if not aligned:
                    yield Sleep(poll_s)
                    continue
            yield from self._announce(record, trouble, reply.now)
            if self._may_stand(record, reply.now, trouble):
                yield StopFollowing()
                followed = None
                elected = yield from self._stand(record, version)
                if elected is not None:
                    return elected
            elif record.master == self.me[0] and not record.released:
                if not self._is_me(
                    record
                ):  # else it takes over again, if no other one does that takes messages
                    yield self._another_store(record)
            elif followed is None and not record.released:
                yield Follow(record)
                followed = record
            yield Sleep(FAST_POLL_S if record.successor is not None else poll_s)

    def _align(self, record: Record, *, follows: bool) -> Generator[Action, Reply, bool | None]:
        """Makes sure that this log is a beginning of the one of the record's epoch. None: after an End."""
        if follows:
            yield StopFollowing()
        if (cut := self._cut(record)) is not None:
            yield cut
            return None if isinstance(cut, End) else False
        if record.epoch != self.epoch:
            yield KeepEpoch(record.epoch)
            self.epoch = record.epoch
        self.membership.follow(record.epoch)
        return True

    def _wrong(self, record: Record | None) -> Stuck | None:
        """A service that has forgotten what this store was part of."""
        known = 0 if record is None else record.epoch
        if known >= self.epoch:
            return None
        return Stuck(
            f"this store has been in epoch {self.epoch} of its group, and the failover service knows "
            f"{f'epoch {known}' if known else 'nothing'} of it: its data were lost, or it is another service. Bring "
            "them back; or, to found the group anew, delete failover.json in the stores of all its replicas"
        )

    def _another_store(self, record: Record) -> Stuck:
        return Stuck(
            f"replica {self.me[0]} is the master of epoch {record.epoch}, with another store than this one, or before "
            "its machine went down with messages that were not on its disk: another member of the in-sync set takes "
            "over; if there is none, `mqlake admin failover elect --unclean`"
        )

    def _cut(self, record: Record) -> Action | None:
        """Returns what has to be done before this log may continue with the master's."""
        log_end = self._own.log_end()
        try:
            end = record.end_for(self.epoch)
        except FailoverError as error:
            return Stuck(str(error)) if log_end else None
        if end is None or log_end <= end:
            return None
        if not self.epoch:
            return Stuck(
                f"this store has {log_end - end} bytes that the group does not know: its log begins anew at offset "
                f"{end}. Look with `mqlake store diff`; `mqlake store truncate --to {end}` keeps them in dropped/"
            )
        return End(
            f"{log_end - end} bytes were not replicated when the master of epoch {self.epoch + 1} began at {end}",
            end,
        )

    def _is_me(self, record: Record) -> bool:
        return record.master == self.me[0] and self.me in record.in_sync

    def _may_stand(self, record: Record, now: float, trouble: str) -> bool:
        """`trouble`: why it takes no messages. It leaves the election to those that do, and stands when none has come:
        a master that takes none lets consumers go on, and others join the set."""
        is_named = record.successor == self.me[0]
        if not (self.me in record.in_sync or (record.unclean and is_named)):
            return False
        if self.me[0] in record.excluded and not is_named:
            return False
        over_at = self._seen_at if record.released else self._seen_at + record.lease_s * (1 + DRIFT)
        was_master = self._is_me(record)
        if trouble or (
            not is_named and (record.successor not in (None, ANYONE) or (was_master and record.released))
        ):
            over_at += ASIDE_S  # also to who has just handed over
        # a master that was started again: nobody else uses its lease, unless it gave it away
        return (was_master and not record.released and not trouble) or now >= over_at

    def _stand(
        self, record: Record, version: int
    ) -> Generator[Action, Reply, tuple[Record, int, float] | None]:
        if (record.released or not self._is_me(record)) and record.successor != self.me[0]:
            log_end = self._own.log_end()
            trouble = self._own.why_no_puts()
            yield self._announcement(record, trouble)
            yield Sleep(GRACE_S)
            reply = yield Announced()
            if reply.announced is None:
                return None
            in_set = {replica for replica, _ in record.in_sync} - {self.me[0], *record.excluded}
            is_better = any(
                (bool(each.trouble), -each.log_end, each.replica) < (bool(trouble), -log_end, self.me[0])
                for each in reply.announced
                if each.epoch == record.epoch and each.replica in in_set
            )
            if is_better and self._stood_for != record.epoch:
                self._stood_for = record.epoch
                yield Sleep(BETTER_S)
                return None
        return (yield from self._take_over(record, version))

    def _announce(self, record: Record, trouble: str, now: float) -> Generator[Action, Reply, None]:
        """From time to time, and when what it has to say has changed."""
        if trouble != self._said or now >= self._say_again_at:
            self._say_again_at = now + SAY_AGAIN_S
            said = yield self._announcement(record, trouble)
            self._said = trouble if said.version else None

    def _announcement(self, record: Record, trouble: str) -> Announce:
        return Announce(
            Announcement(
                self.me[0], record.epoch, self._own.log_end(), self.settings.address, trouble=trouble
            )
        )

    def _take_over(
        self, record: Record | None, version: int
    ) -> Generator[Action, Reply, tuple[Record, int, float] | None]:
        """Writes the next epoch. None: another write came first."""
        own, settings = self._own, self.settings
        where = (own.log_end(), settings.address, settings.ha_address)
        if record is None:
            log_end, address, ha_address = where
            taken = Record.first(self.me, log_end, settings.lease_ms, address, ha_address)
        else:
            taken = dataclasses.replace(record.taken_over(self.me, *where), lease_ms=settings.lease_ms)
        asked_at: float | None = None
        while True:
            reply = yield Write(taken, version)
            asked_at = reply.asked_at if asked_at is None else asked_at
            if reply.version:
                return taken, reply.version, asked_at
            reply = yield Read()
            if reply.found is not None:
                if reply.found.record == taken:
                    return taken, reply.found.version, asked_at
                if reply.found.version != version:
                    return None
            yield Sleep(FAST_POLL_S)

    # ------------------------------------------------------------------ a master

    def _lead(self, record: Record, version: int, asked_at: float) -> Steps:
        membership, lease_s = self.membership, record.lease_s * (1 - DRIFT)
        yield KeepEpoch(record.epoch)
        self.epoch, self.record = record.epoch, record
        membership.lead(record.epoch, asked_at + lease_s, self._own.log_end())
        reply = yield Lead(record)
        term = _Term(record, version, asked_at, record.renewal)
        while True:
            wanted = self._wanted(term.record, reply.now)
            is_due = reply.now >= term.renewed_at + lease_s / RENEWALS
            if is_due or term.perhaps or wanted != term.record.in_sync:
                reply = yield from self._renew(term, wanted, lease_s)
                if term.over:
                    membership.stop("another broker is master")
                    yield End(term.over)
                    return
                self.record = term.record
                membership.require(self._all_of(term.record, term.record, term.perhaps))
            yield from self._resign_if_unable(term.record, reply.now)
            if self.resigning or term.record.successor is not None:
                done = yield from self._hand_over(term, reply.now)
                if done:
                    return
            elif self._hand_over_since is not None:
                self._stay()
            if self._hand_over_since is not None:
                pause_s = HAND_OVER_STEP_S
            elif self._joining:
                pause_s = JOIN_STEP_S
            elif term.perhaps:
                pause_s = lease_s / RENEWALS / 4
            else:
                pause_s = max(term.renewed_at + lease_s / RENEWALS - reply.now, 0.001)
            reply = yield Sleep(pause_s)

    def _renew(
        self, term: _Term, wanted: tuple[Member, ...], lease_s: float
    ) -> Generator[Action, Reply, Reply]:
        """One write of the record, with `wanted` as the set; what the service says last."""
        membership, perhaps, record = self.membership, term.perhaps, term.record
        if not (term.renewal in perhaps and perhaps[term.renewal][0].in_sync == wanted):
            term.renewal += 1  # else the same once more
        proposal = dataclasses.replace(record, in_sync=wanted, renewal=term.renewal)
        membership.require(self._all_of(record, proposal, perhaps))
        reply = yield Write(proposal, term.version)
        perhaps.setdefault(term.renewal, (proposal, reply.asked_at))
        if reply.version:
            term.record, term.version, term.renewed_at = proposal, reply.version, reply.asked_at
            perhaps.clear()
            membership.renew(reply.asked_at + lease_s)
            return reply
        reply = yield Read()
        if reply.found is None or reply.found.version == term.version:
            return reply
        found = reply.found.record
        if found is None or found.epoch != record.epoch or not self._is_me(found):
            self.record = found
            term.over = f"epoch {record.epoch} is over" if found else "the group's record is gone"
            return reply
        if (mine := perhaps.get(found.renewal)) is not None and mine[0] == found:
            term.renewed_at = mine[1]
            membership.renew(term.renewed_at + lease_s)
        term.record, term.version = found, reply.found.version
        term.renewal = max(term.renewal, found.renewal)
        perhaps.clear()
        return reply

    def _all_of(
        self, record: Record, proposal: Record, perhaps: Mapping[int, tuple[Record, float]]
    ) -> frozenset[Member]:
        """Everybody who is in the set, whatever became of the writes, and those who are about to join."""
        members = record.members | proposal.members | self._joining.keys()
        for each, _ in perhaps.values():
            members |= each.members
        return members

    def _wanted(self, record: Record, now: float) -> tuple[Member, ...]:
        """The in-sync set as it should be: without those that lag or are gone, with those that have everything."""
        own = self._own
        acks, log_end = own.acks(), own.log_end()
        sampled_at, sampled_end = self._sample
        for member, ack in acks.items():
            if ack >= log_end:
                self._caught_up[member] = (
                    now  # also when the last look was long ago, as while the service is slow
                )
            elif ack >= sampled_end:
                self._caught_up[member] = max(sampled_at, self._caught_up.get(member, 0.0))
            elif member in record.in_sync:
                self._caught_up.setdefault(member, now)
        for gone in self._caught_up.keys() - acks.keys():
            del self._caught_up[gone]
        if now - sampled_at >= self.settings.member_s / SAMPLES:
            self._sample = now, log_end
        wanted = {self.me}
        for member in record.members - {self.me}:
            is_late = now - self._caught_up.get(member, now) > self.settings.member_s
            if member in acks and not is_late and member[0] not in record.excluded:
                wanted.add(member)
        wanted |= self._joined(record, acks, sampled_end, now)
        return tuple(sorted(wanted))

    def _joined(
        self, record: Record, acks: Mapping[Member, int], sampled_end: int, now: float
    ) -> set[Member]:
        """Returns the replicas that may be written into the set. First every message waits for them; then, when they
        have all that was acknowledged before, they are in it."""
        for member in [each for each in self._joining if each in record.members or each not in acks]:
            del self._joining[member]
        for member, ack in acks.items():
            if member in record.members or member[0] in record.excluded or member[0] == self.me[0]:
                continue
            since = self._joining.get(member)
            if since is None and sampled_end <= ack:
                self._joining[member] = now
            elif since is not None and now - since > JOIN_S:
                del self._joining[member]
        if not self._joining:
            return set()
        self.membership.require(self.membership.members | self._joining.keys())
        acks, confirmed = self._own.acks(), self.membership.confirmed
        return {member for member in self._joining if acks.get(member, -1) >= confirmed}

    def _resign_if_unable(self, record: Record, now: float) -> Generator[Action, Reply, None]:
        """A master that cannot take messages hands over to one that can; without one it stays what it is."""
        trouble = self._own.why_no_puts()
        if not trouble or self.resigning or record.successor is not None:
            self._trouble_since = None
            return
        if self._trouble_since is None:
            self._trouble_since = now
        if now - self._trouble_since < TROUBLE_S:
            return
        self._trouble_since = now
        yield from self._ask_who_is_able()
        if self._successor(record) is not None:
            self.resigning = f"this broker takes no messages: {trouble}"

    def _ask_who_is_able(self) -> Generator[Action, Reply, None]:
        reply = yield Announced()
        if reply.announced is not None:
            self._unable = frozenset(each.replica for each in reply.announced if each.trouble)

    def _stay(self) -> None:
        """No hand-over is under way any more."""
        self.resigning, self._hand_over_since = "", None
        self.membership.pause("")

    def _hand_over(self, term: _Term, now: float) -> Generator[Action, Reply, bool]:
        """Lets another replica take over once it has everything. Returns True if this life is over."""
        membership, own, record = self.membership, self._own, term.record
        begins = self._hand_over_since is None
        if begins or (self._successor(record) is None and now - self._asked_at >= TROUBLE_S):
            self._asked_at = now
            yield from self._ask_who_is_able()
        target = self._successor(record)
        since = self._hand_over_since = now if self._hand_over_since is None else self._hand_over_since
        if record.successor == self.me[0] or now - since > HAND_OVER_S:
            self._stay()
            if record.successor is not None:
                dropped = dataclasses.replace(record, successor=None, unclean=False)
                reply = yield Write(dropped, term.version)
                if reply.version:
                    term.record, term.version = dropped, reply.version
            return False
        if target is None:
            return False
        membership.pause(f"the master is being moved to replica {target[0]}")
        if own.acks().get(target, -1) < own.log_end():
            return False
        why = f"replica {target[0]} becomes master" + (f": {self.resigning}" if self.resigning else "")
        membership.stop(why)
        yield Write(
            dataclasses.replace(
                record, renewal=record.renewal + 1, released=True, successor=target[0], unclean=False
            ),
            term.version,
        )
        yield End(why)
        return True

    def _successor(self, record: Record) -> Member | None:
        """The member that is to be master: the one that was named, or the one with the longest log; one that takes
        no messages is not."""
        acks = self._own.acks()
        able = [
            member
            for member in record.in_sync
            if member != self.me
            and member in acks
            and record.successor in (None, ANYONE, member[0])
            and (record.successor == member[0] or member[0] not in record.excluded)
            and member[0] not in self._unable
        ]
        return min(able, key=lambda member: (-acks[member], member), default=None)
