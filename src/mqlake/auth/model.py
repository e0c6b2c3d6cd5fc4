"""Users, resources, actions and policies of ACL 2.0, and their JSON.

    Acl "User:alice" ─▶ Policy Custom  ─▶ PolicyEntry  Topic:orders-*  Pub, Sub  from 10.0.0.0/8  Allow
                     └▶ Policy Default ─▶ PolicyEntry  Topic:*         Sub       from anywhere    Deny

Two forms of JSON: names, as administrators send them (`UserInfo`, `AclInfo`), and numbers, as RocketMQ's broker keeps
them. Names and numbers are RocketMQ's. Facts: rocketmq-auth 5.3.3, its model package.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from mqlake.errors import ConfigError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX

USER_PREFIX = "User:"
SUBJECT_TYPE_USER = 1


class _Named(enum.IntEnum):
    """Number in storage, and the name in requests."""

    @property
    def text(self) -> str:
        return self.name.capitalize()

    @classmethod
    def of(cls, text: object) -> Self | None:
        """By name, in any case; None if nobody knows it."""
        return cls.__members__.get(text.strip().upper()) if isinstance(text, str) else None


class UserType(_Named):
    SUPER = 1
    """May do everything."""
    NORMAL = 2


class UserStatus(_Named):
    ENABLE = 1
    DISABLE = 2

    @property
    def text(self) -> str:
        return self.name.lower()


class PolicyType(_Named):
    CUSTOM = 1
    DEFAULT = 2
    """Counts only where no entry of the custom policy fits."""


class ResourceType(_Named):
    UNKNOWN = 0
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(_Named):
    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Action(_Named):
    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class Decision(_Named):
    ALLOW = 1
    DENY = 2


class IllegalError(ConfigError):
    """A user or an acl cannot be as asked for. The texts are those of RocketMQ."""


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password: str
    """The secret key that requests are signed with. In memory only; on disk it is sealed."""
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def subject(self) -> str:
        return USER_PREFIX + self.name

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.type.name}, {self.status.name})"  # never the password


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that an entry is about, or (a literal) that a request needs."""

    type: ResourceType
    name: str = ""
    """Empty for the pattern ANY."""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def topic(cls, name: str) -> Self:
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def group(cls, name: str) -> Self:
        return cls(ResourceType.GROUP, name)

    @classmethod
    def cluster(cls, name: str) -> Self:
        return cls(ResourceType.CLUSTER, name)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """`*`, `Topic:*`, `Topic:abc*`, `Topic:abc`. IllegalError. A `*` ends a prefix, and what follows is ignored."""
        text = (text or "").strip()
        if text == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        kind, colon, name = text.partition(":")
        type_ = ResourceType.of(kind)
        if not colon or not name or type_ in (None, ResourceType.UNKNOWN, ResourceType.ANY):
            raise IllegalError("The resource is null.")
        assert type_ is not None
        if type_ is ResourceType.GROUP:
            name = name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
            if not name:
                raise IllegalError("The resource is null.")
        prefix, star, _ = name.partition("*")
        if not prefix:  # also of `*abc`: what follows the first star is ignored
            return cls(type_, "", Pattern.ANY)
        return cls(type_, prefix, Pattern.PREFIXED) if star else cls(type_, name)

    @property
    def text(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.text}:{self.name}{star}"

    def covers(self, wanted: Resource) -> bool:
        """True if this resource of an entry includes a literal one."""
        if self.type is not ResourceType.ANY and self.type is not wanted.type:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if self.pattern is Pattern.LITERAL:
            return self.name == wanted.name
        return wanted.name.startswith(self.name)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    resource: Resource
    actions: frozenset[Action]
    sources: tuple[str, ...] = ()
    """Addresses and networks (`10.0.0.0/8`); empty: from anywhere."""
    decision: Decision = Decision.ALLOW

    def includes_source(self, ip: str) -> bool:
        return not self.sources or any(source_includes(source, ip) for source in self.sources)


@dataclass(frozen=True, slots=True)
class Policy:
    type: PolicyType
    entries: tuple[PolicyEntry, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    username: str
    policies: tuple[Policy, ...]

    @property
    def subject(self) -> str:
        return USER_PREFIX + self.username

    def entries(self, type_: PolicyType) -> Iterable[PolicyEntry]:
        return (entry for policy in self.policies if policy.type is type_ for entry in policy.entries)


def username_of(subject: str | None) -> str:
    """`User:alice` → `alice`. IllegalError for another kind of subject."""
    kind, colon, name = (subject or "").partition(":")
    if not colon or kind.strip().lower() != "user" or not name.strip():
        raise IllegalError("The subject is blank.")
    return name.strip()


def source_includes(source: str, ip: str) -> bool:
    """True if an address or network includes `ip`; an IPv4 address mapped into IPv6 is the IPv4 address."""
    try:
        address = ipaddress.ip_address(ip)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address) in ipaddress.ip_network(source, strict=False)
    except ValueError:
        return False


# --- JSON with names: what administrators send and get ---------------------------------------------------------


def user_to_info(user: User, *, with_password: bool) -> dict[str, Any]:
    """UserInfo; without a password the field is missing."""
    info = {"username": user.name, "userType": user.type.text, "userStatus": user.status.text}
    return {**info, "password": user.password} if with_password else info


def acl_to_info(acl: Acl) -> dict[str, Any]:
    """AclInfo."""
    return {
        "subject": acl.subject,
        "policies": [
            {
                "policyType": policy.type.text,
                "entries": [
                    {
                        "resource": entry.resource.text,
                        "actions": [action.text for action in sorted(entry.actions)],
                        **({"sourceIps": list(entry.sources)} if entry.sources else {}),
                        "decision": entry.decision.text,
                    }
                    for entry in policy.entries
                ],
            }
            for policy in acl.policies
        ],
    }


def policies_from_info(policies: object) -> tuple[Policy, ...]:
    """The `policies` of an AclInfo. IllegalError. An unknown action is left out, as RocketMQ leaves it out."""
    if not isinstance(policies, list):
        raise IllegalError("The policies is empty.")
    return tuple(
        Policy(
            PolicyType.CUSTOM if (kind := policy.get("policyType")) in (None, "") else _policy_type(kind),
            tuple(_entry_from_info(entry) for entry in _objects(policy.get("entries"))),
        )
        for policy in _objects(policies)
    )


def _policy_type(text: object) -> PolicyType:
    type_ = PolicyType.of(text)
    if type_ is None:
        raise IllegalError("The policy type is illegal.")
    return type_


def _entry_from_info(entry: Mapping[str, Any]) -> PolicyEntry:
    known = (Action.of(action) for action in _list(entry.get("actions")))
    decision = Decision.of(entry.get("decision"))
    if decision is None:
        raise IllegalError("The decision is null or illegal.")
    resource = entry.get("resource")
    return checked_entry(
        Resource.parse(resource if isinstance(resource, str) else None),
        frozenset(action for action in known if action is not None),
        tuple(str(source) for source in _list(entry.get("sourceIps"))),
        decision,
    )


def checked_entry(
    resource: Resource, actions: frozenset[Action], sources: Iterable[str], decision: Decision
) -> PolicyEntry:
    """An entry that can be decided on. IllegalError."""
    if not actions:
        raise IllegalError("The actions is empty.")
    if Action.ANY in actions:
        raise IllegalError("The actions can not be Any.")
    sources = tuple(source.strip() for source in sources if source.strip())
    for source in sources:
        try:
            ipaddress.ip_network(source, strict=False)
        except ValueError:
            raise IllegalError("The source ip is invalid.") from None
    return PolicyEntry(resource, actions, sources, decision)


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _objects(value: object) -> list[Mapping[str, Any]]:
    objects = _list(value)
    if not all(isinstance(each, dict) for each in objects):
        raise IllegalError("an object is needed where a policy or an entry belongs")
    return objects


# --- JSON with numbers: what RocketMQ's broker keeps ------------------------------------------------------------


def user_to_stored(user: User, password: str) -> dict[str, Any]:
    return {
        "password": password,
        "subjectType": SUBJECT_TYPE_USER,
        "userStatus": int(user.status),
        "userType": int(user.type),
        "username": user.name,
    }


def user_from_stored(value: Mapping[str, Any], password: Callable[[str, str], str]) -> User:
    """`password` makes (user name, stored password) the real one. Type and status may also be names, which RocketMQ
    does not read. IllegalError."""
    name, secret = value.get("username"), value.get("password")
    if not isinstance(name, str) or not name.strip():
        raise IllegalError("The username is blank")
    if not isinstance(secret, str) or not secret:
        raise IllegalError("password can not be blank")
    return User(
        name,
        password(name, secret),
        _member(UserType, value.get("userType"), UserType.NORMAL, "userType"),
        _member(UserStatus, value.get("userStatus"), UserStatus.ENABLE, "userStatus"),
    )


def acl_to_stored(acl: Acl) -> dict[str, Any]:
    return {
        "policies": [
            {
                "entries": [
                    {
                        "actions": sorted(int(action) for action in entry.actions),
                        "decision": int(entry.decision),
                        "environment": {"sourceIps": list(entry.sources)} if entry.sources else {},
                        "resource": _resource_to_stored(entry.resource),
                    }
                    for entry in policy.entries
                ],
                "policyType": int(policy.type),
            }
            for policy in acl.policies
        ],
        "subject": {"subjectType": SUBJECT_TYPE_USER, "username": acl.username},
    }


def _resource_to_stored(resource: Resource) -> dict[str, Any]:
    stored = {"resourcePattern": int(resource.pattern), "resourceType": int(resource.type)}
    return {"resourceName": resource.name, **stored} if resource.name else stored


def acl_from_stored(value: Mapping[str, Any]) -> Acl:
    """IllegalError."""
    subject = value.get("subject")
    name = subject.get("username") if isinstance(subject, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise IllegalError("subject: a username is needed")
    policies = []
    for policy in _objects(value.get("policies")):
        entries = [_entry_from_stored(entry) for entry in _objects(policy.get("entries"))]
        type_ = _member(PolicyType, policy.get("policyType"), PolicyType.CUSTOM, "policyType")
        policies.append(Policy(type_, tuple(entries)))
    return Acl(name, tuple(policies))


def _entry_from_stored(entry: Mapping[str, Any]) -> PolicyEntry:
    resource, environment = entry.get("resource"), entry.get("environment") or {}
    if not isinstance(resource, dict) or not isinstance(environment, dict):
        raise IllegalError("an entry needs a resource, and its environment is an object")
    type_ = _member(ResourceType, resource.get("resourceType"), None, "resourceType")
    pattern = _member(Pattern, resource.get("resourcePattern"), None, "resourcePattern")
    name = resource.get("resourceName") or ""
    if pattern is Pattern.PREFIXED and not name:
        pattern = Pattern.ANY  # RocketMQ keeps `Topic:*abc` so
    if not isinstance(name, str) or bool(name) is (pattern is Pattern.ANY) or type_ is ResourceType.UNKNOWN:
        raise IllegalError("resourceName: a name is needed, and none with the pattern ANY")
    actions = (_member(Action, action, None, "actions") for action in _list(entry.get("actions")))
    return checked_entry(
        Resource(type_, name, pattern),
        frozenset(actions),
        tuple(str(source) for source in _list(environment.get("sourceIps"))),
        _member(Decision, entry.get("decision"), None, "decision"),
    )


Member = TypeVar("Member", bound=_Named)


def _member(kind: type[Member], value: object, default: Member | None, name: str) -> Member:
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and value in set(kind):
        return kind(value)
    if (named := kind.of(value)) is not None:
        return named
    names = ", ".join(f"{int(member)} ({member.name})" for member in kind)
    raise IllegalError(f"{name}: {value!r} is not one of {names}")
