"""Connections of the gRPC endpoint whose frames are damaged leave nothing behind: no exception, task, call or byte."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.proxy import http2
from mqlake.proxy.grpc_call import GrpcCall
from mqlake.proxy.http2 import Http2Connection
from mqlake.proxy.nghttp2_server import NgHttp2Server
from mqlake.remoting import loop
from tests.fuzz.damaged_http2 import RPCS, Driver, damage, run, whole_session
from tests.proxy.frames import END_STREAM, GOAWAY, HEADERS, PREFACE
from tests.proxy.test_http2 import tls_files
from tests.waiting import PATIENCE_S, until_async


@pytest.fixture(autouse=True)
def _its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "HELD_MAX", http2.HELD_MAX)


def frames(written: bytes) -> Iterator[tuple[int, int]]:
    """Kind and flags of each."""
    start = 0
    while start < len(written):
        yield written[start + 3], written[start + 4]
        start += 9 + int.from_bytes(written[start : start + 3], "big")


def test_some_thousand_damaged_frames():
    assert run(3000) > 1000


@pytest.mark.nightly
def test_a_million_damaged_frames():
    run(1_000_000, seed=1 << 20)


def test_sessions_are_answered_before_they_are_damaged():
    """Else the connection would be closed by the first frame, and nothing of it be tested."""

    async def main() -> None:
        driver = Driver()
        ended = 0
        for seed in range(100):
            found = list(frames(bytes(await driver.session(seed, whole=True))))
            assert GOAWAY not in [kind for kind, _ in found], seed
            ended += sum(kind == HEADERS and flags & END_STREAM for kind, flags in found)
        assert ended > 100

    asyncio.run(main())


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Http2Connection, "_drop_streams"), (GrpcCall, "_let_go")],
    ids=["calls of a closed connection", "held bytes"],
)
def test_what_is_left_is_found(owner: type, method: str, monkeypatch: pytest.MonkeyPatch):
    """The canary; it names the seed."""
    monkeypatch.setattr(owner, method, lambda self: None)
    with pytest.raises(AssertionError, match=r"seed [0-9]+: "):
        run(3000)


class DamagedTls:
    """A client of a TLS endpoint with a session of its own; some of what it sends is damaged, above TLS or below."""

    def __init__(self, port: int, context: ssl.SSLContext, seed: int) -> None:
        self._chance = random.Random(seed)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._breaks_tls = self._chance.random() < 0.4
        self.shook_hands = False

    async def live(self) -> None:
        chance = self._chance
        frames = damage(chance, whole_session(chance))
        data = PREFACE + b"".join(one for one, _ in frames)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            if await self._shake_hands():
                self.shook_hands = True
                while data:
                    size = chance.choice((1, 50, 700, 20_000))
                    self._tls.write(data[:size])
                    data = data[size:]
                    await self._flush(0.1)
        if chance.random() < 0.3:  # a reset in place of an end
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    async def _shake_hands(self) -> bool:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush(0.05)
                came = await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
                if not came:
                    return False
                self._incoming.write(came)
            else:
                await self._flush(0.05)
                return True

    async def _flush(self, share: float) -> None:
        sent = bytearray(self._outgoing.read())
        if sent and self._breaks_tls and self._chance.random() < share:
            at = self._chance.randrange(len(sent))
            if self._chance.random() < 0.5:
                sent[at] ^= 1 << self._chance.randrange(8)
            else:
                del sent[at : at + self._chance.choice((1, 100))]
        await asyncio.get_running_loop().sock_sendall(self._socket, sent)


@pytest.mark.parametrize("run_loop", [loop.run, asyncio.run], ids=["the broker's loop", "asyncio's"])
def test_damaged_sessions_through_tls(tmp_path: Path, run_loop: Any):
    async def main() -> None:
        config, _ = tls_files(tmp_path)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        wrong: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: wrong.append(str(told)))
        server = NgHttp2Server(RPCS.values(), config)
        port = await server.start("127.0.0.1", 0)
        clients = [DamagedTls(port, context, seed) for seed in range(200)]
        async with asyncio.timeout(PATIENCE_S):
            for first in range(0, len(clients), 50):
                # one whose server waits for the rest of a record waits, too, until it has lost its patience
                lives = [asyncio.create_task(each.live()) for each in clients[first : first + 50]]
                _, waiting = await asyncio.wait(lives, timeout=2)
                for life in waiting:
                    life.cancel()
                ends = await asyncio.gather(*lives, return_exceptions=True)
                assert not (failed := [end for end in ends if isinstance(end, Exception)]), failed
            for client in clients:
                client.close()
            await until_async(lambda: not server.connections and not server.calls, "nothing is left")
        await server.stop(0.0)
        assert sum(client.shook_hands for client in clients) > 60
        assert not wrong, wrong[0]

    run_loop(main())
