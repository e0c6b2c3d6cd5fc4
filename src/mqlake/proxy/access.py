"""Access control for RPCs: who signed one, and what it needs.

    authorization: MQv2-HMAC-SHA1 Credential=AK[/region/service], SignedHeaders=x-mq-date-time, Signature=HEX

The signature is over the header x-mq-date-time alone. Users and their rights are those of the broker in this process;
an endpoint in front of a cluster asks the cluster's brokers for theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from google.protobuf.message import Message

from mqlake.auth.access import AccessControl, AccessDeniedError
from mqlake.auth.config import AuthConfig
from mqlake.auth.evaluator import Need, need
from mqlake.auth.model import Action, Resource
from mqlake.auth.requests import Context
from mqlake.auth.sources import ip_of
from mqlake.auth.state import State
from mqlake.auth.storage import Storage
from mqlake.errors import MqlakeError
from mqlake.proxy.context import RequestContext
from mqlake.proxy.remote import RemoteBackend
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import ClientType, Code, Settings

logger = logging.getLogger(__name__)

_CONSUMERS = (
    ClientType.PUSH_CONSUMER,
    ClientType.SIMPLE_CONSUMER,
    ClientType.PULL_CONSUMER,
    ClientType.LITE_PUSH_CONSUMER,
    ClientType.LITE_SIMPLE_CONSUMER,
)


class Authenticator(Protocol):
    """Decides whether an RPC may go on."""

    def check(self, context: RequestContext, request: Message) -> None:
        """Notes who it is in `context.user`. StatusError UNAUTHORIZED."""

    async def refresh(self) -> None:
        """Called at the start and every few seconds."""


class AccessAuthenticator:
    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def check(self, context: RequestContext, request: Message) -> None:
        ip = ip_of(context.remote_address)
        name = request.DESCRIPTOR.full_name
        metadata = context.metadata
        try:
            user = self._access.authenticate_grpc(
                metadata.get("authorization"), metadata.get("x-mq-date-time"), ip, name, context.began_at
            )
            context.user = "" if user is None else user.name
            self._access.authorize(user, needs_of(request), ip, name)
        except AccessDeniedError as error:
            raise StatusError(Code.UNAUTHORIZED, error.remark) from None

    async def refresh(self) -> None:
        """The broker's own are always up to date."""


class _ClusterAccess(AccessControl):
    """Users and acls as a broker answered them; nothing is stored here."""

    def take(self, state: State) -> None:
        if state != self._state:
            self._set(state)


class ClusterAuthenticator(AccessAuthenticator):
    """Lets in the users of a cluster, who are read every few seconds. Until they have been read, nobody; while they
    cannot be read, those of before."""

    def __init__(self, config: AuthConfig, backend: RemoteBackend) -> None:
        """`backend` has to sign as a super user: brokers give secrets to nobody else."""
        self._users = _ClusterAccess(config, Storage(""), Context(""))
        super().__init__(self._users)
        self._backend = backend
        self._failing = False

    async def refresh(self) -> None:
        try:
            state = await self._backend.users_and_acls()
        except MqlakeError as error:
            if not self._failing:  # once, and not every few seconds
                logger.error("users and acls cannot be read from the brokers: %s", error)
            self._failing = True
            return
        if state.users and not any(user.password for user in state.users.values()):
            if not self._failing:
                logger.error(
                    "the brokers do not give the users' secrets: sign as a super user (--access-key)"
                )
            self._failing = True
            return
        self._failing = False
        self._users.take(state)


def needs_of(request: Message) -> Iterator[Need]:
    """Yields the needs of a request's sender. Names that are missing are left to the checks of the RPC."""
    for topic, group, action in _touched(request):
        if topic:
            actions = (Action.PUB, Action.SUB) if action is Action.ANY else (action,)
            yield need(Resource.topic(topic), *actions)
        if group:
            yield need(Resource.group(group), Action.SUB)


def _touched(request: Message) -> Iterator[tuple[str, str, Action]]:
    """(topic, group, what is done with the topic)."""
    if isinstance(request, v2.SendMessageRequest):
        for topic in dict.fromkeys(message.topic.name for message in request.messages):
            yield topic, "", Action.PUB
    elif isinstance(request, v2.EndTransactionRequest | v2.RecallMessageRequest):
        yield request.topic.name, "", Action.PUB
    elif isinstance(request, v2.QueryRouteRequest):
        yield request.topic.name, "", Action.ANY
    elif isinstance(request, v2.HeartbeatRequest):
        if request.client_type in _CONSUMERS:
            yield "", request.group.name, Action.SUB
    elif isinstance(request, v2.TelemetryCommand):
        yield from _of_settings(request.settings)
    elif isinstance(request, v2.NotifyClientTerminationRequest):
        yield "", request.group.name, Action.SUB
    elif isinstance(request, v2.QueryOffsetRequest):
        yield request.message_queue.topic.name, "", Action.SUB
    elif isinstance(
        request,
        v2.ReceiveMessageRequest | v2.PullMessageRequest | v2.UpdateOffsetRequest | v2.GetOffsetRequest,
    ):
        yield request.message_queue.topic.name, request.group.name, Action.SUB
    elif isinstance(
        request,
        v2.AckMessageRequest
        | v2.ChangeInvisibleDurationRequest
        | v2.ForwardMessageToDeadLetterQueueRequest
        | v2.QueryAssignmentRequest
        | v2.SyncLiteSubscriptionRequest,
    ):
        yield request.topic.name, request.group.name, Action.SUB


def _of_settings(settings: Settings) -> Iterator[tuple[str, str, Action]]:
    for topic in settings.publishing.topics:
        yield topic.name, "", Action.PUB
    yield "", settings.subscription.group.name, Action.SUB
    for entry in settings.subscription.subscriptions:
        yield entry.topic.name, "", Action.SUB
