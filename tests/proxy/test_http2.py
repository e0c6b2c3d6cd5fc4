"""The server on nghttp2: bytes by hand, and grpcio's client; afterwards no stream and no task is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import ngh2
import pytest

from mqlake.proxy import grpc_call, http2
from mqlake.proxy.http2 import HEADER_FIELDS_MAX, Http2Connection
from mqlake.proxy.nghttp2_server import NgHttp2Server
from mqlake.proxy.rpc import IDLE_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, GrpcStatus, Rpc, RpcAbortedError
from mqlake.remoting.loop import run
from mqlake.remoting.tls import TlsConfig
from tests.proxy.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Raw,
    begin,
    call,
    frame,
    head,
    literals,
    message,
    reset,
    window,
)
from tests.waiting import PATIENCE_S, until_async

SERVICE = "test.Service"
BODY = bytes(range(200))


def path(name: str) -> bytes:
    return f"/{SERVICE}/{name}".encode()


ECHO, WAIT, MANY, CHAT = path("Echo"), path("Wait"), path("Many"), path("Chat")


class Service:
    """Methods over bytes."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = self.cancelled = 0
        self.written = 0
        self.contexts: list[Any] = []

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.contexts.append(context)
        return request

    async def wait(self, request: bytes, context: Any) -> bytes:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def broken(self, request: bytes, context: Any) -> bytes:
        raise ValueError("no 100 % \u2713\n")

    async def many(self, request: bytes, context: Any) -> None:
        """As many answers of 32 KiB as the request says."""
        for _ in range(int(request)):
            await context.write(bytes(32_768))
            self.written += 1

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            if request == b"enough":
                raise RpcAbortedError(GrpcStatus.INVALID_ARGUMENT, "enough")
            await context.write(request)
            if request == b"hold":
                await self.go.wait()

    def rpcs(self) -> list[Rpc]:
        def rpc(name: str, method: Callable[[Any, Any], Awaitable[Any]], **kinds: bool) -> Rpc:
            return Rpc(SERVICE, name, bytes, bytes, method, **kinds)

        return [
            rpc("Echo", self.echo),
            rpc("Wait", self.wait),
            rpc("Broken", self.broken),
            rpc("Many", self.many, many_answers=True),
            rpc("Chat", self.chat, many_requests=True, many_answers=True),
        ]


class Scene:
    def __init__(self, tls: TlsConfig | None = None) -> None:
        self.service = Service()
        self.server = NgHttp2Server(self.service.rpcs(), tls or TlsConfig())
        self.port = 0

    @property
    def connection(self) -> Http2Connection:
        (connection,) = self.server.connections
        return connection

    @property
    def streams(self) -> int:
        return sum(len(connection.streams) for connection in self.server.connections)

    async def raw(self, preface: bytes = PREFACE) -> Raw:
        return await Raw.open(self.port, preface)

    async def answer(self, *parts: bytes) -> list[Any]:
        """The frames of stream 1 on a connection of its own."""
        raw = await self.raw()
        raw.send(*parts)
        found = await raw.answer(1)
        await raw.close()
        return found

    def stub(self, channel: Any, name: str, kind: str = "unary_unary") -> Any:
        return getattr(channel, kind)(f"/{SERVICE}/{name}")


@contextlib.asynccontextmanager
async def serving(tls: TlsConfig | None = None) -> AsyncIterator[Scene]:
    scene = Scene(tls)
    scene.port = await scene.server.start("127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE_S):
        try:
            yield scene
            await until_async(lambda: not scene.server.calls, "no call is left")
        finally:
            await scene.server.stop(0.0)
        assert not scene.server.connections and not scene.server.calls


def on_a_server(scene_of: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving() as scene:
            await scene_of(scene)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in left if "GrpcCall" in repr(task)], left

    run(main())


def bodies(frames: list[Any]) -> bytes:
    return b"".join(one.data for one in frames if one.kind == DATA)


def statuses(frames: list[Any], status: GrpcStatus) -> bool:
    """True if the last frame has this status, by HPACK with and without its table."""
    text = b"%d" % status
    data = frames[-1].data
    return frames[-1].kind == HEADERS and (data.endswith(text) or b"\x01" + text in data or text in data)


def options() -> list[tuple[str, int]]:
    return [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def code_of(answering: Any) -> tuple[Any, str]:
    try:
        await answering
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


# --- the calls of ngh2


QUESTION = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"x")]


def pair() -> tuple[Any, Any]:
    """A client's and a server's session that have greeted each other."""
    manual = ngh2.Configuration(auto_window_update=False)
    client, server = ngh2.Connection(ngh2.Role.CLIENT, manual), ngh2.Connection(ngh2.Role.SERVER, manual)
    client.initiate_connection()
    server.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 131_072})
    carry(client, server)
    client.events(), server.events()
    return client, server


def carry(*ends: Any) -> None:
    moved = True
    while moved:
        moved = False
        for one, other in (ends, ends[::-1]):
            if data := one.data_to_send(1000):
                other.receive_data(memoryview(bytearray(data)))
                moved = True


def test_the_package_is_the_one_that_is_known():
    assert ngh2.__version__ == "0.3.0"


def test_a_session_gives_requests_and_takes_answers():
    client, server = pair()
    stream = client.send_request([*QUESTION, (b"a", b"b")])
    client.send_data(stream, b"question", end_stream=True)
    carry(client, server)
    request, data = server.events()
    assert isinstance(request, ngh2.RequestReceived) and not request.end_stream
    assert dict(request.headers)[b"a"] == b"b" and request.stream_id == stream
    assert isinstance(data, ngh2.DataReceived) and data.data == b"question" and data.end_stream
    server.send_response(stream, [(b":status", b"200")])
    server.send_data(stream, b"." * 100_000)
    server.send_trailers(stream, [(b"grpc-status", b"0")])
    assert server.queued_body_size(stream) == 100_000
    carry(client, server)
    assert server.queued_body_size(stream) == 100_000 - 65_535 and not server.want_write
    client.acknowledge_received_data(65_535, stream)
    carry(client, server)
    assert server.queued_body_size(stream) == 0
    assert [type(event) for event in server.events()][-1] is ngh2.StreamClosed
    assert sum(len(e.data) for e in client.events() if isinstance(e, ngh2.DataReceived)) == 100_000
    assert server.want_read


def test_bytes_of_streams_that_were_reset_are_acknowledged_afterwards():
    client, server = pair()
    server.set_local_window_size(1 << 20)
    for _ in range(64):  # 8 MiB in all
        stream = client.send_request(QUESTION)
        client.send_data(stream, bytes(100_000))
        carry(client, server)
        size = sum(len(e.data) for e in server.events() if isinstance(e, ngh2.DataReceived))
        assert size == 100_000
        client.reset_stream(stream, 8)
        carry(client, server)
        assert any(isinstance(event, ngh2.StreamClosed) for event in server.events())
        server.acknowledge_received_data(size, stream)
        carry(client, server)


def test_a_session_ends():
    _, server = pair()
    server.terminate_connection(0)
    assert server.data_to_send() and not server.want_read and not server.want_write
    client, server = pair()
    server.ping()
    carry(client, server)
    assert any(isinstance(event, ngh2.PingAcknowledged) for event in server.events())
    server.send_goaway(0)
    client.receive_data(server.data_to_send())
    assert any(isinstance(event, ngh2.GoAwayReceived) for event in client.events())
    for error in (server.send_response, server.send_trailers):
        with pytest.raises(ngh2.NGH2Error):
            error(99, [(b"a", b"b")])
    assert server.queued_body_size(99) == 0


# --- one call


def test_a_call():
    async def scene(it: Scene) -> None:
        frames = await it.answer(call(1, ECHO, BODY))
        assert [one.kind for one in frames] == [HEADERS, DATA, HEADERS]
        assert bodies(frames) == message(BODY) and statuses(frames, GrpcStatus.OK)

    on_a_server(scene)


def test_frames_and_writes_of_a_byte():
    async def scene(it: Scene) -> None:
        data = message(BODY)
        single = [frame(DATA, n == len(data) - 1, 1, data[n : n + 1]) for n in range(len(data))]
        assert bodies(await it.answer(begin(1, ECHO), *single)) == data
        raw = await it.raw(b"")
        for byte in PREFACE + call(1, ECHO, BODY):
            raw.send(bytes([byte]))
            await raw.writer.drain()
            await asyncio.sleep(0)
        assert bodies(await raw.answer(1)) == data
        await raw.close()

    on_a_server(scene)


def test_trailers_end_a_request():
    async def scene(it: Scene) -> None:
        trailer = frame(HEADERS, END_HEADERS | END_STREAM, 1, literals([(b"a", b"b")]))
        frames = await it.answer(begin(1, ECHO) + frame(DATA, 0, 1, message(BODY)) + trailer)
        assert bodies(frames) == message(BODY)

    on_a_server(scene)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", GrpcStatus.INTERNAL),
        (b"\0\0", GrpcStatus.INTERNAL),
        (message(BODY)[:-1], GrpcStatus.INTERNAL),
        (message(BODY) + b"x", GrpcStatus.INTERNAL),
        (message(BODY) * 2, GrpcStatus.INTERNAL),
        (message(BODY, compressed=1), GrpcStatus.UNIMPLEMENTED),
        (message(BODY, compressed=7), GrpcStatus.INTERNAL),
        (b"\0\x7f\xff\xff\xff" + BODY, GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
def test_bodies_that_are_no_message(body: bytes, status: GrpcStatus):
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(begin(1, ECHO) + frame(DATA, END_STREAM, 1, body) + call(3, ECHO, BODY))
        frames = await raw.until(HEADERS, 3, END_STREAM)
        of_first = [one for one in frames if one.stream == 1]
        assert [one.kind for one in of_first] == [HEADERS] and statuses(of_first, status)
        assert bodies(frames) == message(BODY)
        await until_async(lambda: not it.streams and not it.connection.held)
        await raw.close()

    on_a_server(scene)


def test_what_is_no_grpc():
    async def scene(it: Scene) -> None:
        whole = END_HEADERS | END_STREAM
        get = await it.answer(frame(HEADERS, whole, 1, head(ECHO, method=b"GET")))
        assert b"405" in get[0].data or get[0].data[0] != 0x88
        html = await it.answer(frame(HEADERS, whole, 1, head(ECHO, content_type=b"text/html")))
        assert html[0].data[0] != 0x88
        assert statuses(await it.answer(frame(HEADERS, whole, 1, head(ECHO))), GrpcStatus.INTERNAL)
        assert statuses(await it.answer(call(1, path("Nothing"), BODY)), GrpcStatus.UNIMPLEMENTED)
        late = (b"grpc-timeout", b"3 hours")
        assert statuses(await it.answer(call(1, ECHO, BODY, late)), GrpcStatus.INTERNAL)
        # an answer before the end of the request: the client is told to stop
        raw = await it.raw()
        raw.send(begin(1, path("Nothing")))
        await raw.until(RST_STREAM, 1)
        await until_async(lambda: not it.streams)
        await raw.close()

    on_a_server(scene)


def test_metadata_peer_and_deadline_are_the_methods():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            metadata = (("x-mq-client-id", "c"), ("some-bin", b"\0\1\2"))
            assert await it.stub(channel, "Echo")(b"x", metadata=metadata, timeout=50) == b"x"
        (context,) = it.service.contexts
        found = dict(context.invocation_metadata())
        assert (
            found["x-mq-client-id"] == "c" and found["some-bin"] == b"\0\1\2" and "grpc-timeout" not in found
        )
        assert context.peer().startswith("ipv4:127.0.0.1:") and 0 < context.time_remaining() <= 50
        assert context.done()
        with pytest.raises(ConnectionResetError):
            await context.write(b"late")

    on_a_server(scene)


def test_statuses_reach_grpcios_client():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            code, details = await code_of(it.stub(channel, "Broken")(b"x"))
            assert (code, details) == (grpc.StatusCode.UNKNOWN, "ValueError: no 100 % \u2713\n")
            code, _ = await code_of(it.stub(channel, "Nothing")(b"x"))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            code, details = await code_of(
                it.stub(channel, "Echo")(bytes(1000), compression=grpc.Compression.Gzip)
            )
            assert code is grpc.StatusCode.UNIMPLEMENTED and "compressed" in details

    on_a_server(scene)


def test_deadlines_end_calls():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(call(1, WAIT, BODY, (b"grpc-timeout", b"20m")), begin(3, ECHO, (b"grpc-timeout", b"20m")))
        frames = await raw.answer(1)
        assert statuses(frames, GrpcStatus.DEADLINE_EXCEEDED)
        await until_async(lambda: it.service.cancelled == 1 and not it.streams)
        await raw.close()

    on_a_server(scene)


def test_resets_cancel_calls():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(begin(1, ECHO) + frame(DATA, 0, 1, message(BODY)[:50]) + reset(1))
        raw.send(call(3, WAIT, BODY))
        await until_async(lambda: it.service.begun == 1)
        raw.send(reset(3) + begin(5, CHAT))
        await until_async(lambda: it.service.cancelled == 1)
        raw.send(reset(5) + call(7, ECHO, BODY))
        frames = await raw.until(HEADERS, 7, END_STREAM)
        assert not [one for one in frames if one.stream in (1, 3, 5)]
        await until_async(lambda: not it.streams and not it.server.calls and not it.connection.held)
        # and the end of a connection
        raw.send(call(9, WAIT, BODY), begin(11, CHAT))
        await until_async(lambda: it.service.begun == 2)
        await raw.close()
        await until_async(lambda: it.service.cancelled == 2 and not it.server.connections)

    on_a_server(scene)


# --- sizes and numbers


def test_large_messages_each_way():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}", options=options()) as channel:
            for size in (0, 1, 16_383, 16_384, 65_535, 1 << 20, 4 << 20, 20 << 20):
                body = random.Random(size).randbytes(size)
                assert await it.stub(channel, "Echo")(body) == body, size
            some = [random.Random(n).randbytes(n * 997 % 300_000) for n in range(200)]
            assert await asyncio.gather(*(it.stub(channel, "Echo")(body) for body in some)) == some
            assert it.connection.held == 0

    on_a_server(scene)


def test_many_large_messages_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http2, "HELD_MAX", 1 << 20)

    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}", options=options()) as channel:
            some = [random.Random(n).randbytes(3 << 20) for n in range(12)]
            assert await asyncio.gather(*(it.stub(channel, "Echo")(body) for body in some)) == some
            assert it.connection.held == 0

    on_a_server(scene)


def test_200_calls_at_once_half_of_them_cancelled():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            calls = [it.stub(channel, "Wait")(b"x") for _ in range(200)]
            await until_async(lambda: it.service.begun == 200)
            for one in calls[::2]:
                one.cancel()
            await until_async(lambda: it.service.cancelled == 100)
            it.service.go.set()
            assert await asyncio.gather(*calls[1::2]) == [b"x"] * 100

    on_a_server(scene)


def test_both_ways_at_once():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            stream = it.stub(channel, "Chat", "stream_stream")()
            for n in range(50):
                await stream.write(b"%d" % n)
                assert await stream.read() == b"%d" % n
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF and await stream.code() is grpc.StatusCode.OK
            stream = it.stub(channel, "Chat", "stream_stream")()
            await stream.write(b"enough")
            code, details = await code_of(stream.read())
            assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "enough")

    on_a_server(scene)


def test_a_method_that_reads_slowly_is_not_sent_more():
    async def scene(it: Scene) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            stream = it.stub(channel, "Chat", "stream_stream")()
            await stream.write(b"hold")
            assert await stream.read() == b"hold"

            async def send() -> None:
                for _ in range(100):
                    await stream.write(bytes(32_768))
                await stream.done_writing()

            async def count() -> int:
                found = 0
                while await stream.read() is not grpc.aio.EOF:
                    found += 1
                return found

            sending = asyncio.create_task(send())
            await until_async(lambda: it.connection.held >= 64 * 1024)
            other = it.stub(channel, "Echo")
            for _ in range(20):
                assert await other(b"x") == b"x"
            assert it.connection.held <= 2 * http2.STREAM_WINDOW
            it.service.go.set()
            assert await count() == 100
            await sending
            await until_async(lambda: it.connection.held == 0)

    on_a_server(scene)


def test_a_client_that_reads_slowly_makes_the_method_wait():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(window(1 << 30), call(1, MANY, b"100"), call(3, ECHO, BODY))
        frames = await raw.until(HEADERS, 3, END_STREAM)
        assert it.service.written < 10
        assert it.connection.queued(1) <= 4 * 32_768
        raw.send(window(100 * 40_000, 1))
        more = await raw.until(HEADERS, 1, END_STREAM)
        got = b"".join(one.data for one in [*frames, *more] if one.kind == DATA and one.stream == 1)
        assert len(got) == 100 * (32_768 + 5) and it.service.written == 100
        # one that never reads is ended by its deadline
        raw.send(call(5, MANY, b"1000", (b"grpc-timeout", b"20m")))
        await raw.until(RST_STREAM, 5)
        await until_async(lambda: not it.streams and not it.server.calls)
        await raw.close()

    on_a_server(scene)


def test_a_client_that_does_not_read_its_socket():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.writer.transport.pause_reading()
        raw.send(window(1 << 30))
        for stream in range(1, 101, 2):
            raw.send(call(stream, MANY, b"1000") + window(1 << 30, stream))
        await until_async(lambda: it.connection._paused)
        written = -1
        while written != it.service.written:
            written = it.service.written
            for _ in range(50):
                await asyncio.sleep(0)
        waits = sum(it.connection.queued(stream) for stream in range(1, 101, 2))
        assert waits <= 50 * 4 * 32_768
        raw.writer.transport.abort()
        await until_async(lambda: not it.server.connections and not it.server.calls)

    on_a_server(scene)


# --- abuse


@pytest.mark.parametrize(
    "flood",
    [
        (b"".join(begin(n, WAIT) + reset(n) for n in range(1, 40_001, 2))),
        (frame(PING, 0, 0, bytes(8)) * 20_000),
        (frame(SETTINGS) * 20_000),
        (begin(1, ECHO) + frame(DATA, 0, 1) * 40_000),
        (frame(77) * 40_000),
        (frame(HEADERS, 0, 1, head(ECHO)) + frame(CONTINUATION, 0, 1) * 20_000),
    ],
    ids=["resets", "pings", "settings", "empty data", "unknown frames", "continuations"],
)
def test_floods_end_the_connection(flood: bytes):
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.writer.transport.pause_reading()
        with contextlib.suppress(ConnectionError):
            raw.send(flood)
            await raw.writer.drain()
        await until_async(lambda: not it.server.connections and not it.server.calls)
        await raw.close()
        assert bodies(await it.answer(call(1, ECHO, BODY))) == message(BODY)

    on_a_server(scene)


def test_half_open_calls_are_bounded_and_given_up():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(b"".join(begin(n, ECHO) for n in range(1, 6001, 2)))
        raw.send(frame(PING, 0, 0, bytes(8)))
        await raw.until(PING, 0, ACK)
        assert it.streams == http2.STREAMS_MAX
        it.connection.look(it.connection.loop.time() + http2.STALLED_S)
        await until_async(lambda: not it.streams)
        raw.send(call(6001, ECHO, BODY))
        await raw.until(HEADERS, 6001, END_STREAM)
        await raw.close()

    on_a_server(scene)


def test_headers_are_bounded():
    async def scene(it: Scene) -> None:
        many = [(b"n%d" % n, b"v") for n in range(HEADER_FIELDS_MAX)]
        large = [(b"n%d" % n, b"v" * 120) for n in range(50)]
        huge = b"".join(literals([(b"n%d" % n, b"v" * 120)]) for n in range(300))
        for block in (begin(1, ECHO, *many), begin(1, ECHO, *large * 2)):
            raw = await it.raw()
            raw.send(block + frame(DATA, END_STREAM, 1, message(BODY)))
            assert not [one for one in await raw.rest() if one.kind == DATA]
            await raw.close()
        raw = await it.raw()
        raw.send(frame(HEADERS, 0, 1, head(ECHO)))
        raw.send(*(frame(CONTINUATION, 0, 1, huge[n : n + 8000]) for n in range(0, len(huge), 8000)))
        raw.send(frame(CONTINUATION, END_HEADERS, 1), frame(DATA, END_STREAM, 1, message(BODY)))
        assert not [one for one in await raw.rest() if one.kind == DATA]
        await raw.close()
        allowed = [(b"n%d" % n, b"v" * 120) for n in range(50)]
        assert bodies(await it.answer(call(1, ECHO, BODY, *allowed))) == message(BODY)

    on_a_server(scene)


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        random.Random(1).randbytes(4000),
        PREFACE + b"\xff" * 4000,
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff" * 60),
        PREFACE + begin(1, ECHO) + frame(DATA, 0, 1, bytes(16_384)) * 20,
        PREFACE + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)),
        PREFACE + frame(DATA, 0, 1, b"x"),
    ],
)
def test_what_is_no_http2_ends_the_connection(junk: bytes):
    async def scene(it: Scene) -> None:
        raw = await it.raw(junk)
        await raw.rest()
        await raw.close()
        await until_async(lambda: not it.server.connections)
        assert bodies(await it.answer(call(1, ECHO, BODY))) == message(BODY)

    on_a_server(scene)


def test_damaged_connections_leave_nothing():
    """Bytes that were changed at random, on 300 connections."""

    async def scene(it: Scene) -> None:
        data = message(BODY)
        single = b"".join(frame(DATA, n == len(data) - 1, 1, data[n : n + 1]) for n in range(len(data)))
        samples = [
            PREFACE + call(1, ECHO, BODY) + call(3, WAIT, BODY) + call(5, MANY, b"5"),
            PREFACE + begin(1, ECHO) + single + begin(3, CHAT) + frame(DATA, 0, 3, message(b"hello")),
        ]
        for seed in range(300):
            chance = random.Random(seed)
            damaged = bytearray(samples[seed % 2])
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(24, len(damaged))] = chance.randrange(256)
            raw = await it.raw(bytes(damaged))
            with contextlib.suppress(ConnectionError):
                await raw.writer.drain()
            raw.writer.write_eof()
            await raw.rest()
            await raw.close()
        await until_async(lambda: not it.server.connections and not it.server.calls)
        assert bodies(await it.answer(call(1, ECHO, BODY))) == message(BODY)

    on_a_server(scene)


# --- the life of a connection


def test_idle_silent_and_dead_connections():
    async def scene(it: Scene) -> None:
        raw = await it.raw()
        raw.send(begin(1, CHAT))
        await until_async(lambda: it.streams == 1)
        it.service.go.set()
        connection, now = it.connection, it.connection.loop.time()
        connection.look(now + KEEPALIVE_MS / 1000 - 1)
        assert connection._pinged_at is None
        connection.look(now + IDLE_MS / 1000 + 1)  # it has a call, so it is not idle, but silent
        (*_, ping) = await raw.until(PING)
        raw.send(frame(PING, ACK, 0, ping.data))
        await until_async(lambda: connection._pinged_at is None)
        raw.send(reset(1))
        await until_async(lambda: not it.streams)
        connection.look(connection.loop.time() + IDLE_MS / 1000 + 1)
        assert (await raw.rest())[-1].kind == GOAWAY
        await raw.close()
        # the ping of another is not answered
        raw = await it.raw()
        raw.send(begin(1, CHAT))
        await until_async(lambda: it.streams == 1)
        connection, now = it.connection, it.connection.loop.time() + KEEPALIVE_MS / 1000 + 1
        connection.look(now)
        connection.look(now + KEEPALIVE_TIMEOUT_MS / 1000 - 1)
        assert it.streams == 1
        connection.look(now + KEEPALIVE_TIMEOUT_MS / 1000)
        await until_async(lambda: not it.server.connections and not it.server.calls)
        await raw.close()

    on_a_server(scene)


def test_a_stop_lets_calls_finish_and_refuses_new_ones():
    async def main() -> None:
        it = Scene()
        it.port = await it.server.start("127.0.0.1", 0)
        raw = await it.raw()
        raw.send(call(1, WAIT, BODY))
        await until_async(lambda: it.service.begun == 1)
        stopping = asyncio.create_task(it.server.stop(PATIENCE_S))
        await raw.until(GOAWAY)
        raw.send(call(3, ECHO, BODY))
        it.service.go.set()
        frames = await raw.rest()
        assert bodies([one for one in frames if one.stream == 1]) == message(BODY)
        assert not [one for one in frames if one.stream == 3]
        await stopping
        await raw.close()
        # calls that do not finish are told
        it = Scene()
        it.port = await it.server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.port}") as channel:
            waiting = asyncio.ensure_future(code_of(it.stub(channel, "Wait")(b"x")))
            await until_async(lambda: it.service.begun == 1)
            await it.server.stop(0.0)
            assert (await waiting)[0] is grpc.StatusCode.UNAVAILABLE
        assert not it.server.connections and not it.server.calls

    run(main())


def tls_files(directory: Path, **more: Any) -> tuple[TlsConfig, Any]:
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    return TlsConfig(cert_path=cert, key_path=key, **more), authority


def test_tls_peers_have_to_agree_on_h2(tmp_path: Path):
    async def main() -> None:
        config, authority = tls_files(tmp_path)
        async with serving(config) as it:
            for protocols in ([], ["http/1.1"]):
                context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
                context.set_alpn_protocols(protocols)
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", it.port, ssl=context)
                    writer.write(PREFACE)
                    with contextlib.suppress(ConnectionError, ssl.SSLError):
                        assert await reader.read() == b""
                    writer.close()
            raw = await it.raw()  # without TLS
            await raw.rest()
            await raw.close()
            assert not it.service.contexts and not it.server.connections
            trusted = grpc.ssl_channel_credentials(root_certificates=authority.cert_pem.bytes())
            async with grpc.aio.secure_channel(f"localhost:{it.port}", trusted, options=options()) as channel:
                body = bytes(2 << 20)
                assert await it.stub(channel, "Echo")(body) == body

    run(main())


@pytest.mark.parametrize("run_loop", [run, asyncio.run])
def test_a_tls_client_that_speaks_before_it_is_accepted(tmp_path: Path, run_loop: Callable[..., Any]):
    """Its first bytes lie there when the connection is made: with uvloop they went to nobody, and both sides waited."""

    async def main() -> None:
        config, _ = tls_files(tmp_path)
        async with serving(config) as it:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            context.set_alpn_protocols(["h2"])
            clients = []
            for _ in range(20):  # the loop sees none of it until all have spoken
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                client = socket.create_connection(("127.0.0.1", it.port))
                client.sendall(outgoing.read())
                client.setblocking(False)
                clients.append((client, tls, incoming))
            loop = asyncio.get_running_loop()
            for client, tls, incoming in clients:
                while True:
                    came = await loop.sock_recv(client, 65536)
                    assert came, "closed in the handshake"
                    incoming.write(came)
                    with contextlib.suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                        break
                client.close()

    run_loop(main())


def test_clients_show_a_certificate_if_they_must(tmp_path: Path):
    async def main() -> None:
        config, authority = tls_files(
            tmp_path, trust_cert_path=str(tmp_path / "ca.pem"), client_auth="require"
        )
        mine = authority.issue_cert("client")
        root = authority.cert_pem.bytes()
        without = grpc.ssl_channel_credentials(root_certificates=root)
        shown = grpc.ssl_channel_credentials(
            root, mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes()
        )
        async with serving(config) as it:
            async with grpc.aio.secure_channel(f"localhost:{it.port}", without) as channel:
                code, _ = await code_of(it.stub(channel, "Echo")(b"x"))
                assert code is grpc.StatusCode.UNAVAILABLE
            async with grpc.aio.secure_channel(f"localhost:{it.port}", shown) as channel:
                assert await it.stub(channel, "Echo")(b"x") == b"x"

    run(main())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"250m", 0.25),
        (b"5u", 5e-6),
        (b"7n", 7e-9),
        (b"99999999S", 99_999_999),
        (b"", None),
        (b"S", None),
        (b"1", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"100000000S", None),
    ],
)
def test_timeouts(text: bytes, seconds: float | None):
    assert grpc_call._seconds(text) == (None if seconds is None else pytest.approx(seconds))
