"""Users and acls of a cluster with access control: who there is, what they may do, and changes to both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mqlake.auth.model import (
    Action,
    Decision,
    Policy,
    PolicyType,
    Resource,
    UserStatus,
    UserType,
    acl_to_info,
    checked_entry,
)
from mqlake.console.ask import Ask
from mqlake.errors import ConfigError, ResponseError, UnknownKeyError
from mqlake.remoting.codes import ResponseCode


async def users(ask: Ask) -> dict[str, Any]:
    """Users and their acls, never their secrets. `problem`: why the brokers do not say."""
    admin, part = ask.admin, ask.text("filter").lower()
    answer: dict[str, Any] = {"filter": ask.text("filter"), "change": None, "problem": "", "users": []}
    masters = await admin.masters()
    found: dict[str, dict[str, Any]] = {}
    try:
        for broker in masters:
            for user in await admin.access.list_users(broker.address):
                row = found.setdefault(
                    user.name,
                    {"name": user.name, "type": user.type.text, "status": user.status.text, "brokers": []},
                )
                row["brokers"].append(broker.name)
        acls = {acl.username: acl_to_info(acl) for acl in await admin.access.list_acls(masters[0].address)}
    except ResponseError as error:
        problem = f"the brokers do not list users: {error.remark or error}"
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            problem = "This cluster has no users and acls: authenticationEnabled is off at its brokers."
        return answer | {"problem": problem, "place": ask.paged([])[1]}
    for name in acls.keys() - found.keys():
        found[name] = {"name": name, "type": "", "status": "unknown", "brokers": []}
    shown = sorted(
        (row for row in found.values() if part in row["name"].lower()), key=lambda row: row["name"]
    )
    rows, place = ask.paged(shown)
    for row in rows:
        row["everywhere"] = len(row["brokers"]) == len(masters)
        row["policies"] = acls.get(row["name"], {}).get("policies", [])
    return answer | {"users": list(rows), "place": place}


async def change_users(ask: Ask) -> dict[str, Any]:
    """Shows what would change on every broker; with `confirm` changes it."""
    ask.check_changes()
    action, name = ask.need("action"), ask.need("user")
    if action not in _ACTIONS:
        raise UnknownKeyError(action, _ACTIONS, what="action")
    text, fields, change = _ACTIONS[action](ask, name)
    done = ask.flag("confirm")
    if done:
        for broker in await ask.admin.masters():
            await change(broker.address)
    shown = {"text": text, "fields": {"action": action, "user": name, **fields}, "done": done}
    return await users(Ask({}, ask.context)) | {"change": shown}


_Change = tuple[str, dict[str, str], Callable[[str], Awaitable[None]]]
"""The change in words, the fields that confirm it, and how it is done at one broker."""


def _create(ask: Ask, name: str) -> _Change:
    """The secret is given with the confirmation: it never comes back in a page."""
    kind = UserType.of(ask.text("type") or "Normal")
    if kind is None:
        raise ConfigError("type: Normal or Super")
    secret = ask.raw_text("secret")
    if ask.flag("confirm") and not secret:
        raise ConfigError("secret is missing")
    access = ask.admin.access
    return (
        f"create the {kind.text.lower()} user {name}",
        {"type": kind.text},
        lambda at: access.create_user(at, name, secret, kind),
    )


def _delete(ask: Ask, name: str) -> _Change:
    access = ask.admin.access
    return f"delete the user {name} with its acl", {}, lambda at: access.delete_user(at, name)


def _status(ask: Ask, name: str) -> _Change:
    status = UserStatus.of(ask.need("status"))
    if status is None:
        raise ConfigError("status: enable or disable")
    access = ask.admin.access
    return (
        f"{status.text} the user {name}",
        {"status": status.text},
        lambda at: access.update_user(at, name, status=status),
    )


def _grant(ask: Ask, name: str) -> _Change:
    names = [each.strip() for each in ask.need("actions").split(",") if each.strip()]
    actions = [Action.of(each) for each in names]
    decision = Decision.of(ask.text("decision") or "Allow")
    if None in actions or decision is None:
        raise ConfigError(
            f"actions: some of {', '.join(each.text for each in Action)}; decision: Allow or Deny"
        )
    resource = Resource.parse(ask.need("resource"))
    sources = [each.strip() for each in ask.text("sources").split(",") if each.strip()]
    entry = checked_entry(resource, frozenset(each for each in actions if each), sources, decision)
    access = ask.admin.access
    where = f" from {', '.join(sources)}" if sources else ""
    fields = {
        "resource": resource.text,
        "actions": ",".join(names),
        "sources": ",".join(sources),
        "decision": decision.text,
    }
    return (
        f"{decision.text.lower()} {name} {', '.join(names)} on {resource.text}{where}",
        fields,
        lambda at: access.update_acl(at, name, [Policy(PolicyType.CUSTOM, (entry,))]),
    )


def _revoke(ask: Ask, name: str) -> _Change:
    resource = Resource.parse(ask.need("resource"))
    access = ask.admin.access
    return (
        f"take the entry for {resource.text} from {name}",
        {"resource": resource.text},
        lambda at: access.delete_acl(at, name, resource),
    )


_ACTIONS: dict[str, Callable[[Ask, str], _Change]] = {
    "create": _create,
    "delete": _delete,
    "status": _status,
    "grant": _grant,
    "revoke": _revoke,
}
