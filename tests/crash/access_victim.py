"""Writes users and acls in a directory, over and over, until it is killed: python -m tests.crash.access_victim DIR

The n-th state has n users of which each has an entry for the topic `n`, so that a mixture of two states is none of
them. A line `n` on stdout: the n-th is on disk.

With POINT=MOMENT… a child of it for each writes two states in DIR/POINT=MOMENT, and dies in the second, before or after
that call; a line `POINT=MOMENT STATUS` for each.
"""

from __future__ import annotations

import os
import sys

from mqlake.auth.model import Acl, Action, Policy, PolicyEntry, PolicyType, Resource, User
from mqlake.auth.state import State
from mqlake.auth.storage import Storage
from tests.crash.killer import die

USERS_MAX = 40


def nth(number: int) -> State:
    entry = PolicyEntry(Resource.topic(str(number)), frozenset({Action.PUB}))
    names = [f"user-{each}" for each in range(1 + number % USERS_MAX)]
    users = {name: User(name, f"secret-{number}") for name in names}
    return State(users, {name: Acl(name, (Policy(PolicyType.CUSTOM, (entry,)),)) for name in names})


def number_of(state: State) -> int:
    """Which of the states this is. AssertionError if it is none."""
    number = int(next(iter(state.users.values())).password.removeprefix("secret-"))
    assert state == nth(number), state
    return number


def arm(name: str, moment: str) -> None:
    real = getattr(os, name)

    def call(*arguments: object, **options: object) -> object:
        if moment == "before":
            die()
        real(*arguments, **options)
        die()

    setattr(os, name, call)


def die_at(point: str) -> int:
    """The status of a child that dies there."""
    pid = os.fork()
    if not pid:
        storage = Storage(os.path.join(sys.argv[1], point))
        storage.write(nth(0))
        arm(*point.split("="))
        storage.write(nth(1))
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main() -> None:
    if points := sys.argv[2:]:
        for point in points:
            print(point, die_at(point), flush=True)
        return
    storage = Storage(sys.argv[1])
    first = number_of(storage.load()) + 1 if os.path.exists(storage.path) else 0
    for number in range(first, 1_000_000):
        storage.write(nth(number))
        print(number, flush=True)


if __name__ == "__main__":
    main()
