"""MessagingService: one method for each RPC, between gRPC and the modules that do the work.

request ─▶ who is it? ─▶ may it? ─▶ the RPC ─▶ its answer
              └───────────┴──────────┴─▶ a StatusError, or any other exception: an answer with its status
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from mqlake.proxy.access import Authenticator
from mqlake.proxy.acknowledge import Acknowledger
from mqlake.proxy.backend import Backend
from mqlake.proxy.clients import Client, Clients, TelemetryStream
from mqlake.proxy.context import GrpcContext, RequestContext, request_context
from mqlake.proxy.offsets import Offsets
from mqlake.proxy.publish import Publisher
from mqlake.proxy.receive import Receiver
from mqlake.proxy.renew import Renewer
from mqlake.proxy.routes import Routes
from mqlake.proxy.rpc import GrpcStatus, Rpc, RpcAbortedError
from mqlake.proxy.settings import merged_settings
from mqlake.proxy.status import OK, StatusError, status_of
from mqlake.proxy.transactions import end_transaction
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import ClientType, Code, Language, Settings

if TYPE_CHECKING:
    from mqlake.proxy.metrics import ProxyMetrics

logger = logging.getLogger(__name__)

SERVICE = v2.DESCRIPTOR.services_by_name["MessagingService"]


class MessagingService:
    def __init__(
        self,
        backend: Backend,
        *,
        advertised: tuple[str, int] | None = None,
        authenticator: Authenticator | None = None,
        metrics: ProxyMetrics | None = None,
    ) -> None:
        """`advertised`: host and port (0: the port it listens on) for clients, instead of the brokers' own."""
        self.backend = backend
        self.clients = Clients(backend)
        self.routes = Routes(backend, advertised)
        self.metrics = metrics
        self._authenticator = authenticator
        self._publisher = Publisher(backend)
        self._acknowledger = Acknowledger()
        self._receiver = Receiver(backend, self._acknowledger)
        self._offsets = Offsets(backend)
        self.renewer = Renewer(self.clients, self._acknowledger)
        self._repeating: set[asyncio.Task[None]] = set()
        self._unary: dict[str, Callable[[RequestContext, Client, Any], Awaitable[Message]]] = {
            "SendMessage": self._publisher.send_message,
            "RecallMessage": self._publisher.recall_message,
            "EndTransaction": end_transaction,
            "AckMessage": self._acknowledger.ack_message,
            "ChangeInvisibleDuration": self._acknowledger.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self._acknowledger.forward_to_dead_letter_queue,
            "UpdateOffset": self._offsets.update_offset,
            "GetOffset": self._offsets.get_offset,
            "QueryOffset": self._offsets.query_offset,
            "QueryRoute": lambda context, _, request: self.routes.query_route(context, request),
            "QueryAssignment": lambda context, _, request: self.routes.query_assignment(context, request),
        }
        self._without_client: dict[str, Callable[[RequestContext, Any], Awaitable[Message]]] = {
            "Heartbeat": self._heartbeat,
            "NotifyClientTermination": self._notify_client_termination,
            "SyncLiteSubscription": self._sync_lite_subscription,
        }

    def rpcs(self) -> list[Rpc]:
        """All RPCs, for a server."""
        streams = {
            "Telemetry": self._telemetry,
            "ReceiveMessage": self._receive_message,
            "PullMessage": self._pull_message,
        }
        return [
            Rpc(
                SERVICE.full_name,
                method.name,
                GetMessageClass(method.input_type).FromString,
                GetMessageClass(method.output_type).SerializeToString,
                streams.get(method.name) or self._answering(method),
                many_requests=method.client_streaming,
                many_answers=method.server_streaming,
            )
            for method in SERVICE.methods
        ]

    def _answering(self, method: MethodDescriptor) -> Callable[[Message, GrpcContext], Awaitable[Message]]:
        name, answer_class = method.name, GetMessageClass(method.output_type)
        with_client, without = self._unary.get(name), self._without_client.get(name)

        async def answer(request: Message, context: GrpcContext) -> Message:
            began = time.perf_counter()
            try:
                caller = self._caller(context, request)
                if with_client is not None:
                    result = await with_client(caller, self.clients.of(caller), request)
                else:
                    assert without is not None
                    result = await without(caller, request)
            except Exception as error:
                result = answer_class(status=status_of(error))
            if self.metrics is not None:
                self.metrics.note(name, result.status.code, time.perf_counter() - began)
            return result

        return answer

    def _caller(self, context: GrpcContext, request: Message) -> RequestContext:
        """Returns the caller of a request. StatusError if it may not."""
        metadata: dict[str, Any] = dict(
            context.invocation_metadata() or ()
        )  # names that end in -bin have bytes
        caller = request_context(metadata, context.peer(), context.time_remaining())
        if not caller.client_id:
            self.clients.of(caller)
        if self._authenticator is not None:
            self._authenticator.check(caller, request)
        return caller

    # --- presence

    async def _heartbeat(self, caller: RequestContext, request: v2.HeartbeatRequest) -> v2.HeartbeatResponse:
        client = self.clients.find(caller)
        if client is None or client.settings is None:
            if request.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
                return v2.HeartbeatResponse(status=OK)  # Go's client tries its connection in this way
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                f"cannot find client settings for this client: {caller.client_id} has to send them by Telemetry",
            )
        self.clients.of(caller)
        await client.heartbeat()
        return v2.HeartbeatResponse(status=OK)

    async def _notify_client_termination(
        self, caller: RequestContext, request: v2.NotifyClientTerminationRequest
    ) -> v2.NotifyClientTerminationResponse:
        client = self.clients.find(caller)
        if client is None:
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"client {caller.client_id} is not known; it may have expired"
            )
        await self.renewer.clear(client)
        await self.clients.remove(client)
        return v2.NotifyClientTerminationResponse(status=OK)

    async def _sync_lite_subscription(
        self, caller: RequestContext, request: v2.SyncLiteSubscriptionRequest
    ) -> v2.SyncLiteSubscriptionResponse:
        raise StatusError(Code.NOT_IMPLEMENTED, "lite topics are not supported")

    # --- streams

    async def _receive_message(self, request: v2.ReceiveMessageRequest, context: GrpcContext) -> None:
        try:
            caller = self._caller(context, request)
            await self._receiver.receive_message(caller, self.clients.of(caller), request, context)
        except Exception as error:
            status = status_of(error)
            if not context.done():
                await context.write(v2.ReceiveMessageResponse(status=status))

    async def _pull_message(self, request: v2.PullMessageRequest, context: GrpcContext) -> None:
        try:
            caller = self._caller(context, request)
            async for answer in self._offsets.pull_message(caller, self.clients.of(caller), request):
                await context.write(answer)
        except Exception as error:
            status = status_of(error)
            if not context.done():
                await context.write(v2.PullMessageResponse(status=status))

    async def _telemetry(self, commands: AsyncIterable[v2.TelemetryCommand], context: GrpcContext) -> None:
        """Serves a client's telemetry stream, which is open as long as the client wants. Its first command has to be
        its settings."""
        stream = TelemetryStream(context)
        client: Client | None = None
        try:
            async for command in commands:
                try:
                    caller = self._caller(context, command)
                    client = self.clients.of(caller)
                    if command.WhichOneof("command") == "settings":
                        await self._take_settings(client, stream, command.settings)
                    else:
                        client.answered(command)
                except StatusError as error:
                    if error.code in (
                        Code.CLIENT_ID_REQUIRED,
                        Code.UNAUTHORIZED,
                        Code.ILLEGAL_TOPIC,
                        Code.ILLEGAL_CONSUMER_GROUP,
                        Code.TOO_MANY_REQUESTS,
                    ):
                        await stream.write(v2.TelemetryCommand(status=error.status))
                        continue
                    stream.closed = True
                    raise RpcAbortedError(
                        GrpcStatus.INVALID_ARGUMENT, f"process client telemetryCommand failed. {error}"
                    ) from error
                except Exception as error:
                    await stream.write(v2.TelemetryCommand(status=status_of(error)))
        finally:
            stream.closed = True
            if client is not None and client.stream is stream:
                client.stream = None

    async def _take_settings(self, client: Client, stream: TelemetryStream, wanted: Settings) -> None:
        answer = await merged_settings(self.backend, wanted)
        client.settings = answer
        client.stream = stream
        await client.heartbeat()
        await stream.write(v2.TelemetryCommand(status=OK, settings=answer))
        if wanted.user_agent.language == Language.NODE_JS:
            self._repeat(client, stream)

    def _repeat(self, client: Client, stream: TelemetryStream) -> None:
        """Node.js' client 1.0.8 begins to wait for its settings when it has the routes of all its topics. It misses
        those that come before, and a producer of several topics then hangs for five minutes."""

        async def again() -> None:
            await asyncio.sleep(REPEAT_AFTER_S)
            if client.stream is stream:
                await client.command(v2.TelemetryCommand(status=OK, settings=client.settings))

        task = asyncio.ensure_future(again())
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    # --- life

    async def housekeeping(self) -> None:
        """One round of what is done every few seconds."""
        await self.renewer.renew()
        for client in list(self.clients.table.values()):
            if client.renewals and client.stream is None and time.monotonic() - client.seen_at > GONE_AFTER_S:
                await self.renewer.clear(client)
        await self.clients.expire()
        if self._authenticator is not None:
            await self._authenticator.refresh()

    async def start(self) -> None:
        """Before the first RPC."""
        if self._authenticator is not None:
            await self._authenticator.refresh()

    async def close(self) -> None:
        for task in self._repeating:
            task.cancel()
        await self.clients.close()


REPEAT_AFTER_S = 1.0
GONE_AFTER_S = 30.0
"""A client without a stream that has not called for so long has gone."""
