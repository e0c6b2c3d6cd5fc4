"""Users and acls that a slave takes over from its master: 3005 and 3010.

RocketMQ's slave has its own, so a user that was made while it was away is unknown there. Here a slave with access
control has its master's: all or nothing, and nothing that would lock everybody out. Passwords are given to super users
only, so innerClientAuthenticationCredentials has to be one at the master, as RocketMQ makes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from mqlake.auth.access import AccessControl
from mqlake.auth.model import Acl, User, UserStatus, UserType, policies_from_info, username_of
from mqlake.auth.state import State
from mqlake.errors import ConfigError
from mqlake.remoting.bodies.codec import load_json
from mqlake.remoting.codes import RequestCode

logger = logging.getLogger(__name__)

Ask = Callable[[RequestCode], Coroutine[Any, Any, bytes]]


async def sync_access(access: AccessControl, ask: Ask) -> None:
    """Takes over what the master has. ConfigError when that cannot be used; then nothing changes. MqlakeError."""
    users, acls = await ask(RequestCode.AUTH_LIST_USER), await ask(RequestCode.AUTH_LIST_ACL)
    state = state_from_info(_objects(users), _objects(acls))
    if state != access.state:
        await access.change(lambda before: state)
        logger.info("took over %d users and %d acls of the master", len(state.users), len(state.acls))


def state_from_info(users: list[dict[str, Any]], acls: list[dict[str, Any]]) -> State:
    """Makes a State of lists of UserInfo and AclInfo. ConfigError."""
    taken = {user.name: user for user in map(_user, users)}
    state = State(taken, {acl.username: acl for acl in map(_acl, acls) if acl.username in taken})
    if not state.supers():
        raise ConfigError("it has no enabled super user: no one could change users here any longer")
    return state


def _user(info: dict[str, Any]) -> User:
    name, password = info.get("username"), info.get("password")
    if not isinstance(name, str) or not name:
        raise ConfigError("a user without a name")
    if not isinstance(password, str) or not password:
        raise ConfigError(
            "it gives no passwords: the user of innerClientAuthenticationCredentials must be a super user there"
        )
    return User(
        name,
        password,
        UserType.of(info.get("userType")) or UserType.NORMAL,
        UserStatus.of(info.get("userStatus")) or UserStatus.ENABLE,
    )


def _acl(info: dict[str, Any]) -> Acl:
    return Acl(username_of(info.get("subject")), policies_from_info(info.get("policies")))


def _objects(body: bytes) -> list[dict[str, Any]]:
    value = load_json(body) if body else []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ConfigError("its answer is no list of users or acls")
    return value
