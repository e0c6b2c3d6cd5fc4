"""The decision of the policies: may this user do this, from there?

    super user ─▶ allowed
    else       entries of the custom policy that fit; only if there is none, those of the default policy
               the most specific decides: type before `*`; a name, then the longer prefix, then any; Deny before Allow
               none fits ─▶ refused

This is the order that RocketMQ documents. 5.3.3 sorts otherwise (a shorter prefix before a longer one, Allow before
Deny, and whichever comes later in the list), so that an entry can open what another one closes. 5.4 and 5.5 repair it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.auth.model import (
    Acl,
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
)


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a request needs: any one of the actions, on the resource."""

    resource: Resource
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.resource.text} {'|'.join(action.text for action in sorted(self.actions))}"


def need(resource: Resource, *actions: Action) -> Need:
    return Need(resource, frozenset(actions))


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    why: str
    """RocketMQ's text where it refuses."""
    entry: PolicyEntry | None = None
    """The entry that decided."""
    policy_type: PolicyType | None = None


def evaluate(user: User, acl: Acl | None, wanted: Need, ip: str) -> Verdict:
    """The decision for one need of a request from the address `ip`."""
    if user.is_super:
        return Verdict(True, f"{user.subject} is a super user.")
    refused = f"{user.subject} has no permission to access {wanted.resource.text} from {ip}"
    for type_ in PolicyType:
        fitting = [entry for entry in (acl.entries(type_) if acl else ()) if fits(entry, wanted, ip)]
        if fitting:
            entry = min(fitting, key=rank)
            if entry.decision is Decision.DENY:
                return Verdict(False, f"{refused}, the decision is deny.", entry, type_)
            return Verdict(True, f"{entry.resource.text} allows it.", entry, type_)
    return Verdict(False, f"{refused}, no matched policies.")


def fits(entry: PolicyEntry, wanted: Need, ip: str) -> bool:
    """True if the entry is about this need."""
    return (
        entry.resource.covers(wanted.resource)
        and (
            Action.ANY in wanted.actions
            or Action.ALL in entry.actions
            or not entry.actions.isdisjoint(wanted.actions)
        )
        and entry.includes_source(ip)
    )


_PATTERN_RANK = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


def rank(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    """A sort key of entries that match: the entry with the lowest one decides."""
    resource = entry.resource
    return (
        resource.type is ResourceType.ANY,
        _PATTERN_RANK[resource.pattern],
        -len(resource.name),
        entry.decision is not Decision.DENY,
    )
