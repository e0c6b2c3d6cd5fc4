"""All users and acls, and every change of them, as pure functions from one state to the next.

A change is all or nothing, and its texts and codes are those of RocketMQ's broker. Two things are refused here that
RocketMQ allows: to delete, disable or demote the last enabled super user, which would lock everybody out.
Facts: rocketmq-auth 5.3.3, the local providers and the admin processor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mqlake.auth.model import (
    Acl,
    IllegalError,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    username_of,
)
from mqlake.errors import ResponseError
from mqlake.remoting.codes import ResponseCode

NO_SUPER_CREATE = "The super user can only be create by super user"
NO_SUPER_UPDATE = "The super user can only be update by super user"


@dataclass(frozen=True, slots=True)
class State:
    """Never changed in place: whoever holds one decides by it to the end."""

    users: Mapping[str, User] = field(default_factory=dict)
    acls: Mapping[str, Acl] = field(default_factory=dict)
    """By user name."""

    def supers(self) -> list[User]:
        """Returns the super users who are enabled."""
        return [user for user in self.users.values() if user.is_super and user.is_enabled]


Change = Callable[[State], State]


def _refused(text: str, code: int = ResponseCode.NO_PERMISSION) -> ResponseError:
    return ResponseError(code, text)


def _with_user(state: State, user: User) -> State:
    return dataclasses.replace(state, users={**state.users, user.name: user})


def create_user(
    state: State,
    name: str,
    password: str | None,
    type_: UserType | None = None,
    status: UserStatus | None = None,
    *,
    by: User | None = None,
) -> State:
    """3001. `by`: who asks; None: somebody who may do everything. ResponseError."""
    if not name.strip():
        raise _refused("The username is blank", ResponseCode.INVALID_PARAMETER)
    if type_ is UserType.SUPER and by is not None and not by.is_super:
        raise _refused(NO_SUPER_CREATE, ResponseCode.SYSTEM_ERROR)
    if name in state.users:
        raise _refused("The user is existed")
    if not password or not password.strip():
        raise _refused("password can not be blank")
    return _with_user(state, User(name, password, type_ or UserType.NORMAL, status or UserStatus.ENABLE))


def update_user(
    state: State,
    name: str,
    password: str | None = None,
    type_: UserType | None = None,
    status: UserStatus | None = None,
    *,
    by: User | None = None,
) -> State:
    """3002: what is None stays. ResponseError."""
    if not name.strip():
        raise _refused("The username is blank", ResponseCode.INVALID_PARAMETER)
    if type_ is UserType.SUPER and by is not None and not by.is_super:
        raise _refused(NO_SUPER_UPDATE, ResponseCode.SYSTEM_ERROR)
    user = state.users.get(name)
    if user is None:
        raise _refused("The user is not exist")
    if user.is_super and by is not None and not by.is_super:
        raise _refused(NO_SUPER_UPDATE)
    changed = dataclasses.replace(
        user, password=password or user.password, type=type_ or user.type, status=status or user.status
    )
    return _still_led(state, _with_user(state, changed))


def delete_user(state: State, name: str, *, by: User | None = None) -> State:
    """3003: also the user's acl, so that a later user of that name starts with nothing. Nothing if there is none."""
    user = state.users.get(name)
    if user is None:
        return state
    if user.is_super and by is not None and not by.is_super:
        raise _refused(NO_SUPER_UPDATE)
    changed = State(
        {each: other for each, other in state.users.items() if each != name},
        {each: acl for each, acl in state.acls.items() if each != name},
    )
    return _still_led(state, changed)


def _still_led(before: State, after: State) -> State:
    if before.supers() and not after.supers():
        raise _refused("The last enabled super user can not be deleted, disabled or made a normal user.")
    return after


def update_acl(state: State, subject: str | None, policies: Iterable[Policy]) -> State:
    """3006 and 3007: an entry for the same resource in the policy of the same type is replaced, others are added.
    ResponseError."""
    name = _known_subject(state, subject)
    entries = entries_by_type(state.acls.get(name))
    for policy in policies:
        entries.setdefault(policy.type, {}).update({entry.resource: entry for entry in policy.entries})
    return _with_acl(state, name, entries)


def delete_acl(
    state: State,
    subject: str | None,
    policy_type: PolicyType | None = None,
    resource: Resource | None = None,
) -> State:
    """3008: the entry for one resource; without a resource the whole acl. ResponseError."""
    name = _known_subject(state, subject)
    if name not in state.acls:
        raise _refused("The acl is not exist.")
    if resource is None:
        return _with_acl(state, name, {})
    entries = entries_by_type(state.acls[name])
    entries.get(policy_type or PolicyType.CUSTOM, {}).pop(resource, None)
    return _with_acl(state, name, entries)


def _known_subject(state: State, subject: str | None) -> str:
    try:
        name = username_of(subject)
    except IllegalError as error:
        raise _refused(str(error)) from None
    if name not in state.users:
        raise _refused(f"The subject of User:{name} is not exist.")
    return name


Entries = dict[PolicyType, dict[Resource, PolicyEntry]]


def entries_by_type(acl: Acl | None) -> Entries:
    found: Entries = {}
    for policy in acl.policies if acl else ():
        found.setdefault(policy.type, {}).update({entry.resource: entry for entry in policy.entries})
    return found


def _with_acl(state: State, name: str, entries: Entries) -> State:
    policies = tuple(Policy(type_, tuple(each.values())) for type_, each in entries.items() if each)
    acls = {each: acl for each, acl in state.acls.items() if each != name}
    if policies:
        acls[name] = Acl(name, policies)
    return dataclasses.replace(state, acls=acls)
