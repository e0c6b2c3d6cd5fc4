"""Http2Connection, frame by frame: a client of raw bytes on a transport that keeps what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.proxy.http2 import connection as http2
from mqlake.proxy.http2.connection import FRAME, PREFACE, ErrorCode, Http2Connection, Kind, frame
from mqlake.proxy.http2.hpack import Header, encode

POST = encode([(":method", "POST"), (":path", "/S/M")])
Frames = list[tuple[int, int, int, bytes]]


class Wire(asyncio.Transport):
    """A socket that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.ended = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Kept:
    """A stream that notes what happens to it."""

    def __init__(self, headers: list[Header]) -> None:
        self.headers, self.received, self.ended, self.gone = headers, b"", False, False
        self.window, self.unsent, self.trailers = 0, bytearray(), b""

    def data(self, payload: bytes, ended: bool) -> None:
        self.received += payload
        self.ended = ended

    def lost(self) -> None:
        self.gone = True


class Client:
    def __init__(self) -> None:
        self.wire, self.streams = Wire(), dict[int, Kept]()
        self.connections: set[Http2Connection] = set()
        self.connection = Http2Connection(self._opened, self.connections)
        self.connection.connection_made(self.wire)
        self._read = 0

    def _opened(self, _: Http2Connection, stream_id: int, headers: list[Header]) -> Kept:
        self.streams[stream_id] = Kept(headers)
        return self.streams[stream_id]

    def send(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def open(self, stream_id: int = 1, flags: int = http2.END_HEADERS) -> Kept:
        self.send(frame(Kind.HEADERS, flags, stream_id, POST))
        return self.streams[stream_id]

    async def frames(self) -> Frames:
        """What has come since the last time."""
        await asyncio.sleep(0)
        found = []
        while self._read < len(self.wire.sent):
            high, low, kind, flags, stream_id = FRAME.unpack_from(self.wire.sent, self._read)
            end = self._read + 9 + (high << 8 | low)
            found.append((kind, flags, stream_id, self.wire.sent[self._read + 9 : end]))
            self._read = end
        return found


def scene(play: Callable[[Client], Any]) -> None:
    async def main() -> None:
        client = Client()
        client.send(PREFACE, frame(Kind.SETTINGS, 0, 0))
        await client.frames()
        await play(client)

    asyncio.run(main())


def test_hello():
    async def main() -> None:
        client = Client()
        client.send(PREFACE[:10])
        client.send(PREFACE[10:] + frame(Kind.SETTINGS, 0, 0))
        kinds = [(kind, flags) for kind, flags, _, _ in await client.frames()]
        assert kinds == [(Kind.SETTINGS, 0), (Kind.WINDOW_UPDATE, 0), (Kind.SETTINGS, http2.ACK)]
        assert client.connection.peer == "ipv4:127.0.0.1:4711"
        assert client.connections == {client.connection}
        client.connection.connection_lost(None)
        assert client.connections == set()

    asyncio.run(main())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=60))
def test_bytes_come_in_any_pieces(sizes: list[int]):
    async def play(client: Client) -> None:
        data = b"".join(
            (
                frame(Kind.HEADERS, 0, 1, POST[:7]),
                frame(Kind.CONTINUATION, http2.END_HEADERS, 1, POST[7:]),
                frame(Kind.DATA, 0, 1, b"one "),
                frame(99, 0, 1, b"unknown kinds are passed over"),
                frame(Kind.PRIORITY, 0, 1, bytes(5)),
                frame(Kind.DATA, http2.PADDED | http2.END_STREAM, 1, b"\x03two" + bytes(3)),
                frame(Kind.HEADERS, 0x2D, 3, b"\x02" + bytes(5) + POST + bytes(2)),
            )
        )
        for size in sizes:
            client.send(data[:size])
            data = data[size:]
        client.send(data)
        first, second = client.streams[1], client.streams[3]
        assert (first.received, first.ended) == (b"one two", True)
        assert first.headers == [(":method", "POST"), (":path", "/S/M")] == second.headers
        assert second.ended

    scene(play)


def test_data_waits_for_the_windows():
    async def play(client: Client) -> None:
        stream = client.open(flags=http2.END_HEADERS | http2.END_STREAM)
        connection = client.connection
        connection.send(1, stream, b"x" * 100_000)
        connection.end(1, stream, encode([("grpc-status", "0")]), ended=True)
        data = [payload for kind, _, _, payload in await client.frames() if kind == Kind.DATA]
        assert sum(map(len, data)) == 65_535
        assert max(map(len, data)) <= http2.FRAME_SIZE
        client.send(frame(Kind.WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4, "big")))
        assert await client.frames() == []  # the window of the connection is used up
        waiting = asyncio.ensure_future(connection.room(stream))
        client.send(frame(Kind.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
        rest = await client.frames()
        assert sum(len(payload) for kind, _, _, payload in rest if kind == Kind.DATA) == 100_000 - 65_535
        assert rest[-1][:3] == (Kind.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1)
        await waiting
        assert connection.streams == {}

    scene(play)


def test_a_client_may_change_its_window_in_the_middle():
    async def play(client: Client) -> None:
        setting = (4).to_bytes(2, "big")
        client.send(frame(Kind.SETTINGS, 0, 0, setting + (10).to_bytes(4, "big")))
        stream = client.open()
        client.connection.send(1, stream, b"0123456789abcdef")
        client.send(frame(Kind.SETTINGS, 0, 0, setting + (12).to_bytes(4, "big")))
        data = [payload for kind, _, _, payload in await client.frames() if kind == Kind.DATA]
        assert data == [b"0123456789", b"ab"]

    scene(play)


def test_the_client_may_go_on_sending():
    async def play(client: Client) -> None:
        client.open()
        for _ in range(http2.CONNECTION_WINDOW // http2.FRAME_SIZE):
            client.send(frame(Kind.DATA, 0, 1, bytes(http2.FRAME_SIZE)))
        more = [int.from_bytes(payload, "big") for kind, _, of, payload in await client.frames() if not of]
        assert sum(more) == http2.CONNECTION_WINDOW

    scene(play)


def test_pings_resets_and_streams_that_are_over():
    async def play(client: Client) -> None:
        client.send(frame(Kind.PING, 0, 0, b"12345678"))
        assert await client.frames() == [(Kind.PING, http2.ACK, 0, b"12345678")]
        stream = client.open()
        client.send(frame(Kind.RST_STREAM, 0, 1, bytes(4)))
        assert stream.gone
        client.send(frame(Kind.DATA, 0, 1, b"late"), frame(Kind.WINDOW_UPDATE, 0, 1, bytes((0, 0, 0, 9))))
        client.send(frame(Kind.HEADERS, http2.END_HEADERS, 1, POST))
        assert await client.frames() == []
        assert not client.wire.ended

    scene(play)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(Kind.DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, http2.END_HEADERS, 2, POST), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, http2.END_HEADERS, 1, b"\x80"), ErrorCode.COMPRESSION_ERROR),
        (frame(Kind.HEADERS, 0, 1, POST) + frame(Kind.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.CONTINUATION, 0, 1, POST), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.PING, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.SETTINGS, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.SETTINGS, 0, 0, b"\0\x04\xff\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(Kind.SETTINGS, 0, 0, b"\0\x05\0\0\0\x01"), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(Kind.RST_STREAM, 0, 7, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(Kind.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (FRAME.pack(1, 0, Kind.DATA, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (FRAME.pack(255, 0, Kind.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (frame(Kind.HEADERS, 0, 1) + frame(Kind.CONTINUATION, 0, 1, bytes(16_000)) * 5, 11),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(sent: bytes, code: ErrorCode):
    async def play(client: Client) -> None:
        client.send(sent if len(sent) > 9 else sent + bytes(256))
        kind, _, _, payload = (await client.frames())[-1]
        assert (kind, int.from_bytes(payload[4:8], "big")) == (Kind.GOAWAY, code)
        assert client.wire.ended == "closed"

    scene(play)


def test_something_else_than_http2():
    async def main() -> None:
        client = Client()
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert client.wire.ended == "closed"

    asyncio.run(main())


def test_too_many_streams(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http2, "STREAMS_MAX", 1)
    monkeypatch.setattr(http2, "RESETS_MAX", 1)

    async def play(client: Client) -> None:
        client.open(1)
        client.send(frame(Kind.HEADERS, http2.END_HEADERS, 3, POST))
        refused = ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
        assert await client.frames() == [(Kind.RST_STREAM, 0, 3, refused)]
        assert 3 not in client.streams
        client.send(frame(Kind.RST_STREAM, 0, 1, bytes(4)), frame(Kind.RST_STREAM, 0, 3, bytes(4)))
        assert client.wire.ended == "closed"

    scene(play)


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http2, "UNSENT_MAX", 1000)

    async def play(client: Client) -> None:
        client.connection.pause_writing()
        client.send(*(frame(Kind.PING, 0, 0, bytes(8)) for _ in range(100)))
        await client.frames()
        assert client.wire.ended == "aborted"

    scene(play)


def test_silent_and_idle_clients():
    async def play(client: Client) -> None:
        connection = client.connection
        client.open()
        for _ in range(7):
            connection.tick(10.0)
        assert (await client.frames())[-1][0] == Kind.PING
        client.send(frame(Kind.PING, http2.ACK, 0, bytes(8)))
        for _ in range(9):
            assert not client.wire.ended
            connection.tick(10.0)
        assert client.wire.ended == "aborted"  # it had a stream, and did not answer

    async def idle(client: Client) -> None:
        for _ in range(12):
            assert not client.wire.ended
            client.send(frame(Kind.PING, 0, 0, bytes(8)))
            client.connection.tick(10.0)
        assert (await client.frames())[-1][0] == Kind.GOAWAY
        assert client.wire.ended == "closed"

    scene(play)
    scene(idle)


def test_no_more_streams_at_the_end():
    async def play(client: Client) -> None:
        stream = client.open(1)
        client.connection.refuse_more()
        client.send(frame(Kind.HEADERS, http2.END_HEADERS, 3, POST))
        kinds = [kind for kind, *_ in await client.frames()]
        assert kinds == [Kind.GOAWAY, Kind.RST_STREAM]
        assert not stream.gone
        client.connection.connection_lost(None)
        assert stream.gone

    scene(play)
