"""Brokers without ZooKeeper on a free port, and a peer that speaks bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from pathlib import Path

from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.formats.command import BooleanCommand, DataCommand, Response, decode_command
from tests.waiting import PATIENCE_S

HOST = "127.0.0.1"
TOPICS: dict[str, dict[str, str]] = {"test": {"numPartitions": "3"}, "meta-test": {}}


@contextlib.asynccontextmanager
async def running(
    path: Path, topics: Mapping[str, Mapping[str, str]] = TOPICS, **system: object
) -> AsyncIterator[MetaMorphosisBroker]:
    """A broker with group commit on `path`."""
    config = SystemConfig(
        **{"data_path": str(path), "unflush_threshold": 0, "server_port": 0, "host_name": HOST, **system}  # type: ignore[arg-type]
    )
    broker = MetaMorphosisBroker(MetaConfig(config, topics=topics), host=HOST, use_zookeeper=False)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._held = b""

    @classmethod
    async def connect(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection(HOST, port))

    def send(self, *parts: bytes) -> None:
        self.writer.writelines(parts)

    async def answer(self) -> Response:
        """The next answer; ConnectionError when the connection ends."""
        while True:
            decoded = decode_command(self._held, 0, body_max=1 << 30) if self._held else 1
            if isinstance(decoded, tuple):
                self._held = self._held[decoded[1] :]
                assert isinstance(decoded[0], BooleanCommand | DataCommand)
                return decoded[0]
            async with asyncio.timeout(PATIENCE_S):
                data = await self.reader.read(1 << 20)
            if not data:
                raise ConnectionError
            self._held += data

    async def ask(self, request: bytes) -> Response:
        self.send(request)
        return await self.answer()

    async def said(self, request: bytes) -> tuple[int, str]:
        """Code and text of the answer to a request."""
        answer = await self.ask(request)
        assert isinstance(answer, BooleanCommand), answer
        return answer.code, answer.message

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class BrokerThread:
    """A broker with an event loop in a thread of its own, for those who wait in the ordinary way."""

    def __init__(self, config: MetaConfig) -> None:
        self.broker = MetaMorphosisBroker(config, host=HOST)
        self._ready: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        try:
            await self.broker.start()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._stop.wait()
        await self.broker.stop()

    def __enter__(self) -> MetaMorphosisBroker:
        self._thread.start()
        self._ready.result(60)
        return self.broker

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()
