"""Whatever MetaQ's peers, files and operators may give, given to what reads it: a result or the documented error.

    python -m tests.fuzz.fuzz_metaq TARGET [libFuzzer's options and corpus]

The targets are in `TARGETS`; each says its invariant. `seeds` gives what each begins with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.errors import FormatError, MqlakeError, ProtocolError
    from mqlake.metaq.broker.broker import MetaMorphosisBroker
    from mqlake.metaq.config import MetaConfig, SystemConfig
    from mqlake.metaq.formats.command import TransactionCommand, VersionCommand, decode_command
    from mqlake.metaq.formats.journal import AppendMessage, decode_journal_record, encode_journal_record
    from mqlake.metaq.wire.connection import Connection

from tests.fuzz.fuzz_frames import fuzz
from tests.metaq.config.test_meta_config import INI
from tests.metaq.formats.test_command import GOLDEN, OLD_FORMS
from tests.metaq.formats.test_journal import JAVA
from tests.metaq.wire.test_connection import Pipe

BODY_MAX = 1 << 16
RUNS_A_DIRECTORY = 5000


# --- targets


def command(data: bytes) -> None:
    """A command (which is written and read again as the same), need more, or ProtocolError; a beginning of it never
    becomes another one."""
    cut = data[1 : 1 + data[0]] if data else b""
    early: object = None
    with contextlib.suppress(ProtocolError):
        early = decode_command(cut, 0, body_max=BODY_MAX)
        assert not isinstance(early, int) or early > len(cut)
    with contextlib.suppress(ProtocolError):
        decoded = decode_command(data[1:], 0, body_max=BODY_MAX)
        assert not isinstance(early, tuple) or decoded == early
        if isinstance(decoded, int):
            assert decoded > len(data) - 1
            return
        found, end = decoded
        assert 0 < end < len(data)
        again = found.encode()
        read = decode_command(again, 0, body_max=3 * BODY_MAX)
        assert isinstance(read, tuple) and read[1] == len(again)
        # a qualifier of digits is taken for a timeout, in the original too
        assert read[0] == found or isinstance(found, TransactionCommand)


def journal(data: bytes) -> None:
    """Records (each written and read again as the same), or FormatError where they end."""
    position = 0
    with contextlib.suppress(FormatError):
        while position < len(data):
            decoded = decode_journal_record(data, position)
            assert decode_journal_record(encode_journal_record(decoded.record)).record == decoded.record
            assert position < decoded.end <= len(data)
            position = decoded.end


def ini(data: bytes) -> None:
    """A configuration, or an error that names the file; one that runs is never brought down by a reload."""
    with open("server.ini", "wb") as file:
        file.write(data)
    try:
        config = MetaConfig.load("server.ini")
    except MqlakeError as error:
        assert "server.ini: " in str(error)
        config = MetaConfig(topics={"t": {}})
        config.path = "server.ini"
    for topic in config.topics:
        config.topic_config(topic)
    config.reload()


class _Broker:
    """A broker that is never listened to on its port: bytes are given to it. Its directory is made anew at times."""

    def __init__(self) -> None:
        self.runs = 0
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._directory = tempfile.TemporaryDirectory(dir=os.getcwd())
        system = SystemConfig(
            data_path=self._directory.name,
            unflush_threshold=0,
            server_port=0,
            max_segment_size=1 << 16,
            host_name="127.0.0.1",
        )
        config = MetaConfig(system, topics={"test": {"numPartitions": "2"}, "log-*": {}})
        self.broker = MetaMorphosisBroker(config, host="127.0.0.1", use_zookeeper=False)
        self._loop.run_until_complete(self.broker.start())

    def close(self) -> None:
        self._loop.run_until_complete(self.broker.stop())
        self._loop.close()
        self._directory.cleanup()

    def run(self, data: bytes) -> None:
        self._loop.run_until_complete(self._run(data))
        self.runs += 1

    async def _run(self, data: bytes) -> None:
        bad, good = self._connect(), self._connect()
        cut = data[0] if data else 0
        half = len(GOOD) // 2
        for piece, part in ((data[1 : 1 + cut], GOOD[:half]), (data[1 + cut :], GOOD[half:])):
            if piece and not bad[1].closing:
                bad[0].data_received(piece)
            good[0].data_received(part)
        await asyncio.sleep(0)
        assert good[1].sent.startswith(b"result 200 ") and not good[1].closing
        for connection, _ in (bad, good):
            connection.connection_lost(None)
            self.broker._on_close(connection)

    def _connect(self) -> tuple[Connection, Pipe]:
        connection, pipe = Connection(self.broker.handle, body_max=BODY_MAX), Pipe()
        connection.connection_made(pipe)
        return connection, pipe


GOOD = VersionCommand(7).encode()


def broker(data: bytes, running: list[_Broker] = []) -> None:  # noqa: B006 - made once
    """Answers, or a closed connection; the one beside it is served. The first byte cuts the rest in two reads."""
    if running and running[0].runs >= RUNS_A_DIRECTORY:
        running.pop().close()
    if not running:
        running.append(_Broker())
    running[0].run(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (command, journal, ini, broker)
}


# --- what each begins with


def seeds(name: str) -> Iterator[bytes]:
    if name in ("command", "broker"):
        commands = [text for text, _ in GOLDEN] + [text for text, _ in OLD_FORMS]
        yield from (b"\x09" + text for text in commands)
        yield b"\x40" + b"".join(commands)
    elif name == "journal":
        yield b"".join(bytes.fromhex(text) for text, _ in JAVA)
        yield encode_journal_record(AppendMessage(7, GOLDEN[0][0]))
    elif name == "ini":
        yield INI.encode()
        yield b"[system]\nbrokerId=1\\\n2\n[zookeeper]\nzk.zkConnect=\\u0041\n[topic=a*]\ngroup.g=m:f\n"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    fuzz(TARGETS, seeds)
