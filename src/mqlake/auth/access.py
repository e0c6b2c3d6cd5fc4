"""AccessControl: users, acls and their decisions, for everything that answers requests.

    access = AccessControl(config, Storage(directory), Context("DefaultCluster", topic_at))
    access.load()                                      reads users and acls, makes the first users
    endpoint.guard = access.guard                      remoting: every request, before its processor

    user = access.authenticate_grpc(authorization, date_time, ip)          other endpoints, by hand
    access.authorize(user, [need(Resource.topic("T"), Action.PUB)], ip, "SendMessage")
    user = access.authenticate_basic(header, ip)

Refusals are AccessDeniedError, a ResponseError with NO_PERMISSION and RocketMQ's text. Decisions are kept until users
or acls change. On one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence

from mqlake.auth import signature, state
from mqlake.auth.audit import Audit, shown
from mqlake.auth.config import AuthConfig
from mqlake.auth.evaluator import Need, Verdict, evaluate, need
from mqlake.auth.freshness import BORN_TIMESTAMP_NAMES, born_at, is_fresh, time_of
from mqlake.auth.model import Action, Resource, User, UserType
from mqlake.auth.requests import RULES, Context, UnclearRequestError
from mqlake.auth.sources import ip_of
from mqlake.auth.state import Change, State
from mqlake.auth.storage import Storage
from mqlake.base.clock import now_ms
from mqlake.errors import ResponseError
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection

logger = logging.getLogger(__name__)

AUTHENTICATION, AUTHORIZATION = "authentication", "authorization"
AUTHORIZATION_FAILED = "Authorization failed. Please verify your access rights and try again."
LAST_SUPER = (
    "The last enabled super user apart from the broker's own can not be deleted, disabled or demoted."
)
NOBODY = User("", "")
DECISIONS_MAX = 100_000
"""Decisions that are kept; with one more, all are made again."""


class AccessDeniedError(ResponseError):
    """A request is refused. `step`: authentication or authorization; `code` NO_PERMISSION. `too_many`: the address has
    so many refusals that its connection should be closed."""

    def __init__(self, step: str, remark: str, too_many: bool = False) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.step = step
        self.too_many = too_many


class AccessControl:
    def __init__(
        self,
        config: AuthConfig,
        storage: Storage,
        context: Context,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.config = config
        self.clock_ms = clock_ms
        self.context = context
        self.storage = storage
        self.audit = Audit(config.access_failures_max)
        self.version = 0
        """Another number after each change: what was decided with an earlier one does not count."""
        self.on_change: list[Callable[[], None]] = []
        self._state = State()
        self._decisions: dict[tuple[str, str, Need], Verdict] = {}
        self._granted: set[tuple[str | None, ...]] = set()
        """User, address, request and the fields that decide what it needs, of what was allowed."""
        self._changing = asyncio.Lock()
        self._unsigned = config.codes("authenticationWhitelist")
        self._unchecked = config.codes("authorizationWhitelist")
        self._unsigned_names = config.names("authenticationWhitelist")
        self._unchecked_names = config.names("authorizationWhitelist")

    # --- users and acls

    @property
    def state(self) -> State:
        return self._state

    def load(self, adopt: Change | None = None) -> None:
        """Reads users and acls, adds what `adopt` adds, and makes the first users. ConfigError names file and line;
        OSError."""
        loaded = self.storage.load()
        self._set(loaded if adopt is None else adopt(loaded))
        for first in self.config.first_users():
            if first.access_key not in self._state.users:
                self._set(state.create_user(self._state, first.access_key, first.secret_key, UserType.SUPER))
                logger.info("made the super user %s", first.access_key)
        if self._state is not loaded:
            self.storage.write(self._state)
        if self.config.authentication_enabled and not self._state.supers():
            logger.warning(
                "there is no enabled super user: nobody can change users; set initAuthenticationUser"
            )

    def _set(self, changed: State) -> None:
        self._state = changed
        self._decisions.clear()
        self._granted.clear()
        self.version += 1
        for callback in self.on_change:
            callback()

    async def change(self, change: Change) -> State:
        """Makes the change durable, then lets it count. ResponseError and OSError change nothing."""
        async with self._changing:
            changed = change(self._state)
            if self._people(self._state) and not self._people(changed):
                raise ResponseError(ResponseCode.NO_PERMISSION, LAST_SUPER)
            if changed != self._state:
                await asyncio.to_thread(self.storage.write, changed)
                self._set(changed)
        return self._state

    def _people(self, state: State) -> list[User]:
        """Enabled super users apart from the one that brokers sign with, whose secret nobody types."""
        inner = self.config.inner_credentials
        return [user for user in state.supers() if inner is None or user.name != inner.access_key]

    # --- who it is

    def authenticate(self, name: str | None, is_signed: Callable[[str], bool], ip: str, request: str) -> User:
        """The user of that name, if `is_signed` says of the user's secret that the request was signed with it.
        AccessDeniedError."""
        if not name:
            raise self._denied(AUTHENTICATION, None, ip, request, "username cannot be null.")
        user = self._state.users.get(name)
        if user is None:
            raise self._denied(AUTHENTICATION, name, ip, request, f"User:{name} is not found.", "not found")
        if not user.is_enabled:
            raise self._denied(AUTHENTICATION, name, ip, request, f"User:{name} is disabled.")
        if not is_signed(user.password):
            raise self._denied(AUTHENTICATION, name, ip, request, "check signature failed.")
        return user

    def authenticate_command(self, command: RemotingCommand, ip: str) -> User:
        """The user who signed a request. AccessDeniedError."""
        name = _name_of(command.code)
        user = self.authenticate(
            command.ext_fields.get(signature.ACCESS_KEY),
            functools.partial(signature.is_signed_with, command),
            ip,
            name,
        )
        if self.config.signed_send_max_age_seconds and command.code in BORN_TIMESTAMP_NAMES:
            self._check_age(user, born_at(command), self.config.signed_send_max_age_seconds, ip, name)
        return user

    def _check_age(
        self,
        user: User,
        made_at: int | None,
        age_max_s: int,
        ip: str,
        request: str,
        began_at: int | None = None,
    ) -> None:
        now = self.clock_ms() if began_at is None else began_at
        if not is_fresh(made_at, now, age_max_s):
            away = "says no time" if made_at is None else f"is {(now - made_at) / 1000:.0f} s old"
            remark = f"the signed request {away}, the broker accepts {age_max_s} s; is the clock right?"
            raise self._denied(AUTHENTICATION, user.name, ip, request, remark, "too old, or of the future")

    def authenticate_grpc(
        self,
        authorization: str | None,
        date_time: str | None,
        ip: str,
        request: str = "gRPC",
        began_at: int | None = None,
    ) -> User | None:
        """The user who signed `x-mq-date-time` in gRPC's `authorization`. None where authentication is off, or
        `request`, the full name of the message, is white-listed. `began_at`: when the RPC came, in ms; None: now.
        AccessDeniedError."""
        if not self.config.authentication_enabled or request in self._unsigned_names:
            return None
        if not date_time:
            raise self._denied(AUTHENTICATION, None, ip, request, "datetime is null.")
        if not authorization:
            raise self._denied(AUTHENTICATION, None, ip, request, "authentication header is null.")
        parsed = signature.parse_grpc_authorization(authorization)
        if parsed is None:
            raise self._denied(AUTHENTICATION, None, ip, request, "authentication header is incorrect.")
        name, given = parsed
        user = self.authenticate(
            name, lambda secret: signature.is_grpc_signature(secret, date_time, given), ip, request
        )
        if self.config.grpc_signature_max_age_seconds:
            age_max_s = self.config.grpc_signature_max_age_seconds
            self._check_age(user, time_of(date_time), age_max_s, ip, request, began_at)
        return user

    def authenticate_basic(self, authorization: str | None, ip: str, request: str) -> User:
        """The user of an HTTP `Authorization: Basic …`. AccessDeniedError."""
        kind, _, text = (authorization or "").partition(" ")
        name, password = "", ""
        if kind.lower() == "basic":
            try:
                name, _, password = base64.b64decode(text, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                pass
        return self.authenticate(
            name, lambda secret: hmac.compare_digest(secret.encode(), password.encode()), ip, request
        )

    # --- what is allowed

    def decide(self, user: User, wanted: Need, ip: str) -> Verdict:
        """The decision of the policies; kept until users or acls change."""
        key = (user.name, ip, wanted)
        verdict = self._decisions.get(key)
        if verdict is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            verdict = evaluate(user, self._state.acls.get(user.name), wanted, ip)
            self._decisions[key] = verdict
        return verdict

    def authorize(self, user: User | None, needs: Iterable[Need], ip: str, request: str) -> None:
        """Returns if all needs are allowed, or authorization is off. `user`: None if nobody signed.
        AccessDeniedError."""
        if not self.config.authorization_enabled or request in self._unchecked_names:
            return
        if user is None:
            raise self._denied(AUTHORIZATION, None, ip, request, AUTHORIZATION_FAILED)
        if user.is_super:
            return
        for wanted in needs:
            verdict = self.decide(user, wanted, ip)
            if not verdict.allowed:
                raise self._denied(AUTHORIZATION, user.name, ip, request, verdict.why)

    def needs_of(self, command: RemotingCommand) -> Sequence[Need] | None:
        """Returns the needs of a request; None: a super user."""
        rule = RULES.get(command.code)
        if rule is None or rule.supers_only:
            return None
        try:
            return rule.needs(command, self.context)
        except UnclearRequestError:
            return None

    def may(self, user: User, command: RemotingCommand, ip: str) -> bool:
        """True if the policies allow a request; for fast paths, whose refusals the slow path makes."""
        if not self.config.authorization_enabled or user.is_super:
            return True
        needs = self.needs_of(command)
        return needs is not None and all(self.decide(user, each, ip).allowed for each in needs)

    def authorize_command(self, user: User | None, command: RemotingCommand, ip: str) -> None:
        """AccessDeniedError."""
        if not self.config.authorization_enabled or command.code in self._unchecked:
            return
        name = _name_of(command.code)
        if user is None or user.is_super:
            self.authorize(user, (), ip, name)
            return
        rule = RULES.get(command.code)
        fields = None if rule is None else rule.fields
        key = (user.name, ip, name, *map(command.ext_fields.get, fields or ()))
        if fields is not None and key in self._granted:
            return
        needs = self.needs_of(command)
        if needs is None:
            remark = f"{user.subject} has no permission to access {name} from {ip}, only super users have."
            raise self._denied(AUTHORIZATION, user.name, ip, name, remark)
        self.authorize(user, needs, ip, name)
        if fields is not None:
            if len(self._granted) >= DECISIONS_MAX:
                self._granted.clear()
            self._granted.add(key)

    def may_administer(self, user: User | None, action: Action, ip: str, request: str) -> None:
        """Returns if the user may do `action` with the cluster, as for an endpoint of operators. AccessDeniedError."""
        self.authorize(user, [need(Resource.cluster(self.context.cluster_name), action)], ip, request)

    def guard(self, connection: Connection, command: RemotingCommand) -> None:
        """Refuses a request of remoting before its processor is asked. AccessDeniedError."""
        if not self.config.authentication_enabled:
            return
        ip = ip_of(connection.remote_address)
        try:
            user: User | None = None
            if command.code not in self._unsigned:
                user = self.authenticate_command(command, ip)
            elif self.config.authorization_enabled and command.code not in self._unchecked:
                user = self._if_signed(command)
            self.authorize_command(user, command, ip)
        except AccessDeniedError as error:
            if error.too_many:
                asyncio.get_running_loop().call_soon(connection.close)  # after the answer
            raise

    def _if_signed(self, command: RemotingCommand) -> User | None:
        """The user of a request that needs no signature; None if it has none, or a bad one."""
        user = self._state.users.get(command.ext_fields.get(signature.ACCESS_KEY) or "")
        good = user is not None and user.is_enabled and signature.is_signed_with(command, user.password)
        return user if good else None

    def caller(self, command: RemotingCommand) -> User:
        """The user who signed a request that the guard has let pass; a normal user without rights if nobody did."""
        return self._if_signed(command) or NOBODY

    def _denied(
        self, step: str, name: str | None, ip: str, request: str, remark: str, why: str = ""
    ) -> AccessDeniedError:
        who = shown(name, known=name in self._state.users)
        return AccessDeniedError(step, remark, self.audit.note(step, who, ip, request, why or remark))


def _name_of(code: int) -> str:
    rule = RULES.get(code)
    return rule.name if rule else str(code)
