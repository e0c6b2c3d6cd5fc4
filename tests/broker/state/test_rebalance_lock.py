from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqlake.broker.state.rebalance_lock import RebalanceLockManager
from mqlake.remoting.bodies.topic import MessageQueue
from tests.clock import Clock

LIVE_MS = 60_000
MQ = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(4)]


def manager() -> tuple[RebalanceLockManager, Clock]:
    clock = Clock(0)
    return RebalanceLockManager(clock), clock


def test_all_expired():
    locks, clock = manager()
    assert locks.is_lock_all_expired("g")  # nobody has locked anything
    assert locks.try_lock_batch("g", MQ[:2], "c") == set(MQ[:2])
    assert not locks.is_lock_all_expired("g")
    clock.now += LIVE_MS
    assert not locks.is_lock_all_expired("g")
    clock.now += 1
    assert locks.is_lock_all_expired("g")
    assert locks.is_lock_all_expired("another")


def test_one_queue():
    locks, clock = manager()
    assert locks.try_lock_batch("g", [MQ[0]], "c")
    assert locks.try_lock_batch("g", [MQ[0]], "c")  # again, by its holder
    assert not locks.try_lock_batch("g", [MQ[0]], "d")
    assert locks.try_lock_batch("other group", [MQ[0]], "d")
    clock.now += LIVE_MS + 1
    assert locks.try_lock_batch("g", [MQ[0]], "d")
    assert not locks.try_lock_batch("g", [MQ[0]], "c")


def test_locking_again_prolongs():
    locks, clock = manager()
    locks.try_lock_batch("g", [MQ[0]], "c")
    clock.now += LIVE_MS
    assert locks.try_lock_batch("g", [MQ[0]], "c")
    clock.now += LIVE_MS
    assert not locks.try_lock_batch("g", [MQ[0]], "d")


def test_the_holder_of_an_expired_lock_may_take_it_again():
    locks, clock = manager()
    locks.try_lock_batch("g", [MQ[0]], "c")
    clock.now += LIVE_MS + 1
    assert locks.try_lock_batch("g", [MQ[0]], "c")
    assert not locks.try_lock_batch("g", [MQ[0]], "d")


def test_a_batch_gets_what_is_free():
    locks, _ = manager()
    locks.try_lock_batch("g", [MQ[0]], "c")
    assert locks.try_lock_batch("g", MQ[:3], "d") == set(MQ[1:3])
    assert locks.try_lock_batch("g", MQ, "c") == {MQ[0], MQ[3]}
    assert locks.try_lock_batch("g", [], "c") == set()


def test_unlock():
    locks, _ = manager()
    locks.try_lock_batch("g", MQ[:2], "c")
    locks.unlock_batch("g", MQ, "d")  # not its own: nothing happens
    assert not locks.try_lock_batch("g", [MQ[0]], "d")
    locks.unlock_batch("g", MQ[:1], "c")
    assert locks.try_lock_batch("g", [MQ[0]], "d")
    locks.unlock_batch("no such group", MQ, "c")
    locks.unlock_batch("g", [MessageQueue(topic="never locked")], "c")


class Locks(RuleBasedStateMachine):
    """Against a dict of (holder, until) on the same clock."""

    def __init__(self) -> None:
        super().__init__()
        self.locks, self.clock = manager()
        self.held: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    groups = st.sampled_from(["g", "h"])
    clients = st.sampled_from(["c", "d", "e"])
    queues = st.sets(st.sampled_from(MQ))

    def holder(self, group: str, mq: MessageQueue) -> str | None:
        client, until = self.held.get((group, mq), (None, 0))
        return client if self.clock.now <= until else None

    @rule(group=groups, mqs=queues, client=clients)
    def lock(self, group: str, mqs: set[MessageQueue], client: str) -> None:
        free = {mq for mq in mqs if self.holder(group, mq) in (None, client)}
        assert self.locks.try_lock_batch(group, mqs, client) == free
        for mq in free:
            self.held[group, mq] = (client, self.clock.now + LIVE_MS)

    @rule(group=groups, mqs=queues, client=clients)
    def unlock(self, group: str, mqs: set[MessageQueue], client: str) -> None:
        self.locks.unlock_batch(group, mqs, client)
        for mq in mqs:
            if self.holder(group, mq) == client:
                del self.held[group, mq]

    @rule(ms=st.integers(0, LIVE_MS + 10))
    def time_passes(self, ms: int) -> None:
        self.clock.now += ms

    @rule()
    def clean(self) -> None:
        self.locks.remove_expired()
        alive = {group for group, mq in self.held if self.holder(group, mq) is not None}
        assert self.locks._table.keys() == alive

    @invariant()
    def groups_agree(self) -> None:
        for group in ("g", "h"):
            free = all(self.holder(group, mq) is None for mq in MQ)
            assert self.locks.is_lock_all_expired(group) == free


TestLocks = Locks.TestCase
TestLocks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
