"""Failover in virtual time: what was promised holds in every life, and the simulation finds what would break it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest

from mqlake.broker.failover import machine as machine_module
from mqlake.broker.failover.machine import (
    ASIDE_S,
    HAND_OVER_S,
    TROUBLE_S,
    Action,
    Announce,
    End,
    Found,
    Machine,
    Reply,
    Settings,
    Sleep,
    StopFollowing,
    Stuck,
    Write,
)
from mqlake.broker.failover.record import Announcement, Record
from mqlake.store.ha.membership import Member, Membership
from tests.simulation.failover import FailoverLife, Replica, Service
from tests.simulation.life import BrokenPromiseError

SEEDS = range(1, 61)


def test_lives() -> None:
    lives = [FailoverLife(seed) for seed in SEEDS]
    for life in lives:
        life.run()
    # they were worth looking at: masters changed, messages were acknowledged, and many were not
    assert sum(life.elections for life in lives) > 2 * len(lives)
    assert sum(life.answers for life in lives) > 50 * len(lives)
    assert sum(life.puts for life in lives) > 1.5 * sum(life.answers for life in lives)


def test_a_seed_gives_the_same_life_each_time() -> None:
    assert FailoverLife(7).run() == FailoverLife(7).run() != FailoverLife(8).run()


def what_breaks(first: int = 1, among: str = "") -> str:
    """In the lives from `first` on: near one that is known to show the fault, so that it does not take long. `among`:
    of several promises that the same fault breaks, the one that is asked for."""
    for seed in range(first, first + 300):
        try:
            FailoverLife(seed).run()
        except BrokenPromiseError as error:
            if among in str(error):
                return str(error)
    return ""


def test_it_finds_a_lease_that_is_counted_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Reply.__new__

    def late(cls: type[Reply], _asked_at: float, now: float, **values: Any) -> Reply:
        return make(cls, now, now, **values)

    monkeypatch.setattr(Reply, "__new__", late)
    assert what_breaks(1, "hold the lease at the same time")


def test_it_finds_clocks_that_differ_by_more_than_is_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "DRIFT", -0.1)
    assert what_breaks(60, "hold the lease at the same time")


def test_it_finds_acknowledgements_before_the_set_has_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_wanted(_: Machine, __: Record, proposal: Record, *___: object) -> frozenset[Member]:
        return proposal.members

    monkeypatch.setattr(Machine, "_all_of", only_wanted)
    assert what_breaks(70, "is lost")


def test_it_finds_a_member_that_joins_without_what_was_acknowledged_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(_: Machine, record: Record, acks: dict[Member, int], *__: object) -> set[Member]:
        return {each for each in acks if each[0] not in record.excluded}

    monkeypatch.setattr(Machine, "_joined", at_once)
    assert what_breaks(330, "is lost")


def test_it_finds_a_cut_that_is_not_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process has the old bytes again, and finds nothing to cut any more."""

    def forgotten(replica: Replica, _: int) -> None:
        replica.epoch += 1

    monkeypatch.setattr(Replica, "cut", forgotten)
    found = what_breaks()
    assert "is no prefix" in found or "given twice" in found or "is lost" in found


def test_it_finds_a_master_that_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    require = Membership.require
    monkeypatch.setattr(Membership, "require", lambda membership, _: require(membership, ()))
    assert what_breaks(1, "is lost")


def test_it_finds_a_store_that_lost_messages_and_is_taken_for_the_one_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose_power = Replica.lose_power

    def keeps_its_number(replica: Replica) -> None:
        node = replica.node
        lose_power(replica)
        replica.node = node

    monkeypatch.setattr(Replica, "lose_power", keeps_its_number)
    assert what_breaks(1, "is lost")


def test_it_finds_a_master_that_does_not_know_that_its_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "why_no_puts", lambda _: "")
    assert what_breaks(1, "takes no messages")


def test_it_finds_an_operators_choice_that_a_change_of_masters_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken_over = Record.taken_over

    def forgets(record: Record, *by: Any) -> Record:
        return dataclasses.replace(taken_over(record, *by), successor=None)

    monkeypatch.setattr(Record, "taken_over", forgets)
    assert what_breaks(20, "which an operator has chosen")


def test_it_finds_a_service_that_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Service._apply

    def swaps_always(service: Service, action: Action) -> Any:
        if isinstance(action, Write):
            action = dataclasses.replace(action, version=service.version)
        return apply(service, action)

    monkeypatch.setattr(Service, "_apply", swaps_always)
    assert what_breaks(1, "has two masters")


def test_it_finds_messages_that_are_shown_before_all_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = Replica.acknowledge

    def shows_all(replica: Replica) -> None:
        acknowledge(replica)
        if replica.membership.leads:
            replica.all.shown(replica, len(replica.log))

    monkeypatch.setattr(Replica, "acknowledge", shows_all)
    found = what_breaks()
    assert "the confirmed end went back" in found or "was given twice" in found


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<lives> asks for it")
def test_campaign() -> None:
    first = int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1000"))
    for seed in range(first, first + int(os.environ["MQLAKE_CAMPAIGN"])):
        FailoverLife(seed).run()


class _Whole:
    """A broker whose log ends at 200. `acks`: of those who follow it."""

    def __init__(self, trouble: str = "", acks: dict[Member, int] | None = None) -> None:
        self._trouble, self._acks = trouble, acks or {}

    def log_end(self) -> int:
        return 200

    def why_no_puts(self) -> str:
        return self._trouble

    def acks(self) -> dict[Member, int]:
        return self._acks


def test_who_has_handed_over_leaves_the_election_to_the_one_it_named() -> None:
    """Started again as a slave it found itself in the record, and took the next epoch before the other had looked."""
    me, other = (0, 7), (1, 8)
    machine = Machine(_Whole(), Membership(me, lambda: 0.0), Settings(), epoch=1)
    record = Record(1, 0, (me, other), ((1, 0),), 3000, released=True, successor=1)
    steps = machine.run()
    action: object = next(steps)
    now = 10.0
    while now < 10.0 + ASIDE_S:
        assert not isinstance(action, StopFollowing | Write | Stuck | End), action
        if isinstance(action, Sleep):
            now += action.seconds
        action = steps.send(Reply(now, now, Found(record, 7)))
    while not isinstance(action, Write):  # the other one does not come
        now += getattr(action, "seconds", 0.0)
        action = steps.send(Reply(now, now, Found(record, 7), announced=[]))
    assert action.record.master == 0


def drive(
    machine: Machine,
    record: Record,
    announced: list[Announcement],
    seconds: float,
    order: tuple[float, Callable[[Record], Record]] | None = None,
) -> list[Action]:
    """What it does in so many seconds; a service that has `record` answers at once. `order`: who else writes, when."""
    steps, done, now, version = machine.run(), [], 10.0, 7
    action: Action = next(steps)
    while now < 10.0 + seconds:
        done.append(action)
        if isinstance(action, End):
            break
        if isinstance(action, Sleep):
            now += min(max(action.seconds, 0.001), 0.05)  # something changes all the time
        if order is not None and now >= 10.0 + order[0]:
            record, version, order = order[1](record), version + 1, None
        written: int | None = 1
        if isinstance(action, Write):
            if action.version == version:
                record, version = action.record, version + 1
                written = version
            else:
                written = 0
        reply = Reply(now, now, Found(record, version), version=written, announced=announced)
        action = steps.send(reply)
    return done


def test_who_takes_no_messages_stands_only_when_nobody_else_does() -> None:
    """Elected with a full disk it refused sends, ended, and two such replicas took 32 epochs in a minute."""
    me, other = (1, 7), (0, 8)
    record = Record(1, 0, (me, other), ((1, 0),), 3000)
    machine = Machine(_Whole("the disk is full"), Membership(me, lambda: 0.0), Settings(), epoch=1)
    done = drive(machine, record, [], 3.06 + ASIDE_S - 0.3)
    assert not [each for each in done if isinstance(each, Write)]
    said = {each.announcement.trouble for each in done if isinstance(each, Announce)}
    assert said == {"the disk is full"}
    machine = Machine(_Whole("the disk is full"), Membership(me, lambda: 0.0), Settings(), epoch=1)
    done = drive(machine, record, [], 3.06 + ASIDE_S + 1.0)
    assert next(each.record.master for each in done if isinstance(each, Write)) == 1


@pytest.mark.parametrize("trouble", ["", "the disk is full"])
def test_a_master_that_takes_no_messages_hands_over_only_to_one_that_does(trouble: str) -> None:
    me, other = (1, 7), (0, 8)
    record = Record(1, 1, (me, other), ((1, 0),), 3000)
    own = _Whole("the disk is full", {other: 200})
    machine = Machine(own, Membership(me, lambda: 0.0), Settings(), epoch=1)
    others = [Announcement(0, 1, 200, trouble=trouble)]
    done = drive(machine, record, others, 3.06 + ASIDE_S + TROUBLE_S + 2.0)
    handed_over = [each.record.successor for each in done if isinstance(each, Write) and each.record.released]
    assert handed_over == ([] if trouble else [0])
    assert isinstance(done[-1], End) is not bool(trouble)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_choice_outlives_the_master_that_did_not_carry_it_out(unclean: bool) -> None:
    """A master that was started again took the next epoch, and forgot whom an operator had named."""
    me, other = (0, 7), (1, 8)
    record = Record(1, 0, (me, other), ((1, 0),), 3000, successor=1, unclean=unclean)
    machine = Machine(_Whole(), Membership(me, lambda: 0.0), Settings(), epoch=1)
    first = next(each for each in drive(machine, record, [], 4.0) if isinstance(each, Write))
    assert first.record.successor == (None if unclean else 1)


def test_a_choice_that_was_dropped_leaves_nothing_to_the_next_one() -> None:
    """The clock of the first one ran on, so that the next was dropped at once; and messages could stay refused."""
    me, other = (0, 7), (1, 8)
    record = Record(1, 0, (me, other), ((1, 0),), 3000, successor=1)
    acks = {other: 100}
    now = [0.0]
    machine = Machine(_Whole(acks=acks), Membership(me, lambda: now[0]), Settings(member_s=1000.0), epoch=1)

    def again(found: Record) -> Record:
        assert found.successor is None, "it is dropped when the other one does not come"
        assert machine.membership.why_not(now[0]) == "", "messages are taken meanwhile"
        acks[other] = 200
        return dataclasses.replace(found, successor=1)

    done = drive(machine, record, [], 40.0, (2 * HAND_OVER_S + 3.0, again))
    assert isinstance(done[-1], End)
    [last] = [each.record for each in done if isinstance(each, Write) and each.record.released]
    assert last.successor == 1
