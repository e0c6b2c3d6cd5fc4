"""Server and client together, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from mqlake.errors import (
    ConfigError,
    FormatError,
    HandshakeError,
    RemotingConnectError,
    RemotingTimeoutError,
    RemotingTooMuchError,
    ResponseError,
)
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import HEADER_SIZE_MAX, decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import ResponseCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, Limits
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.tls import TlsConfig, TlsMode, client_context
from tests.open_files import nearly_none_left
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until_async

ECHO, SLOW, FAIL, REFUSE, SILENT, ASYNC_FAIL, LARGE, BUSY = range(1000, 1008)


def respond(body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.create_response(body=body)


class Service:
    """A server with processors that tests need."""

    def __init__(self, limits: Limits | None = None, tls: TlsConfig | None = None) -> None:
        self.server = RemotingServer(limits, tls)
        self.release = asyncio.Event()
        self.seen: list[bytes] = []
        table = self.server.processors
        table.register(ECHO, self.echo)
        table.register(SLOW, self.slow)
        table.register(FAIL, self.fail)
        table.register(REFUSE, self.refuse)
        table.register(SILENT, lambda connection, command: self.seen.append(command.body_bytes()))
        table.register(ASYNC_FAIL, self.async_fail)
        table.register(LARGE, lambda connection, command: respond(bytes(int(command.ext_fields["size"]))))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def echo(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.seen.append(command.body_bytes())
        return respond(command.body_bytes())

    async def slow(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await self.release.wait()
        return respond(command.body_bytes())

    def fail(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise FormatError(3, "no such thing") if command.body is None else ValueError("oops")

    def refuse(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise ResponseError(ResponseCode.NO_PERMISSION, "not you")

    async def async_fail(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, "not here")


@contextlib.asynccontextmanager
async def serving(limits: Limits | None = None, tls: TlsConfig | None = None) -> AsyncIterator[Service]:
    service = Service(limits, tls)
    await service.server.start("127.0.0.1", 0)
    try:
        yield service
    finally:
        service.release.set()
        await service.server.stop()
        assert not service.server.connections


def request(code: int, body: bytes | None = None, **fields: str) -> RemotingCommand:
    command = RemotingCommand.create_request(code, body=body)
    command.ext_fields = fields
    return command


def test_a_request_and_its_answer(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            command = request(ECHO, b"hello")
            answer = await client.call(service.address, command)
            assert answer.is_response and answer.opaque == command.opaque
            assert answer.body == b"hello"
            command = request(ECHO, b"again")
            command.serialize_type = SerializeType.ROCKETMQ
            assert (await client.call(service.address, command)).body == b"again"
            assert len(service.server.connections) == 1

    run(main())


def test_a_frame_as_large_as_it_may_be(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            body = bytes(range(256)) * 65_000
            assert (await client.call(service.address, request(ECHO, body), PATIENCE_S)).body == body
            answer = await client.invoke(service.address, request(LARGE, size=str(17_000_000)), PATIENCE_S)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "16777216" in (answer.remark or "")

    run(main())


def test_a_waiting_request_holds_up_nobody(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            waiting = [
                asyncio.ensure_future(client.call(service.address, request(SLOW, bytes([i]))))
                for i in range(9)
            ]
            assert (await client.call(service.address, request(ECHO, b"quick"))).body == b"quick"
            assert not any(task.done() for task in waiting)
            service.release.set()
            assert [answer.body for answer in await asyncio.gather(*waiting)] == [
                bytes([i]) for i in range(9)
            ]

    run(main())


def test_what_goes_wrong_is_answered_and_the_connection_lives(run, caplog):
    async def main():
        async with serving() as service, RemotingClient() as client:
            outcomes = {}
            for name, command in {
                "unknown": request(31999),
                "told": request(FAIL),
                "untold": request(FAIL, b"x"),
                "refused": request(REFUSE),
                "later": request(ASYNC_FAIL),
            }.items():
                answer = await client.invoke(service.address, command)
                outcomes[name] = answer.code, answer.remark
            assert outcomes == {
                "unknown": (3, " request type 31999 not supported"),
                "told": (1, "at byte 3: no such thing"),
                "untold": (1, "ValueError: oops"),
                "refused": (16, "not you"),
                "later": (17, "not here"),
            }
            with pytest.raises(ResponseError, match="not you"):
                await client.call(service.address, request(REFUSE))
            assert len(service.server.connections) == 1

    with caplog.at_level(logging.CRITICAL):
        run(main())


def test_oneway_is_never_answered(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            for code in (ECHO, FAIL, 31999, SILENT):
                await client.invoke_oneway(service.address, request(code, b"one"))
            assert (await client.call(service.address, request(ECHO, b"two"))).body == b"two"
            assert service.seen == [b"one", b"one", b"two"]

    run(main())


def test_many_requests_in_one_write_are_answered_in_one(run, monkeypatch):
    flushed: list[int] = []
    flush = Connection._flush

    def counted(self: Connection) -> None:
        if self._out:
            flushed.append(self.reads)
        flush(self)

    async def main():
        # however slow the machine is, its turn is not over
        monkeypatch.setattr("mqlake.remoting.connection.TURN_S", PATIENCE_S)
        monkeypatch.setattr(Connection, "_flush", counted)
        async with serving() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            frames = [encode_frame(request(ECHO, bytes([i]))) for i in range(100)]
            data = b"".join(frames)
            writer.write(data[:-3])
            answers = await read_commands(reader, 99)
            writer.write(data[-3:])
            answers += await read_commands(reader, 1)
            assert [answer.body_bytes() for answer in answers] == [bytes([i]) for i in range(100)]
            assert len(flushed) == len(set(flushed)), "what one read brought is answered by one write"
            writer.close()

    run(main())


async def read_commands(reader: asyncio.StreamReader, count: int) -> list[RemotingCommand]:
    commands = []
    for _ in range(count):
        head = await reader.readexactly(4)
        frame = head + await reader.readexactly(int.from_bytes(head, "big"))
        assert frame_end(frame, 0, len(frame)) == len(frame)
        commands.append(decode_frame(memoryview(frame), 0, len(frame)))
    return commands


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40, b"\x00\x00\x00\x06\x09\x00\x00\x02{}"]
)
def test_garbage_closes_that_connection_only(run, garbage, caplog):
    async def main():
        async with serving() as service, RemotingClient() as client:
            await client.call(service.address, request(ECHO, b"a"))
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            writer.write(encode_frame(request(ECHO, b"before")) + garbage)
            assert (await read_commands(reader, 1))[0].body == b"before"
            assert await reader.read() == b""
            writer.close()
            assert (await client.call(service.address, request(ECHO, b"b"))).body == b"b"

    with caplog.at_level(logging.CRITICAL):
        run(main())


@pytest.mark.parametrize("size", [10, 300_000])
def test_there_is_a_buffer_after_a_processor_was_interrupted(run, size):
    """Ctrl-C comes anywhere. Without it the loop would be given an empty buffer, and say so in place of what was."""

    async def main():
        async with serving() as service:
            connection = Connection(service.server, asyncio.get_running_loop())
            service.server.processors.register(FAIL, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            frame = encode_frame(request(FAIL, bytes(size)))
            fed = 0
            with pytest.raises(KeyboardInterrupt):
                while fed < len(frame):
                    buffer = connection.get_buffer(-1)
                    part = frame[fed : fed + len(buffer)]
                    buffer[: len(part)] = part
                    fed += len(part)
                    del buffer
                    connection.buffer_updated(len(part))
            assert len(connection.get_buffer(-1)) > 0

    run(main())


def test_a_client_that_resets_before_it_is_accepted(run, caplog):
    """Its requests come from an address, or nothing is done."""
    addresses: list[str] = []

    async def main():
        async with serving() as service:
            service.server.processors.register(BUSY, lambda peer, _: addresses.append(peer.remote_address))
            gone = socket.create_connection(("127.0.0.1", service.server.port))
            gone.sendall(encode_frame(request(BUSY)))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
            async with RemotingClient() as client:
                assert (await client.call(service.address, request(ECHO, b"mine"))).body_bytes() == b"mine"
            await until_async(lambda: not service.server.connections, "all are gone")
            assert all(addresses)

    run(main())
    assert not caplog.records


def test_the_last_descriptors_are_not_for_connections(run, caplog):
    async def main():
        async with serving() as service:
            with nearly_none_left():
                reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
                writer.close()
            async with RemotingClient() as client:
                assert (await client.call(service.address, request(ECHO, b"mine"))).body_bytes() == b"mine"

    run(main())
    [line] = caplog.messages
    assert "raise the limit: ulimit -n" in line


def test_frames_that_are_encoded_already(run):
    """Outside of a read: nobody else writes them."""

    async def main():
        async with serving() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            writer.write(encode_frame(request(ECHO)))
            await read_commands(reader, 1)
            (connection,) = service.server.connections
            frame = encode_frame(request(220, b"one"))
            connection.send_encoded(frame)
            assert [command.body_bytes() for command in await read_commands(reader, 1)] == [b"one"]
            connection.send_buffers((frame[:9], frame[9:]), len(frame))
            assert [command.body_bytes() for command in await read_commands(reader, 1)] == [b"one"]
            writer.close()

    run(main())


def test_what_is_sent_as_the_connection_is_lost_goes_nowhere(run, caplog):
    async def main():
        async with serving() as service, RemotingClient() as client:
            await client.call(service.address, request(ECHO))
            (connection,) = service.server.connections
            transport = connection.transport
            connection.send(request(220))
            connection.connection_lost(None)
            connection.send(request(220))
            await asyncio.sleep(0)
            assert connection.closed and transport is not None
            transport.abort()

    run(main())
    assert not caplog.records


@pytest.mark.parametrize("tls", [False, True])
def test_what_is_written_now_comes_after_what_was_sent_before(run, certificate, tls):
    """And is encrypted where all else is: a client with TLS could read nothing from there on otherwise."""
    came: list[bytes] = []

    def tell(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.body is None:  # else nothing waits to be sent
            connection.send(one_way(b"sent"))
        connection.write_now(encode_frame(one_way(b"written")))
        return respond(b"answered")

    def one_way(body: bytes) -> RemotingCommand:
        command = request(220, body)
        command.mark_oneway()
        return command

    async def main():
        context = client_context(trust_cert_path=str(certificate.with_name("ca.pem"))) if tls else None
        config = TlsConfig(mode=TlsMode.PERMISSIVE, cert_path=str(certificate), key_path=str(certificate))
        async with serving(tls=config) as service, RemotingClient(tls=context) as client:
            client.processors.register(220, lambda connection, command: came.append(command.body_bytes()))
            service.server.processors.register(BUSY, tell)
            for body in (None, b"alone"):
                came.append((await client.call(service.address, request(BUSY, body))).body_bytes())
            (connection,) = service.server.connections
            connection.send(one_way(b"sent"))
            connection.write_now(encode_frame(one_way(b"late")))
            await until_async(lambda: came[-1] == b"late")
            connection.write_now(encode_frame(one_way(b"by itself")))
            await until_async(lambda: came[-1] == b"by itself")
            connection.close()
            connection.write_now(encode_frame(one_way(b"never")))
            await until_async(lambda: connection.transport is None or connection.closed)
            connection.write_now(encode_frame(one_way(b"never")))

    run(main())
    assert came == [
        *(b"sent", b"written", b"answered"),
        *(b"written", b"answered"),
        *(b"sent", b"late"),
        b"by itself",
    ]


@pytest.mark.parametrize("tls", [False, True])
def test_answers_go_to_the_socket_itself_only_while_nothing_else_does(run, certificate, tls):
    found: list[int] = []

    def look(connection: Connection, _: RemotingCommand) -> RemotingCommand:
        found.append(connection.descriptor())
        connection.send(request(220))
        found.append(connection.descriptor())
        return respond()

    async def main():
        context = client_context(trust_cert_path=str(certificate.with_name("ca.pem"))) if tls else None
        config = TlsConfig(mode=TlsMode.PERMISSIVE, cert_path=str(certificate), key_path=str(certificate))
        async with serving(tls=config) as service, RemotingClient(tls=context) as client:
            service.server.processors.register(BUSY, look)
            await client.call(service.address, request(BUSY))
            (connection,) = service.server.connections
            found.append(connection.descriptor())
            connection.close()
            found.append(connection.descriptor())

    run(main())
    plain = found[0]
    assert found == ([-1] * 4 if tls else [plain, -1, plain, -1])
    assert tls or plain >= 0


def test_a_guard_answers_what_it_refuses(run):
    def guard(*_: object) -> None:
        raise ResponseError(ResponseCode.NO_PERMISSION, "not you")

    async def main():
        async with serving() as service, RemotingClient() as client:
            service.server.guard = guard
            answer = await client.invoke(service.address, request(ECHO, b"x"), PATIENCE_S)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
            assert service.seen == []

    run(main())


def test_the_server_asks_the_client(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            client.processors.register(220, lambda connection, command: respond(b"from the client"))
            await client.call(service.address, request(ECHO))
            (connection,) = service.server.connections
            assert (await connection.invoke(request(220))).body == b"from the client"
            assert (await connection.invoke(request(221))).code == 3
            connection.invoke_oneway(request(220))

    run(main())


def test_no_answer_in_time(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            with pytest.raises(RemotingTimeoutError, match=r"no answer within 0\.05 s"):
                await client.invoke(service.address, request(SLOW), 0.05)
            service.release.set()  # the answer that nobody waits for is dropped
            assert (await client.call(service.address, request(ECHO, b"x"))).body == b"x"

    run(main())


def test_a_connection_without_a_sign_of_life_is_closed(run, caplog):
    async def main():
        async with serving() as service, RemotingClient() as client:
            first = await client.connection(service.address)
            waiting = asyncio.create_task(client.invoke(service.address, request(SLOW), PATIENCE_S))
            with pytest.raises(RemotingTimeoutError):
                await client.invoke(service.address, request(SLOW), 0.5)
            with pytest.raises(RemotingConnectError):
                await waiting
            await until_async(lambda: first.closed)
            assert await client.connection(service.address) is not first

    run(main())
    assert "no sign of life within 0." in caplog.text


def test_a_slow_request_does_not_close_a_connection_that_lives(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            first = await client.connection(service.address)
            slow = asyncio.create_task(client.invoke(service.address, request(SLOW), 0.5))
            while not slow.done():
                await client.call(service.address, request(ECHO, b"x"))
                await asyncio.sleep(0.02)
            assert isinstance(slow.exception(), RemotingTimeoutError)
            assert await client.connection(service.address) is first

    run(main())


def test_a_port_is_taken_before_it_is_served(run):
    async def main():
        server = RemotingServer()
        await server.bind("127.0.0.1")
        async with RemotingClient() as client:
            with pytest.raises(RemotingConnectError):
                await client.invoke(f"127.0.0.1:{server.port}", request(ECHO))
            await server.listen()
            answer = await client.invoke(f"127.0.0.1:{server.port}", request(ECHO))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await server.stop()

    run(main())


def test_of_two_servers_that_took_a_port_the_second_to_listen_says_so(run):
    async def main():
        one, other = RemotingServer(), RemotingServer()
        port = free_port()
        for server in (one, other):
            await server.bind("127.0.0.1", port)
        await other.listen()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await one.listen()
        await one.stop()
        async with RemotingClient() as client:
            await client.invoke(f"127.0.0.1:{port}", request(ECHO))
        await other.stop()

    run(main())


def test_nobody_else_takes_a_port_that_was_free(run):
    async def main():
        first, second = RemotingServer(), RemotingServer()
        await first.bind("127.0.0.1")
        with pytest.raises(ConfigError, match="Address already in use"):
            await second.bind("127.0.0.1", first.port)
        given = free_port()
        await second.bind("127.0.0.1", given)
        with pytest.raises(ConfigError, match="Address already in use"):
            await RemotingServer().bind("127.0.0.1", given, alone=True)
        await first.listen()
        async with RemotingClient() as client:
            await client.invoke(f"127.0.0.1:{first.port}", request(ECHO))
            await first.stop()  # its side closes first, and waits for what may still be under way
        again = RemotingServer()
        await again.start("127.0.0.1", first.port)
        for server in (second, again):
            await server.stop()

    run(main())


def test_nobody_listens(run):
    async def main():
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            async with RemotingClient() as client:
                with pytest.raises(RemotingConnectError, match="cannot connect"):
                    await client.invoke(address, request(ECHO))
        with pytest.raises(RemotingConnectError, match="closed"):
            await client.invoke(address, request(ECHO))
        with pytest.raises(RemotingConnectError, match="host:port"):
            await RemotingClient().invoke("nowhere", request(ECHO))

    run(main())


def test_a_lost_connection_fails_what_waits_and_is_made_again(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            waiting = asyncio.ensure_future(client.invoke(service.address, request(SLOW)))
            await until_async(lambda: service.server.connections)
            (connection,) = service.server.connections
            await until_async(lambda: connection._in_flight)
            connection.abort()
            with pytest.raises(RemotingConnectError, match="lost before the answer"):
                await waiting
            assert (await client.call(service.address, request(ECHO, b"again"))).body == b"again"
            waiting = asyncio.ensure_future(client.invoke(service.address, request(SLOW)))
            await until_async(lambda: any(each._in_flight for each in service.server.connections))
            for connection in list(service.server.connections):
                connection.abort()
            with pytest.raises(RemotingConnectError, match=r"lost before the answer(: [^;]*)?$"):
                await waiting  # the port was right

    run(main())


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (b"", r"lost before the answer.*; nothing has ever come from there: is it the port of a broker"),
        (
            b"HTTP/1.1 400 Bad Request",
            r"none of RocketMQ's commands \(a frame of [0-9]+ bytes.*is the port right",
        ),
    ],
    ids=["hangs up", "answers"],
)
def test_a_port_of_something_else(run, answer: bytes, hint: str):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, RemotingClient() as client:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(RemotingConnectError, match=hint):
                await client.invoke(f"127.0.0.1:{port}", request(ECHO))

    run(main())


def test_what_waits_when_the_peer_goes(run):
    """A coroutine runs to its end, a Future is cancelled."""

    async def main():
        ended = []
        async with serving() as service:
            held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def slow(connection, _):
                await service.release.wait()
                ended.append(connection.closed)

            service.server.processors.register(1, lambda connection, command: held)
            service.server.processors.register(2, slow)
            async with RemotingClient() as client:
                await client.invoke_oneway(service.address, request(1))
                await client.invoke_oneway(service.address, request(2))
                await client.call(service.address, request(ECHO))
            await until_async(held.cancelled)
            service.release.set()
            await until_async(lambda: ended)
            assert ended == [True]

    run(main())


def test_the_body_of_an_async_request_is_its_own(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            waiting = asyncio.ensure_future(client.call(service.address, request(SLOW, b"mine" * 100)))
            for _ in range(3):
                await client.call(service.address, request(ECHO, b"other" * 100))
            service.release.set()
            assert (await waiting).body == b"mine" * 100

    run(main())


def test_too_many_requests_in_flight(run):
    async def main():
        async with (
            serving(Limits(in_flight_max=2)) as service,
            RemotingClient(Limits(pending_max=3)) as client,
        ):
            waiting = [asyncio.ensure_future(client.invoke(service.address, request(SLOW))) for _ in range(3)]
            answer = await asyncio.wait_for(waiting[2], PATIENCE_S)
            assert answer.code == ResponseCode.SYSTEM_BUSY and "[OVERLOAD]" in (answer.remark or "")
            waiting[2] = asyncio.ensure_future(client.invoke(service.address, request(SILENT), 0.3))
            await asyncio.sleep(0)
            with pytest.raises(RemotingTooMuchError):
                await client.invoke(service.address, request(ECHO))
            service.release.set()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def test_idle_connections_are_closed(run, monkeypatch):
    monkeypatch.setattr("mqlake.remoting.peer.IDLE_CHECK_S", 0.01)

    async def main():
        async with serving(Limits(idle_s=60)) as service, RemotingClient(Limits(idle_s=0)) as client:
            await client.call(service.address, request(ECHO))
            [connection] = service.server.connections
            connection._active_at -= 120
            await until_async(lambda: not service.server.connections and not client.connections)
            assert (await client.call(service.address, request(ECHO, b"new"))).body == b"new"

    run(main())


def test_a_client_that_does_not_read_is_not_read_from(run):
    async def main():
        limits = Limits(write_high_water=64 * 1024)
        async with serving(limits) as service, RemotingClient() as other:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port, limit=1024)
            one = encode_frame(request(ECHO, bytes(100_000)))
            count = 400

            async def write() -> None:
                for _ in range(count):
                    writer.write(one)
                    await writer.drain()

            writing = asyncio.ensure_future(write())
            await until_async(lambda: any(connection._paused for connection in service.server.connections))
            handled = len(service.seen)
            for _ in range(20):  # others are served
                await other.call(service.address, request(ECHO, b"x"))
            assert len(service.seen) - 20 <= handled + 1 < count
            answers = await read_commands(reader, count)
            assert all(len(answer.body_bytes()) == 100_000 for answer in answers)
            await writing
            writer.close()

    run(main())


def test_frames_that_had_to_wait_are_handled_in_order(run):
    """Small requests with large answers: one read holds hundreds, and they cannot all be answered at once."""

    async def main():
        async with serving(Limits(write_high_water=64 * 1024)) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            requests = [request(LARGE, size=str(200_000 + i)) for i in range(150)]
            writer.write(b"".join(map(encode_frame, requests)))
            await until_async(lambda: any(connection._paused for connection in service.server.connections))
            answers = await read_commands(reader, 150)
            assert [len(answer.body_bytes()) for answer in answers] == [200_000 + i for i in range(150)]
            writer.close()

    run(main())


def test_a_client_whose_requests_pile_up_reads_its_answers(run):
    """Else both sides would wait for the other to read."""

    async def main():
        limits = Limits(write_high_water=64 * 1024)
        async with serving(limits) as service, RemotingClient(limits) as client:
            asks = [
                client.call(service.address, request(ECHO, bytes(100_000 + i)), PATIENCE_S)
                for i in range(300)
            ]
            answers = await asyncio.gather(*asks)
            assert [len(answer.body_bytes()) for answer in answers] == [100_000 + i for i in range(300)]

    run(main())


def test_a_client_that_sends_without_end_takes_its_turn(run):
    """What one has sent long ago does not come before what another sends now."""

    def busy(*_: object) -> None:
        service.seen.append(b"")
        time.sleep(0.001)

    async def main() -> None:
        nonlocal service
        async with serving() as service, RemotingClient() as other:
            service.server.processors.register(BUSY, busy)
            await other.call(service.address, request(ECHO, b"there"))
            _, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            writer.write(encode_frame(request(BUSY)) * 2_000)
            await until_async(lambda: len(service.seen) > 1)
            for _ in range(10):
                await other.call(service.address, request(ECHO, b"x"), PATIENCE_S)
            assert len(service.seen) < 1_000
            writer.close()

    service: Service = None  # type: ignore[assignment]
    run(main())


def test_a_client_that_never_reads_is_closed(run, caplog):
    async def main():
        limits = Limits(write_high_water=1024, write_buffer_max=20 << 20)
        async with serving(limits) as service:
            _, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            writer.write(encode_frame(request(SLOW)) * 20)
            await until_async(lambda: any(len(c._in_flight) == 20 for c in service.server.connections))
            (connection,) = service.server.connections
            for _ in range(20):  # answers that come although nobody reads
                connection.send(RemotingCommand.create_response(body=bytes(4 << 20)))
            await until_async(lambda: connection.closed)
            writer.close()

    with caplog.at_level(logging.CRITICAL):
        run(main())


def test_a_stopping_server_sends_new_clients_away(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            waiting = asyncio.ensure_future(client.call(service.address, request(SLOW, b"last")))
            await until_async(lambda: any(c._in_flight for c in service.server.connections))
            connection = await client.connection(service.address)
            stopping = asyncio.ensure_future(service.server.stop(grace_s=PATIENCE_S))
            await until_async(lambda: service.server.going_away)
            answer = await connection.invoke(request(ECHO))
            assert answer.code == ResponseCode.GO_AWAY
            old = request(ECHO, b"old")
            old.version = 401
            assert (await connection.invoke(old)).body == b"old"
            service.release.set()
            assert (await waiting).body == b"last"
            await stopping
            await until_async(lambda: connection.closed)

    run(main())


def test_a_client_that_is_sent_away_asks_again(run):
    async def main():
        async with serving() as service, RemotingClient() as client:
            first = await client.connection(service.address)
            answers = iter([ResponseCode.GO_AWAY, ResponseCode.SUCCESS])
            service.server.processors.register(
                7, lambda connection, command: RemotingCommand.create_response(next(answers))
            )
            assert (await client.invoke(service.address, request(7))).code == ResponseCode.SUCCESS
            assert await client.connection(service.address) is not first

    run(main())


def test_a_port_that_is_taken(run):
    async def main():
        async with serving() as service:
            with pytest.raises(ConfigError, match="cannot listen"):
                await RemotingServer().start("127.0.0.1", service.server.port)

    run(main())


def test_idle_connections_cost_little(run):
    async def main():
        count = 300
        async with serving() as service:
            warm = await asyncio.open_connection("127.0.0.1", service.server.port)
            await until_async(lambda: service.server.connections)
            gc.collect()
            before = len(gc.get_objects())
            sockets = [socket.create_connection(("127.0.0.1", service.server.port)) for _ in range(count)]
            try:
                await until_async(lambda: len(service.server.connections) == count + 1)
                gc.collect()
                assert (len(gc.get_objects()) - before) / count < 40
                assert all(connection._buffer.held == 0 for connection in service.server.connections)
            finally:
                for one in sockets:
                    one.close()
                warm[1].close()
            await until_async(lambda: not service.server.connections)

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key and chain of a server, beside the authority's certificate."""
    directory, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(directory / "server.pem")
    )
    return directory / "server.pem"


@pytest.mark.parametrize("mode", TlsMode)
def test_the_first_byte_says_whether_a_peer_speaks_tls(run, certificate, mode, caplog):
    async def served(service: Service, tls: ssl.SSLContext | None) -> bool:
        async with RemotingClient(tls=tls) as client:
            try:
                return (
                    await client.call(service.address, request(ECHO, b"x" * 50_000))
                ).body == b"x" * 50_000
            except RemotingConnectError:
                return False

    async def main():
        context = client_context(trust_cert_path=str(certificate.with_name("ca.pem")))
        config = TlsConfig(mode=mode, cert_path=str(certificate), key_path=str(certificate))
        async with serving(tls=config) as service:
            assert await served(service, None) is (mode is not TlsMode.ENFORCING)
            assert await served(service, context) is (mode is not TlsMode.DISABLED)
            if mode is not TlsMode.DISABLED:
                reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
                writer.write(b"\x16" + b"\xff" * 20)
                assert (await reader.read())[:1] in (b"", b"\x15")  # an alert, and the end
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
                writer.write(b"\x16\x03\x01\x00\x05hello")
                assert await reader.read() == b"\x15\x03\x03\x00\x02\x02\x0a"  # fatal: unexpected message
                writer.close()

    with caplog.at_level(logging.WARNING):
        run(main())
    words = {TlsMode.DISABLED: "TLS is not configured here", TlsMode.ENFORCING: "not TLS, which is required"}
    assert words.get(mode, "TLS failed") in caplog.text


def test_a_server_without_a_certificate_closes_tls_connections(run, caplog):
    async def main():
        async with serving() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            writer.write(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    run(main())
    assert "TLS is not configured here" in caplog.text


def test_a_call_with_tls_to_a_server_without_it_says_so(run):
    async def main():
        async with serving() as service, RemotingClient(tls=client_context(verify=False)) as client:
            with pytest.raises(
                HandshakeError, match=r"the TLS handshake failed; is it .* without TLS\? \(\w"
            ):
                await client.call(service.address, request(BUSY))

    run(main())


def test_only_answers_may_have_large_headers(run):
    large = "x" * (HEADER_SIZE_MAX + 1)

    async def main():
        async with serving() as service, RemotingClient() as client:
            service.server.processors.register(
                BUSY, lambda connection, command: RemotingCommand.create_response(0, large)
            )
            assert (await client.call(service.address, request(BUSY))).remark == large
            frame = encode_frame(RemotingCommand.create_response(0, large))
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            with contextlib.suppress(ConnectionError):
                writer.write(frame)
                assert await reader.read() == b""
            writer.close()

    run(main())


def test_a_fast_path_sees_each_frame_first(run):
    seen: list[bytes] = []

    def takes_two(connection: Connection, data: memoryview, start: int) -> int:
        stop = frame_end(data, start, len(data))
        command = decode_frame(data, start, stop)
        seen.append(command.body_bytes())
        if command.body_bytes() != b"mine":
            return start
        answer = RemotingCommand.create_response(0, "fast")
        answer.opaque = command.opaque
        connection.send(answer)
        return stop

    async def main():
        async with serving() as service, RemotingClient() as client:
            service.server.fast_paths = (lambda connection, data, start: start, takes_two)
            assert (await client.call(service.address, request(ECHO, b"mine"))).remark == "fast"
            assert (await client.call(service.address, request(ECHO, b"other"))).body == b"other"
            assert seen == [b"mine", b"other"] and service.seen == [b"other"]
            service.server.guard = lambda connection, command: None
            assert (await client.call(service.address, request(ECHO, b"mine"))).body == b"mine"
            assert len(seen) == 2

    run(main())
