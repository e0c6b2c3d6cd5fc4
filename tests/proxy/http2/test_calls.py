"""Calls, with gRPC's own client on the other side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from mqlake.proxy.http2.calls import Call, GrpcCode, Kinds, Method, opener
from mqlake.proxy.http2.connection import Http2Connection
from mqlake.remoting.loop import run

BIG = bytes(range(256)) * 16 * 1024
"""4 MiB: many frames, and more than a client's window."""


class Served:
    """What the methods have noted."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.seen: list[Any] = []

    async def echo(self, request: BytesValue, call: Call) -> BytesValue:
        self.seen.append((dict(call.invocation_metadata()).get("who"), call.peer(), call.time_remaining()))
        return request

    async def fails(self, request: BytesValue, call: Call) -> BytesValue:
        if request.value == b"abort":
            await call.abort(GrpcCode.INVALID_ARGUMENT, "not like this: 50 % größer")
        raise ValueError("a fault")

    async def waits(self, request: BytesValue, call: Call) -> BytesValue:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return request

    async def many(self, request: BytesValue, call: Call) -> None:
        for number in range(20):
            await call.write(BytesValue(value=b"%d" % number + BIG[: 1 << 18]))
        if request.value:
            raise ValueError("a fault after some answers")

    async def chat(self, requests: AsyncIterator[BytesValue], call: Call) -> None:
        async for request in requests:
            await call.write(BytesValue(value=request.value.upper()))
        await call.write(BytesValue(value=b"bye"))

    def methods(self) -> dict[str, Method]:
        kinds = {"many": Kinds.SERVER_STREAM, "chat": Kinds.BIDIRECTIONAL}
        return {
            f"/S/{name}": Method(kinds.get(name, Kinds.UNARY), BytesValue.FromString, getattr(self, name))
            for name in ("echo", "fails", "waits", "many", "chat")
        }


class Client:
    def __init__(self, channel: grpc.aio.Channel, served: Served) -> None:
        self.channel, self.served = channel, served
        self._coders: Any = {
            "request_serializer": BytesValue.SerializeToString,
            "response_deserializer": BytesValue.FromString,
        }

    def unary(self, name: str, value: bytes, **more: Any) -> Any:
        return self.channel.unary_unary(f"/S/{name}", **self._coders)(BytesValue(value=value), **more)

    def stream(self, name: str, value: bytes) -> Any:
        return self.channel.unary_stream(f"/S/{name}", **self._coders)(BytesValue(value=value))

    def chat(self) -> Any:
        return self.channel.stream_stream("/S/chat", **self._coders)()

    async def failure(self, answer: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await answer
        return error.value.code(), error.value.details() or ""


def scene(play: Callable[[Client], Awaitable[None]], **channel: Any) -> None:
    async def main() -> None:
        served, connections = Served(), set[Http2Connection]()
        opened = opener(served.methods())
        server = await asyncio.get_running_loop().create_server(
            lambda: Http2Connection(opened, connections), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        options = [("grpc.max_receive_message_length", -1)]
        async with (
            asyncio.timeout(60),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options, **channel) as opened_channel,
        ):
            await play(Client(opened_channel, served))
        server.close()
        for connection in list(connections):
            connection.abort()

    run(main())


def test_one_request_one_answer():
    async def play(client: Client) -> None:
        answer = await client.unary("echo", b"hello", metadata=[("who", "me")], timeout=50)
        assert answer.value == b"hello"
        ((who, peer, remaining),) = client.served.seen
        assert (who, peer.startswith("ipv4:127.0.0.1:")) == ("me", True)
        assert 0 < remaining <= 50
        await client.unary("echo", b"")
        assert client.served.seen[1][2] is None
        answers = await asyncio.gather(*[client.unary("echo", b"%d" % number) for number in range(200)])
        assert [answer.value for answer in answers] == [b"%d" % number for number in range(200)]

    scene(play)


def test_large_messages():
    async def play(client: Client) -> None:
        answers = await asyncio.gather(*[client.unary("echo", BIG) for _ in range(5)])
        assert all(answer.value == BIG for answer in answers)
        parts = [answer.value async for answer in client.stream("many", b"")]
        assert parts == [b"%d" % number + BIG[: 1 << 18] for number in range(20)]

    scene(play)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests(compression: grpc.Compression):
    async def play(client: Client) -> None:
        assert (await client.unary("echo", BIG)).value == BIG

    scene(play, compression=compression)


def test_a_conversation():
    async def play(client: Client) -> None:
        chat = client.chat()
        for word in (b"one", b"two"):
            await chat.write(BytesValue(value=word))
            assert (await chat.read()).value == word.upper()
        for _ in range(40):  # more than the window of a stream
            await chat.write(BytesValue(value=BIG[: 1 << 18]))
            assert len((await chat.read()).value) == 1 << 18
        await chat.done_writing()
        assert (await chat.read()).value == b"bye"
        assert await chat.read() is grpc.aio.EOF

    scene(play)


def test_failures():
    async def play(client: Client) -> None:
        code, text = await client.failure(client.unary("fails", b""))
        assert (code, "ValueError: a fault" in text) == (grpc.StatusCode.UNKNOWN, True)
        assert await client.failure(client.unary("fails", b"abort")) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "not like this: 50 % größer",
        )
        code, text = await client.failure(client.unary("nothing", b""))
        assert (code, text) == (grpc.StatusCode.UNIMPLEMENTED, "there is no method /S/nothing")
        garbage = client.channel.unary_unary("/S/echo")(b"\xff\xff")
        code, text = await client.failure(garbage)
        assert (code, "cannot be decoded" in text) == (grpc.StatusCode.INTERNAL, True)
        answers = client.stream("many", b"fail")
        parts = []
        with pytest.raises(grpc.aio.AioRpcError, match="a fault after"):
            async for answer in answers:
                parts.append(answer)
        assert len(parts) == 20
        assert (await client.unary("echo", b"still there")).value == b"still there"

    scene(play)


def test_a_client_that_gives_up_cancels_the_method():
    async def play(client: Client) -> None:
        call = client.unary("waits", b"", timeout=0.2)
        assert (await client.failure(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await client.served.cancelled.wait()
        assert (await client.unary("echo", b"x")).value == b"x"

    scene(play)
