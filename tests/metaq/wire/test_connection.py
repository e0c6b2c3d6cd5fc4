"""A connection fed with bytes in every way: what it understands is what the codec does, whatever the pieces."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ProtocolError, RemotingConnectError, RemotingTimeoutError
from mqlake.metaq.formats.command import (
    BooleanCommand,
    DataCommand,
    PutCommand,
    Request,
    VersionCommand,
    decode_command,
)
from mqlake.metaq.wire.connection import WRITE_BUFFER_MAX, Connection
from mqlake.metaq.wire.server import MetaServer
from tests.metaq.brokers import HOST, Peer
from tests.metaq.formats.test_command import COMMANDS, GOLDEN, OLD_FORMS
from tests.open_files import nearly_none_left
from tests.waiting import PATIENCE_S, until_async

BODY_MAX = 1 << 20


class Pipe(asyncio.Transport):
    """A transport that keeps what is written and may be full."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        self.closing = False
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        class Socket:
            def fileno(self) -> int:
                return -1

        return Socket() if name == "socket" else (HOST, 1)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def decoded(raw: bytes) -> tuple[list[Request], bool]:
    """What the codec finds, and whether it comes upon something that is no command."""
    found: list[Request] = []
    position = 0
    try:
        while position < len(raw):
            step = decode_command(raw, position, body_max=BODY_MAX)
            if isinstance(step, int):
                break
            position = step[1]
            if not isinstance(step[0], BooleanCommand | DataCommand):
                found.append(step[0])
    except ProtocolError:
        return found, True
    return found, False


async def reads_again(pipe: Pipe) -> None:
    """Waits until the connection has had as many turns as it wants."""
    async with asyncio.timeout(PATIENCE_S):
        while not (pipe.reading or pipe.closing):
            await asyncio.sleep(0)


def fed(pieces: list[bytes]) -> tuple[list[Request], bool]:
    """What a connection finds in the same bytes when they come in pieces."""

    async def feed() -> tuple[list[Request], bool]:
        found: list[Request] = []
        connection = Connection(lambda _, request: found.append(request), body_max=BODY_MAX)
        pipe = Pipe()
        connection.connection_made(pipe)
        for piece in pieces:
            if pipe.closing:
                break
            connection.data_received(piece)
        await reads_again(pipe)
        return found, pipe.closing

    return asyncio.run(feed())


@settings(max_examples=150, deadline=None)
@given(st.lists(COMMANDS, max_size=5), st.data())
def test_any_pieces_any_damage(commands: list[Any], data: st.DataObject) -> None:
    raw = bytearray(b"".join(command.encode() for command in commands))
    for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw += data.draw(st.binary(max_size=10))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [bytes(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a != b]
    assert fed(pieces) == decoded(bytes(raw))


def test_byte_by_byte() -> None:
    requests = [c for _, c in GOLDEN + OLD_FORMS if not isinstance(c, BooleanCommand | DataCommand)]
    raw = b"".join(raw for raw, _ in GOLDEN + OLD_FORMS)
    assert fed([bytes([byte]) for byte in raw]) == (requests, False)


def test_a_full_pipe_stops_the_handling_and_goes_on_later() -> None:
    async def test() -> None:
        found: list[int] = []
        pipe = Pipe()

        def handle(connection: Connection, request: Request) -> None:
            found.append(request.opaque)
            if request.opaque == 2:
                connection.pause_writing()

        connection = Connection(handle)
        connection.connection_made(pipe)
        connection.data_received(b"version 1\r\nversion 2\r\nversion 3\r\nvers")
        connection.data_received(b"ion 4\r\n")
        while found != [1, 2]:
            await asyncio.sleep(0)
        assert not pipe.reading
        connection.resume_writing()
        await reads_again(pipe)
        assert found == [1, 2, 3, 4]

    asyncio.run(test())


def test_who_sends_without_end_takes_its_turn() -> None:
    """What one has sent long ago does not come before what another sends now."""
    handled = 0

    def handle(connection: Connection, request: Request) -> None:
        nonlocal handled
        handled += 1
        time.sleep(0.001)
        connection.respond(200, "", request.opaque)

    async def test() -> None:
        server = MetaServer(handle, idle_s=60)
        await server.start(HOST, 0)
        endless, other = [await Peer.connect(server.port) for _ in range(2)]
        endless.send(b"version 1\r\n" * 2_000)
        await endless.answer()
        for _ in range(10):
            await other.ask(b"version 1\r\n")
        assert handled < 1_000
        for _ in range(1_999):
            await endless.answer()
        await server.stop()

    asyncio.run(test())


def test_a_client_whose_requests_pile_up_reads_its_answers() -> None:
    """Else both sides would wait for the other to read."""

    async def test() -> None:
        server = MetaServer(
            lambda c, request: c.send(DataCommand(request.data, request.opaque).encode()), idle_s=60
        )
        await server.start(HOST, 0)
        _, client = await asyncio.get_running_loop().create_connection(Connection, HOST, server.port)
        asks = [client.invoke(PutCommand("t", 0, bytes(200_000 + n), 0, -1, None, n), 60) for n in range(200)]
        answers = await asyncio.gather(*asks)
        assert [answer.opaque for answer in answers] == [*range(200)]
        assert [len(answer.data) for answer in answers] == [200_000 + n for n in range(200)]
        await server.stop()

    asyncio.run(test())


def test_who_never_reads_is_closed() -> None:
    async def test() -> None:
        pipe = Pipe()
        connection = Connection(lambda c, request: c.respond(200, "x", request.opaque))
        connection.connection_made(pipe)
        pipe.unsent = WRITE_BUFFER_MAX + 1
        connection.data_received(b"version 1\r\n")
        assert pipe.closing
        pipe = Pipe()  # a client's, which asks for more at once than that
        client = Connection()
        client.connection_made(pipe)
        pipe.unsent = WRITE_BUFFER_MAX + 1
        client.send(b"version 1\r\n")
        await asyncio.sleep(0)
        assert pipe.sent == b"version 1\r\n" and not pipe.closing

    asyncio.run(test())


def test_answers_find_who_asked_in_any_order() -> None:
    async def test() -> None:
        pipe = Pipe()
        connection = Connection()
        connection.connection_made(pipe)
        waiting = [asyncio.ensure_future(connection.invoke(VersionCommand(n), 5)) for n in (-7, 8)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(pipe.sent.split(b"\r\n")) == [b"", b"version -7", b"version 8"]
        connection.data_received(b"result 200 1 8\r\nbvalue 1 -7\r\nxresult 200 0 99\r\n")
        assert await asyncio.gather(*waiting) == [DataCommand(b"x", -7), BooleanCommand(200, "b", 8)]
        with pytest.raises(RemotingTimeoutError):
            await connection.invoke(VersionCommand(9), 0.01)
        last = asyncio.ensure_future(connection.invoke(VersionCommand(10), 5))
        await asyncio.sleep(0)
        connection.connection_lost(OSError("gone"))
        with pytest.raises(RemotingConnectError, match="gone"):
            await last
        with pytest.raises(RemotingConnectError, match="closed"):
            await connection.invoke(VersionCommand(11), 5)
        connection.send(b"nobody")

    asyncio.run(test())


def test_a_server_closes_who_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlake.remoting.peer.IDLE_CHECK_S", 0.01)

    async def test() -> None:
        server = MetaServer(lambda c, request: c.respond(200, "", request.opaque), idle_s=60)
        await server.start(HOST, 0)
        quiet = await Peer.connect(server.port)
        [of_quiet] = await until_async(lambda: server.connections)
        busy = await Peer.connect(server.port)
        await busy.ask(b"version 1\r\n")
        [of_busy] = server.connections - {of_quiet}
        of_busy._active_at -= 30
        before = of_busy._active_at
        await busy.ask(b"version 1\r\n")
        assert of_busy._active_at >= before + 30
        of_quiet._active_at -= 120
        with pytest.raises(ConnectionError):
            await quiet.answer()
        await busy.ask(b"version 1\r\n")
        await server.stop()

    asyncio.run(test())


def test_a_body_over_the_limit_costs_nothing_but_its_connection() -> None:
    command = PutCommand("t", 0, b"x" * 100, 0, -1, None, 1)

    async def test() -> None:
        found: list[Request] = []
        pipe = Pipe()
        connection = Connection(lambda _, request: found.append(request), body_max=99)
        connection.connection_made(pipe)
        connection.data_received(command.encode()[:20])
        connection.data_received(command.encode()[20:])
        assert found == [] and pipe.closing

    asyncio.run(test())


def test_the_last_descriptors_are_not_for_connections(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        server = MetaServer(lambda c, request: c.respond(200, "", request.opaque))
        await server.start(HOST, 0)
        with nearly_none_left():
            reader, writer = await asyncio.open_connection(HOST, server.port)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        await (await Peer.connect(server.port)).ask(b"version 1\r\n")
        await server.stop()

    asyncio.run(test())
    # asyncio has lines of its own where something else takes the last descriptor for a moment
    [line] = [each.getMessage() for each in caplog.records if each.name.startswith("mqlake.")]
    assert "raise the limit: ulimit -n" in line
