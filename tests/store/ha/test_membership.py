"""Whom a message waits for, and until when a master may acknowledge any."""

from __future__ import annotations

from mqlake.store.ha.membership import NOTHING, Membership

ME, B, C = (0, 10), (1, 11), (2, 12)


def leading(now: float = 0.0, lease: float = 3.0) -> Membership:
    membership = Membership(ME, lambda: now)
    membership.lead(1, now + lease, 100)
    return membership


def test_alone_it_acknowledges_all_that_it_has_while_its_lease_lasts() -> None:
    membership = leading()
    assert membership.confirm({}, 150, 2.9) == 150
    assert membership.confirm({}, 200, 3.0) == NOTHING
    assert membership.confirmed == 150
    assert "lease of this master (epoch 1) is over" in membership.why_not(3.0)
    membership.renew(6.0)
    assert membership.confirm({}, 200, 3.0) == 200
    assert membership.why_not(5.9) == ""


def test_a_message_waits_for_each_member_and_for_nobody_else() -> None:
    membership = leading()
    membership.require({ME, B, C})
    assert membership.confirm({B: 150, C: 120}, 200, 1.0) == 120
    assert membership.confirm({B: 150}, 200, 1.0) == 120, "the end of what was acknowledged never goes back"
    assert membership.confirm({B: 150, (2, 99): 200}, 200, 1.0) == 120, "another store under the same id"
    membership.require({ME, B})
    assert membership.confirm({B: 150}, 200, 1.0) == 150
    assert membership.members == {ME, B}


def test_before_an_election_and_after_the_end_nothing_is_taken() -> None:
    membership = Membership(ME, lambda: 0.0)
    assert membership.why_not(0.0) == "no master is elected"
    assert membership.confirm({}, 100, 0.0) == NOTHING
    membership.lead(1, 3.0, 100)
    membership.pause("it is being moved")
    assert membership.why_not(0.0) == "it is being moved"
    assert membership.confirm({}, 120, 0.0) == 120, "what was taken before is acknowledged"
    membership.stop("another one is master")
    assert membership.why_not(0.0) == "another one is master"
    assert membership.confirm({}, 130, 0.0) == NOTHING
    membership.follow(2)
    assert "slave of the master of epoch 2" in membership.why_not(0.0)
