"""state: changes of users and acls, in RocketMQ's codes and words; nobody rises by one, and nobody locks all out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth import state as changes
from mqlake.auth.evaluator import evaluate
from mqlake.auth.model import (
    Action,
    Policy,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
)
from mqlake.auth.state import State
from mqlake.errors import ResponseError
from tests.auth.people import ADMIN, ALICE, ENTRIES, IPS, POLICIES, acl, entry, state
from tests.auth.test_evaluator import NEEDS


def custom(*entries: object) -> list[Policy]:
    return [Policy(PolicyType.CUSTOM, tuple(entries))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (lambda s: changes.create_user(s, " ", "x"), 29, "The username is blank"),
        (lambda s: changes.create_user(s, "alice", "x"), 16, "The user is existed"),
        (lambda s: changes.create_user(s, "bob", ""), 16, "password can not be blank"),
        (lambda s: changes.create_user(s, "bob", "x", UserType.SUPER, by=ALICE), 1, changes.NO_SUPER_CREATE),
        (lambda s: changes.update_user(s, "bob", "x"), 16, "The user is not exist"),
        (
            lambda s: changes.update_user(s, "alice", None, UserType.SUPER, by=ALICE),
            1,
            changes.NO_SUPER_UPDATE,
        ),
        (lambda s: changes.update_user(s, "admin", "mine", by=ALICE), 16, changes.NO_SUPER_UPDATE),
        (lambda s: changes.delete_user(s, "admin", by=ALICE), 16, changes.NO_SUPER_UPDATE),
        (lambda s: changes.delete_user(s, "admin", by=ADMIN), 16, "The last enabled super user"),
        (lambda s: changes.update_user(s, "admin", status=UserStatus.DISABLE), 16, "The last enabled super"),
        (lambda s: changes.update_user(s, "admin", type_=UserType.NORMAL), 16, "The last enabled super"),
        (lambda s: changes.update_acl(s, "User:bob", []), 16, "The subject of User:bob is not exist."),
        (lambda s: changes.update_acl(s, "bob", []), 16, "The subject is blank."),
        (lambda s: changes.delete_acl(s, "User:alice"), 16, "The acl is not exist."),
    ],
)
def test_a_change_that_cannot_be_is_refused_in_rocketmq_s_words(
    change: Callable[[State], State], code: int, text: str
) -> None:
    with pytest.raises(ResponseError, match=text) as refused:
        change(state())
    assert refused.value.code == code


def test_users_are_made_changed_and_deleted() -> None:
    made = changes.create_user(state(), "bob", "pw", by=ALICE)
    assert made.users["bob"] == User("bob", "pw", UserType.NORMAL, UserStatus.ENABLE)
    changed = changes.update_user(made, "bob", status=UserStatus.DISABLE)
    assert changed.users["bob"] == User("bob", "pw", UserType.NORMAL, UserStatus.DISABLE)
    assert changes.delete_user(changed, "bob") == state()
    assert changes.delete_user(state(), "nobody") == state()


def test_an_acl_ends_with_its_user() -> None:
    before = state(entry("Topic:T", Action.PUB))
    again = changes.create_user(changes.delete_user(before, "alice"), "alice", "new")
    assert again.acls == {}


def test_entries_for_the_same_resource_are_replaced_and_others_added() -> None:
    before = state(entry("Topic:T", Action.PUB), entry("Topic:U", Action.SUB))
    after = changes.update_acl(
        before, "User:alice", custom(entry("Topic:T", Action.GET), entry("Topic:V", Action.PUB))
    )
    expected = (entry("Topic:T", Action.GET), entry("Topic:U", Action.SUB), entry("Topic:V", Action.PUB))
    assert after.acls["alice"] == acl("alice", *expected)


def test_an_entry_is_deleted_by_policy_and_resource_and_the_whole_acl_without_one() -> None:
    topic = Resource.parse("Topic:T")
    default = acl("alice", entry("Topic:T", Action.PUB), default=(entry("Topic:T", Action.SUB),))
    before = State(state().users, {"alice": default})
    assert changes.delete_acl(before, "User:alice", None, topic).acls["alice"] == acl(
        "alice", default=(entry("Topic:T", Action.SUB),)
    )
    assert changes.delete_acl(before, "User:alice", PolicyType.DEFAULT, topic).acls["alice"] == acl(
        "alice", entry("Topic:T", Action.PUB)
    )
    assert changes.delete_acl(before, "User:alice").acls == {}
    unknown = changes.delete_acl(before, "User:alice", None, Resource.parse("Topic:U"))
    assert unknown == before


@given(POLICIES, NEEDS, IPS)
def test_a_change_for_one_user_opens_nothing_for_another(
    policies: tuple[Policy, ...], wanted: object, ip: str
) -> None:
    before = changes.create_user(state(entry("Topic:a*", Action.PUB)), "bob", "x")
    after = changes.update_acl(before, "User:bob", policies)
    for which in (before, after):
        verdict = evaluate(ALICE, which.acls.get("alice"), wanted, ip)  # type: ignore[arg-type]
        assert verdict == evaluate(ALICE, before.acls.get("alice"), wanted, ip)  # type: ignore[arg-type]


@given(st.lists(ENTRIES, max_size=4), ENTRIES, NEEDS, IPS)
def test_an_update_opens_only_what_its_entry_covers(
    entries: list[object], added: object, wanted: object, ip: str
) -> None:
    """Replacing a Deny may open what the replaced entry closed; that is the resource which the change names."""
    start = changes.update_acl(state(), "User:alice", custom(*entries) if entries else [])
    after = changes.update_acl(start, "User:alice", custom(added))
    was = evaluate(ALICE, start.acls.get("alice"), wanted, ip).allowed  # type: ignore[arg-type]
    now = evaluate(ALICE, after.acls.get("alice"), wanted, ip).allowed  # type: ignore[arg-type]
    if now and not was:
        assert added.resource.covers(wanted.resource)  # type: ignore[attr-defined]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admin", "alice", "bob"]), st.sampled_from(UserType), st.sampled_from(UserStatus)
        ),
        max_size=8,
    )
)
def test_no_sequence_of_changes_leaves_nobody_in_charge(
    steps: list[tuple[str, UserType, UserStatus]],
) -> None:
    current = changes.create_user(state(), "bob", "x")
    for name, type_, status in steps:
        for change in (
            lambda s, n=name, t=type_, e=status: changes.update_user(s, n, None, t, e),
            lambda s, n=name: changes.delete_user(s, n),
        ):
            try:
                current = change(current)
            except ResponseError as refused:
                assert refused.code == 16
        assert current.supers()


def test_a_normal_user_makes_no_super_user_by_any_way() -> None:
    for change in (
        lambda: changes.create_user(state(), "eve", "x", UserType.SUPER, by=ALICE),
        lambda: changes.update_user(state(), "alice", None, UserType.SUPER, by=ALICE),
        lambda: changes.update_user(state(), "admin", "stolen", by=ALICE),
    ):
        with pytest.raises(ResponseError):
            change()
