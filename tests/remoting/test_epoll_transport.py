"""A server's connections moved to EpollTransports: their clients notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mqlake.errors import RemotingConnectError
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, Limits
from mqlake.remoting.epoll_transport import HIGH_WATER, EpollTransport
from tests.remoting.conftest import Run
from tests.remoting.test_connection import ECHO, LARGE, SLOW, Service, request, serving
from tests.waiting import PATIENCE_S, until_async


class Owner:
    """Of an epoll: has the transports do all there is to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.epoll = select.epoll()
        self.transports: dict[int, EpollTransport] = {}
        self.rests: list[bool] = []
        self.heard = False
        self._loop = loop
        loop.add_reader(self.epoll.fileno(), self._on_ready)

    def take_over(self, connection: Connection) -> EpollTransport | None:
        hooks: dict[str, Any] = {
            "on_change": self._on_change,
            "on_close": lambda transport: self.transports.pop(transport.fd),
            "had_bytes": self._had_bytes,
        }
        transport = EpollTransport.take_over(self.epoll, connection, **hooks)
        if transport is not None:
            self.transports[transport.fd] = transport
        return transport

    def _on_change(self, transport: EpollTransport) -> None:
        self.rests.append(transport.is_at_rest)

    def _had_bytes(self, _: EpollTransport) -> bool:
        heard, self.heard = self.heard, False
        return heard

    def _on_ready(self) -> None:
        for fd, _ in self.epoll.poll(0):
            if transport := self.transports.get(fd):
                transport.ready()

    def close(self) -> None:
        self._loop.remove_reader(self.epoll.fileno())
        self.epoll.close()


@contextlib.asynccontextmanager
async def moved(
    limits: Limits | None = None,
) -> AsyncIterator[tuple[Service, RemotingClient, EpollTransport, Owner]]:
    """A client whose connection has been moved after its first request."""
    async with serving(limits) as service, RemotingClient() as client:
        owner = Owner(asyncio.get_running_loop())
        await client.call(service.address, request(ECHO, b"first"))
        [connection] = service.server.connections
        transport = owner.take_over(connection)
        assert transport is not None and connection.transport is transport
        try:
            yield service, client, transport, owner
        finally:
            service.release.set()
            await service.server.stop()
            await until_async(lambda: not owner.transports, "all are closed")
            owner.close()


def test_requests_go_on(run: Run) -> None:
    async def main() -> None:
        async with moved() as (service, client, transport, owner):
            for size in (0, 1, 70_000, 3 << 20):
                answer = await client.call(service.address, request(ECHO, bytes(size)))
                assert len(answer.body or b"") == size
            assert len(service.server.connections) == 1 and transport.is_at_rest
            assert transport.get_extra_info("peername") and owner.rests[-1]

    run(main())


def test_answers_that_come_later_and_at_once(run: Run) -> None:
    async def main() -> None:
        async with moved() as (service, client, _, _):
            later = [
                asyncio.ensure_future(client.call(service.address, request(SLOW, b"%d" % n)))
                for n in range(20)
            ]
            assert (await client.call(service.address, request(ECHO, b"now"))).body == b"now"
            service.release.set()
            assert [answer.body for answer in await asyncio.gather(*later)] == [b"%d" % n for n in range(20)]

    run(main())


def test_half_frames_of_every_length(run: Run) -> None:
    async def main() -> None:
        async with moved() as (service, _, _, owner):
            frame = encode_frame(RemotingCommand(ECHO, opaque=5, body=b"body"))
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
            for size in range(len(frame)):
                writer.write(frame[:size])
                await asyncio.sleep(0)
                if size == 3:
                    await until_async(lambda: len(service.server.connections) == 2, "it is there")
                    [connection] = (
                        c for c in service.server.connections if c.transport not in owner.transports.values()
                    )
                    await until_async(lambda c=connection: not c.is_at_rest, "bytes came")
                    transport = owner.take_over(connection)
                    assert transport is not None and not transport.is_at_rest  # three bytes are held
                writer.write(frame[size:])
                got = b""
                while not frame_end(got, 0, len(got)):
                    more = await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S)
                    assert more, "the connection was closed"
                    got += more
                assert decode_frame(memoryview(got), 0, len(got)).body == b"body"
            writer.close()
            await until_async(lambda: len(service.server.connections) == 1, "it is gone")

    run(main())


def test_a_peer_that_does_not_read_is_not_read_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unsent: list[int] = []
    resume_writing = Connection.resume_writing

    def resumes(connection: Connection) -> None:
        assert isinstance(connection.transport, EpollTransport)
        unsent.append(connection.transport.get_write_buffer_size())
        resume_writing(connection)

    monkeypatch.setattr(Connection, "resume_writing", resumes)

    async def main() -> None:
        limits = Limits(write_high_water=64 << 10)
        async with moved(limits) as (service, _, _, owner):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port, limit=1 << 16)
            await until_async(lambda: len(service.server.connections) == 2, "it is there")
            ask = encode_frame(RemotingCommand(LARGE, opaque=1, ext_fields={"size": "1000000"}))
            writer.write(ask)
            [connection] = (
                c for c in service.server.connections if c.transport not in owner.transports.values()
            )
            await until_async(lambda: connection.reads > 0, "it is read")
            await reader.readexactly(1_000_000)
            await until_async(lambda: owner.take_over(connection) is not None, "all is sent")
            transport = connection.transport
            assert isinstance(transport, EpollTransport)
            for _ in range(100):
                writer.write(ask)
            await until_async(lambda: not connection.is_writable, "the peer has too much to read")
            assert not transport.is_reading() and not transport.is_at_rest
            assert transport.get_write_buffer_size() < 4 << 20
            size = 0
            while size < 100_000_000:
                size += len(await reader.read(1 << 20))
            await until_async(lambda: transport.is_at_rest and connection.is_writable, "it has read all")
            assert max(unsent) <= HIGH_WATER // 4
            writer.close()

    run(main())


def test_what_comes_while_reading_is_paused_is_left(run: Run) -> None:
    async def main() -> None:
        async with moved() as (service, client, transport, _):
            [connection] = service.server.connections
            before = connection.reads
            transport.pause_reading()
            waiting = asyncio.ensure_future(client.call(service.address, request(ECHO, b"later")))
            await until_async(lambda: select.select([transport.fd], [], [], 0)[0], "it has come")
            transport.ready()
            assert connection.reads == before
            transport.resume_reading()
            assert (await waiting).body == b"later"

    run(main())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_server_hangs_up(run: Run, how: str) -> None:
    async def main() -> None:
        async with moved() as (service, client, transport, owner):
            waiting = asyncio.ensure_future(client.invoke(service.address, request(SLOW), PATIENCE_S))
            await until_async(lambda: service.server.in_flight, "it is asked")
            getattr(transport, how)()
            with pytest.raises(RemotingConnectError):
                await waiting
            assert transport.is_closing() and not owner.transports and not service.server.connections
            transport.write(b"too late")
            service.release.set()

    run(main())


def test_the_client_hangs_up(run: Run) -> None:
    async def main() -> None:
        async with moved() as (service, client, _, owner):
            await client.close()
            await until_async(lambda: not owner.transports and not service.server.connections, "it is gone")

    run(main())


def test_one_that_is_idle_is_closed_and_one_that_was_heard_is_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.remoting.peer.IDLE_CHECK_S", 0.01)

    async def main() -> None:
        async with moved(Limits(idle_s=60)) as (service, _, _, owner):
            [connection] = service.server.connections
            for _ in range(3):
                connection._active_at -= 120
                owner.heard = True  # bytes that only the owner has seen
                await until_async(lambda: not owner.heard, "it is looked at")
                assert service.server.connections
            connection._active_at -= 120
            await until_async(lambda: not service.server.connections, "it is idle")

    run(main())
