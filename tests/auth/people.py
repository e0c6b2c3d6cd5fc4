"""Users, entries and states that several tests of access control use; strategies for hypothesis."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st

from mqlake.auth.model import (
    Acl,
    Action,
    Decision,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
)
from mqlake.auth.state import State


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test, run on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


def almost(secret: str) -> list[str]:
    """Every beginning of a text, every longer text, and every one with another character in one place: a comparison
    that stops too early takes some of them."""
    others = ["B" if character != "B" else "C" for character in secret]
    return [
        *(secret[:end] for end in range(len(secret))),
        *(secret + more for more in ("A", "=", "00", " ", "\0", secret)),
        *(secret[:at] + other + secret[at + 1 :] for at, other in enumerate(others)),
    ]


ADMIN = User("admin", "admin-secret", UserType.SUPER)
ALICE = User("alice", "alice-secret")


def entry(
    resource: str, *actions: Action, decision: Decision = Decision.ALLOW, sources: tuple[str, ...] = ()
) -> PolicyEntry:
    return PolicyEntry(Resource.parse(resource), frozenset(actions), sources, decision)


def acl(name: str, *entries: PolicyEntry, default: tuple[PolicyEntry, ...] = ()) -> Acl:
    policies = [Policy(PolicyType.CUSTOM, entries)] if entries else []
    return Acl(name, (*policies, *([Policy(PolicyType.DEFAULT, default)] if default else [])))


def state(*entries: PolicyEntry) -> State:
    """The admin, and alice with these entries."""
    users = {user.name: user for user in (ADMIN, ALICE)}
    return State(users, {"alice": acl("alice", *entries)} if entries else {})


NAMES = st.text(st.sampled_from("ab"), min_size=1, max_size=4)
RESOURCE_TEXTS = st.one_of(
    st.just("*"),
    st.builds(
        "{}:{}{}".format, st.sampled_from(["Topic", "Group", "Cluster"]), NAMES, st.sampled_from(["", "*"])
    ),
    st.sampled_from(["Topic:*", "Group:*"]),
)
ACTIONS = st.sampled_from([action for action in Action if action is not Action.ANY])
SOURCES = st.lists(st.sampled_from(["10.0.0.0/8", "10.1.2.3", "192.168.0.0/16", "::1"]), max_size=2)
ENTRIES = st.builds(
    PolicyEntry,
    st.builds(Resource.parse, RESOURCE_TEXTS),
    st.frozensets(ACTIONS, min_size=1, max_size=3),
    SOURCES.map(tuple),
    st.sampled_from(Decision),
)
POLICIES = st.lists(
    st.builds(Policy, st.sampled_from(PolicyType), st.lists(ENTRIES, min_size=1, max_size=4).map(tuple)),
    max_size=3,
).map(tuple)
USERS = st.builds(
    User, st.sampled_from(["u1", "u2", "ü 3"]), NAMES, st.sampled_from(UserType), st.sampled_from(UserStatus)
)
IPS = st.sampled_from(["10.1.2.3", "10.9.9.9", "192.168.7.7", "8.8.8.8", "::1"])
