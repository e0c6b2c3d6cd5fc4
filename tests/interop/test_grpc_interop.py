"""gRPC's own interoperability client, grpc-go's, against its TestService on both servers of the endpoint.

https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md says what the service does. Left out are cases
of what RocketMQ's RPCs never do: metadata in answers, compression, credentials of a cloud, and load reports.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import pytest
import trustme
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from mqlake.proxy.context import GrpcContext
from mqlake.proxy.grpcio_server import GrpcioServer
from mqlake.proxy.nghttp2_server import NgHttp2Server
from mqlake.proxy.rpc import GrpcStatus, Rpc, RpcAbortedError
from mqlake.remoting.loop import run
from mqlake.remoting.tls import TlsConfig, TlsMode
from tests.interop.go_programs import installed
from tests.waiting import PATIENCE_S

CLIENT = "google.golang.org/grpc/interop/client@v1.81.1"
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "pick_first_unary",
    "rpc_soak",
    "channel_soak",
)
_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {"int32": _FIELD.TYPE_INT32, "bytes": _FIELD.TYPE_BYTES, "string": _FIELD.TYPE_STRING}
MESSAGES = {
    "Empty": (),
    "Payload": ((2, "body", "bytes"),),
    "EchoStatus": ((1, "code", "int32"), (2, "message", "string")),
    "SimpleRequest": (
        (2, "response_size", "int32"),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ),
    "SimpleResponse": ((1, "payload", "Payload"), (4, "server_id", "string")),
    "StreamingInputCallRequest": ((1, "payload", "Payload"),),
    "StreamingInputCallResponse": ((1, "aggregated_payload_size", "int32"),),
    "ResponseParameters": ((1, "size", "int32"), (2, "interval_us", "int32")),
    "StreamingOutputCallRequest": (
        (2, "response_parameters", "*ResponseParameters"),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ),
    "StreamingOutputCallResponse": ((1, "payload", "Payload"),),
}
"""Of grpc/testing/messages.proto what the cases need: numbers, names and types of fields; a star is for many."""


def _classes() -> dict[str, type[Message]]:
    described = descriptor_pb2.FileDescriptorProto(
        name="interop.proto", package="grpc.testing", syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = described.message_type.add(name=name)
        for number, field, kind in fields:
            label = _FIELD.LABEL_REPEATED if kind[0] == "*" else _FIELD.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if kind in _KINDS:
                made.type = _KINDS[kind]
            else:
                made.type, made.type_name = _FIELD.TYPE_MESSAGE, f".grpc.testing.{kind.lstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"grpc.testing.{name}")) for name in MESSAGES}


TYPES: dict[str, Any] = _classes()


def _check(request: Any) -> None:
    if request.response_status.code:
        raise RpcAbortedError(GrpcStatus(request.response_status.code), request.response_status.message)


async def _empty_call(_request: Message, _context: GrpcContext) -> Message:
    return TYPES["Empty"]()


async def _unary_call(request: Any, _context: GrpcContext) -> Message:
    _check(request)
    return TYPES["SimpleResponse"](payload={"body": bytes(request.response_size)}, server_id="the only one")


async def _streaming_input_call(requests: AsyncIterable[Any], context: GrpcContext) -> None:
    size = 0
    async for request in requests:
        size += len(request.payload.body)
    await context.write(TYPES["StreamingInputCallResponse"](aggregated_payload_size=size))


async def _output(request: Any, context: GrpcContext) -> None:
    for each in request.response_parameters:
        await asyncio.sleep(each.interval_us / 1e6)
        await context.write(TYPES["StreamingOutputCallResponse"](payload={"body": bytes(each.size)}))
    _check(request)


async def _full_duplex_call(requests: AsyncIterable[Any], context: GrpcContext) -> None:
    async for request in requests:
        await _output(request, context)


def rpcs() -> list[Rpc]:
    """The TestService."""

    def rpc(
        name: str,
        taken: str,
        given: str,
        method: Any,
        *,
        many_requests: bool = False,
        many_answers: bool = False,
    ) -> Rpc:
        return Rpc(
            "grpc.testing.TestService",
            name,
            TYPES[taken].FromString,
            TYPES[given].SerializeToString,
            method,
            many_requests=many_requests,
            many_answers=many_answers,
        )

    streamed = ("StreamingOutputCallRequest", "StreamingOutputCallResponse")
    return [
        rpc("EmptyCall", "Empty", "Empty", _empty_call),
        rpc("UnaryCall", "SimpleRequest", "SimpleResponse", _unary_call),
        rpc(
            "StreamingInputCall",
            "StreamingInputCallRequest",
            "StreamingInputCallResponse",
            _streaming_input_call,
            many_requests=True,
            many_answers=True,
        ),
        rpc("StreamingOutputCall", *streamed, _output, many_answers=True),
        rpc("FullDuplexCall", *streamed, _full_duplex_call, many_requests=True, many_answers=True),
    ]


@pytest.fixture(scope="module")
def interop_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(CLIENT, tmp_path_factory.mktemp("interop"))


@pytest.mark.nightly
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("server_class", [NgHttp2Server, GrpcioServer])
def test_every_case_passes(
    server_class: type[NgHttp2Server | GrpcioServer], tls: bool, interop_client: Path, tmp_path: Path
) -> None:
    """The client was written from gRPC's rules, not for this server."""
    config, options = TlsConfig(mode=TlsMode.DISABLED), ["--use_tls=false"]
    if tls:
        authority, made = trustme.CA(), str(tmp_path / "server.pem")
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(made)
        trusted = str(tmp_path / "ca.pem")
        authority.cert_pem.write_to_path(trusted)
        config = TlsConfig(mode=TlsMode.ENFORCING, cert_path=made, key_path=made)
        options = [
            "--use_tls=true",
            "--use_test_ca=true",
            f"--ca_file={trusted}",
            "--server_host_override=localhost",
        ]

    def failure(port: int, case: str) -> str:
        """What the client says; nothing where the case passes."""
        command = [
            str(interop_client),
            "--server_host=127.0.0.1",
            f"--server_port={port}",
            f"--test_case={case}",
            "--soak_iterations=20",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        return "" if done.returncode == 0 else done.stderr[-500:] or f"exit status {done.returncode}"

    async def scene() -> dict[str, str]:
        server = server_class(rpcs(), config)
        port = await server.start("127.0.0.1", 0)
        try:
            return {case: said for case in CASES if (said := await asyncio.to_thread(failure, port, case))}
        finally:
            await server.stop(1)

    assert run(scene()) == {}
