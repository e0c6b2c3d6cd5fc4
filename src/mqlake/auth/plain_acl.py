"""ACL 1.0: accounts in plain_acl.yml, as RocketMQ's brokers had them up to 5.3.2.

    globalWhiteRemoteAddresses: [10.0.0.*]          these may do everything, unsigned
    accounts:
    - accessKey: orders                             at least 7 characters, as the secretKey
      secretKey: …
      whiteRemoteAddress: 192.168.1.7               unsigned from there
      admin: false                                  true: everything
      defaultTopicPerm: DENY                        where no entry names the topic
      defaultGroupPerm: SUB
      topicPerms: [Orders=PUB|SUB]
      groupPerms: [orders-audit=SUB]

Files: plain_acl.yml in the directory, and every *.yml and *.yaml below its `acl`; the first that has an account wins.
They are looked at every RELOAD_S seconds. One that cannot be read stops a start, with file and line; later it is
reported, and what was read before still counts.

What a request needs is the table of `requests`, as for ACL 2.0: PUB and SUB as they are, GET and LIST of a topic or a
group any of the two, and everything else an admin. RocketMQ lets every account do what is not in its short list.
Facts: rocketmq-acl 5.3.2, PlainPermissionManager.
"""

from __future__ import annotations

import dataclasses
import glob
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mqlake.auth.addresses import Matches, address_pattern
from mqlake.auth.audit import Audit, shown
from mqlake.auth.evaluator import Need
from mqlake.auth.model import (
    Acl,
    Action,
    Decision,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserType,
)
from mqlake.auth.requests import RULES, Context, UnclearRequestError
from mqlake.auth.signature import ACCESS_KEY, is_signed_with
from mqlake.auth.sources import ip_of
from mqlake.auth.state import State
from mqlake.errors import ConfigError, MissingPartError, ResponseError
from mqlake.message import TRACE_TOPIC
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection

logger = logging.getLogger(__name__)

MAIN_FILE, FOLDER = "plain_acl.yml", "acl"
RELOAD_S = 5.0
KEY_LENGTH_MIN = 7
EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
DENY, PUB, SUB = frozenset[Action](), frozenset({Action.PUB}), frozenset({Action.SUB})
PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}

Permission = frozenset[Action]


@dataclass(frozen=True, kw_only=True)
class Account:
    access_key: str
    secret_key: str = dataclasses.field(repr=False)
    is_white: Matches = lambda ip: False
    white_text: str = ""
    is_admin: bool = False
    default_topic: Permission = DENY
    default_group: Permission = DENY
    topics: dict[str, Permission] = field(default_factory=dict)
    groups: dict[str, Permission] = field(default_factory=dict)

    def missing(self, need: Need) -> str:
        """RocketMQ's text if the account may not; empty if it may."""
        resource = need.resource
        if (
            resource.type is ResourceType.TOPIC
            and resource.name == TRACE_TOPIC
            and Action.PUB in need.actions
        ):
            return ""
        wanted = need.actions & (PUB | SUB)
        if need.actions & {Action.GET, Action.LIST}:
            wanted = PUB | SUB
        if resource.type not in (ResourceType.TOPIC, ResourceType.GROUP) or not wanted:
            return "admin"
        is_topic = resource.type is ResourceType.TOPIC
        held, default = (self.topics, self.default_topic) if is_topic else (self.groups, self.default_group)
        kind = "topic" if is_topic else "group"
        if resource.name in held:
            return "" if held[resource.name] & wanted else f"No permission for {kind}:{resource.name}"
        return "" if default & wanted else f"No default permission for {kind}:{resource.name}"


@dataclass(frozen=True)
class PlainAcl:
    """The contents of the files."""

    accounts: dict[str, Account] = field(default_factory=dict)
    white: tuple[Matches, ...] = ()
    white_texts: tuple[str, ...] = ()


class PlainAccess:
    """The guard of a broker with aclEnable."""

    def __init__(
        self,
        directory: str,
        context: Context,
        failures_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory`: of plain_acl.yml."""
        self.directory = directory
        self.context = context
        self.audit = Audit(failures_max, clock)
        self._clock = clock
        self._acl = PlainAcl()
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._looked_at = 0.0

    def load(self) -> None:
        """ConfigError names file and line; OSError."""
        self._seen = _identities(self.directory)
        self._acl = read_files(self.directory)
        self._looked_at = self._clock()

    def change(self, change: Callable[[str], None]) -> None:
        """Changes the files by a function of their directory; what they say then counts. ConfigError, OSError."""
        change(self.directory)
        self.load()

    @property
    def acl(self) -> PlainAcl:
        """The rules in force."""
        self._reload_if_changed()
        return self._acl

    def _reload_if_changed(self) -> None:
        now = self._clock()
        if now - self._looked_at < RELOAD_S:
            return
        self._looked_at = now
        if _identities(self.directory) == self._seen:
            return
        try:
            self.load()
            logger.info("read the accounts in %s again", self.directory)
        except (ConfigError, OSError) as error:
            logger.error("%s; the accounts of before still count", error)

    def guard(self, connection: Connection, command: RemotingCommand) -> None:
        """Refuses a request before its processor is asked. ResponseError SYSTEM_ERROR, as RocketMQ's."""
        self._reload_if_changed()
        ip = ip_of(connection.remote_address)
        step, text = self.refusal(command, ip)
        if not text:
            return
        key = command.ext_fields.get(ACCESS_KEY)
        rule = RULES.get(command.code)
        known = key in self._acl.accounts
        # a text may repeat a key that nobody has
        why = text if known or not key else "unknown access key"
        self.audit.note(step, shown(key, known=known), ip, rule.name if rule else str(command.code), why)
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{EXCEPTION}: {text}")

    def refusal(self, command: RemotingCommand, ip: str) -> tuple[str, str]:
        """(step, RocketMQ's text); an empty text if the request may pass."""
        acl = self._acl
        if any(matches(ip) for matches in acl.white):
            return "", ""
        key = command.ext_fields.get(ACCESS_KEY)
        if not key:
            return "authentication", "No accessKey is configured"
        account = acl.accounts.get(key)
        if account is None:
            return "authentication", f"No acl config for {key}"
        if account.is_white(ip):
            return "", ""
        if not is_signed_with(command, account.secret_key):
            return "authentication", f"Check signature failed for accessKey={key}"
        return "authorization", "" if account.is_admin else self._missing(account, command)

    def _missing(self, account: Account, command: RemotingCommand) -> str:
        admin = f"Need admin permission for request code={command.code}, but accessKey={account.access_key} is not"
        rule = RULES.get(command.code)
        if rule is None or rule.supers_only:
            return admin
        try:
            found = [account.missing(need) for need in rule.needs(command, self.context)]
        except UnclearRequestError:
            return admin
        return next((admin if text == "admin" else text for text in found if text), "")


# --- files -----------------------------------------------------------------------------------------------------


def files_of(directory: str) -> list[str]:
    below = glob.glob(os.path.join(directory, FOLDER, "**", "*.y*ml"), recursive=True)
    found = [path for path in sorted(below) if path.endswith((".yml", ".yaml"))]
    main = os.path.join(directory, MAIN_FILE)
    return ([main] if os.path.exists(main) else []) + [
        path for path in found if os.path.basename(path) != "tools.yml"
    ]


def _identities(directory: str) -> tuple[tuple[str, int, int], ...]:
    found = []
    for path in files_of(directory):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.append((path, status.st_mtime_ns, status.st_size))
    return tuple(found)


def read_files(directory: str) -> PlainAcl:
    """ConfigError names file and line; OSError; MissingPartError."""
    paths = files_of(directory)
    if not paths:
        main = os.path.join(directory, MAIN_FILE)
        raise ConfigError(f"{main} is missing; aclDirectory names another directory")
    accounts: dict[str, Account] = {}
    white: list[Matches] = []
    white_texts: list[str] = []
    for path in paths:
        found = read_file(path)
        white += found.white
        white_texts += found.white_texts
        for key, account in found.accounts.items():
            if key in accounts:
                logger.warning("%s: the account %s is in an earlier file, too, which counts", path, key)
            accounts.setdefault(key, account)
    return PlainAcl(accounts, tuple(white), tuple(white_texts))


def read_file(path: str) -> PlainAcl:
    """One file. ConfigError names file and line; OSError; MissingPartError."""
    with open(path, "rb") as file:
        return parse(file.read(), path)


def parse(raw: bytes, path: str) -> PlainAcl:
    """The content of a file. ConfigError names `path` and line; MissingPartError."""
    try:
        import yaml
    except ImportError:
        raise MissingPartError("the Python package yaml", "pip install 'mqlake[auth]'") from None
    try:
        root = yaml.compose(raw.decode(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(
            f"{path}:{mark.line + 1 if mark else 1}: {error.problem or error.context}"
        ) from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: this is not UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}:1: {error}") from None
    if root is None:
        return PlainAcl()
    reader = _Reader(path)
    top = reader.mapping(root)
    white_nodes = list(reader.items(top.get("globalWhiteRemoteAddresses")))
    accounts: dict[str, Account] = {}
    for node in reader.items(top.get("accounts")):
        account = reader.account(node)
        if account.access_key in accounts:
            raise reader.wrong(node, f"the account {account.access_key} is here twice")
        accounts[account.access_key] = account
    white = tuple(reader.pattern(node) for node in white_nodes)
    return PlainAcl(accounts, white, tuple(map(reader.text, white_nodes)))


class _Reader:
    """YAML nodes to values; each error names the line."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wrong(self, node: Any, why: str) -> ConfigError:
        return ConfigError(f"{self._path}:{node.start_mark.line + 1}: {why}")

    def mapping(self, node: Any) -> dict[str, Any]:
        if node.id != "mapping":
            raise self.wrong(node, "keys and values are needed here")
        found = {}
        for key, value in node.value:
            name = self.text(key)
            if name in found:
                raise self.wrong(key, f"{name} is here twice")
            found[name] = value
        return found

    def items(self, node: Any) -> Iterable[Any]:
        if node is None or (node.id == "scalar" and node.tag.endswith(":null")):
            return ()
        if node.id != "sequence":
            raise self.wrong(node, "a list is needed here")
        found: list[Any] = node.value
        return found

    def text(self, node: Any) -> str:
        if node is None:
            return ""
        if node.id != "scalar":
            raise self.wrong(node, "one value is needed here")
        return "" if node.tag.endswith(":null") else str(node.value).strip()

    def pattern(self, node: Any) -> Matches:
        try:
            return address_pattern(self.text(node))
        except ConfigError as error:
            raise self.wrong(node, str(error)) from None

    def account(self, node: Any) -> Account:
        fields = self.mapping(node)
        access_key, secret_key = self.text(fields.get("accessKey")), self.text(fields.get("secretKey"))
        if len(access_key) < KEY_LENGTH_MIN or len(secret_key) < KEY_LENGTH_MIN:
            raise self.wrong(node, f"accessKey and secretKey need {KEY_LENGTH_MIN} characters or more")
        admin = self.text(fields.get("admin")).lower()
        if admin not in ("", "true", "false"):
            raise self.wrong(fields["admin"], "admin: true or false is needed")
        white = fields.get("whiteRemoteAddress")
        return Account(
            access_key=access_key,
            secret_key=secret_key,
            is_white=self.pattern(white) if white is not None else lambda ip: False,
            white_text=self.text(white),
            is_admin=admin == "true",
            default_topic=permission(self.text(fields.get("defaultTopicPerm"))),
            default_group=permission(self.text(fields.get("defaultGroupPerm"))),
            topics=self.permissions(fields.get("topicPerms")),
            groups=self.permissions(fields.get("groupPerms")),
        )

    def permissions(self, node: Any) -> dict[str, Permission]:
        found = {}
        for item in self.items(node):
            name, equals, text = self.text(item).partition("=")
            if not name.strip() or not equals:
                raise self.wrong(item, f"{self.text(item)}: NAME=PUB|SUB is needed")
            found[name.strip()] = permission(text)
        return found


def permission(text: str) -> Permission:
    """Anything that nobody knows is DENY, as in RocketMQ."""
    return PERMISSIONS.get(text.strip(), DENY)


# --- from ACL 1.0 to 2.0 -----------------------------------------------------------------------------------------


def migrated(before: State, acl: PlainAcl) -> State:
    """`before` with users and acls of the accounts that are not in it: what migrateAuthFromV1Enabled does. White
    addresses are not taken over: such an account must sign from then on."""
    users, acls = dict(before.users), dict(before.acls)
    for name, account in acl.accounts.items():
        if name in users:
            continue
        users[name] = User(name, account.secret_key, UserType.SUPER if account.is_admin else UserType.NORMAL)
        custom = [_entry(Resource.topic(topic), held) for topic, held in account.topics.items()]
        custom += [_entry(Resource.group(group), held) for group, held in account.groups.items()]
        default = [
            _entry(Resource.parse("Topic:*"), account.default_topic),
            _entry(Resource.parse("Group:*"), account.default_group),
        ]
        policies = [Policy(PolicyType.CUSTOM, tuple(custom))] if custom else []
        acls[name] = Acl(name, (*policies, Policy(PolicyType.DEFAULT, tuple(default))))
    return State(users, acls)


def _entry(resource: Resource, held: Permission) -> PolicyEntry:
    if not held:
        return PolicyEntry(resource, frozenset({Action.ALL}), (), Decision.DENY)
    return PolicyEntry(resource, held, (), Decision.ALLOW)
