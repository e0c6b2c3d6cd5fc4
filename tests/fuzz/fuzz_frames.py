"""Whatever a peer may send, given to what reads it: a result or the documented error, nothing else.

    python -m tests.fuzz.fuzz_frames TARGET [libFuzzer's options and corpus]

The targets are in `TARGETS`; each says its invariant. `seeds` gives what each begins with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from json import loads as load_json
from pathlib import Path
from typing import Any, NoReturn

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.base import json_config
    from mqlake.broker.filter import compile_expression
    from mqlake.broker.filter.values import NotComparableError
    from mqlake.errors import FilterExpressionError, FormatError, HeaderError, ProtocolError
    from mqlake.formats.batch import decode_messages, encode_messages
    from mqlake.formats.compression import COMPRESSION_NAMES, compress_body, decompress_body
    from mqlake.message import Message, MessageSysFlag
    from mqlake.remoting.bodies import admin, client, route, topic
    from mqlake.remoting.bodies.codec import JsonBody
    from mqlake.remoting.bodies.compressed import decode_compressed
    from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
    from mqlake.remoting.codes import SerializeType
    from mqlake.remoting.command import RemotingCommand
    from mqlake.remoting.connection import Connection
    from mqlake.remoting.headers import admin as admin_headers
    from mqlake.remoting.headers import consume, namesrv, produce
    from mqlake.remoting.headers.codec import CommandHeader
    from mqlake.remoting.server import RemotingServer

from tests.fuzz.keeping_transport import KeepingTransport

BODIES = [
    kind
    for module in (admin, client, route, topic)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, JsonBody) and kind is not JsonBody
]
HEADERS = [
    kind
    for module in (produce, consume, namesrv, admin_headers)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, CommandHeader) and kind is not CommandHeader
]
COMPRESSED = [MessageSysFlag.COMPRESSED_FLAG | kind for kind in COMPRESSION_NAMES.values()]
INFLATED_MAX = 1 << 20


# --- targets


def frame(data: bytes) -> None:
    """A command (which is written and read again as the same), need more, or ProtocolError."""
    with contextlib.suppress(ProtocolError):
        if end := frame_end(data, 0, len(data)):
            command = decode_frame(memoryview(data), 0, end)
            again = encode_frame(command)
            assert frame_end(again, 0, len(again)) == len(again)
            read = decode_frame(memoryview(again), 0, len(again))
            assert (read.code, read.opaque, read.flag) == (command.code, command.opaque, command.flag)
            assert read.body_bytes() == command.body_bytes()


def header(data: bytes) -> None:
    """A code's own header, or HeaderError: `name value` lines, the first byte chooses the header."""
    kind = HEADERS[data[0] % len(HEADERS)] if data else HEADERS[0]
    fields = {}
    for line in data[1:].decode(errors="surrogateescape").split("\n"):
        name, _, value = line.partition(" ")
        fields[name] = value
    with contextlib.suppress(HeaderError):
        decoded = kind.decode(fields)
        assert kind.decode(decoded.encode()) == decoded


def json(data: bytes) -> None:
    """A value that is written and read again as the same, or FormatError."""
    with contextlib.suppress(FormatError):
        value = json_config.loads(data)
        for pretty in (False, True):
            text = json_config.dumps(value, pretty=pretty)
            assert json_config.dumps(json_config.loads(text), pretty=pretty) == text


def body(data: bytes) -> None:
    """A body that is written and read again as the same, or FormatError; the first byte chooses the body."""
    kind = BODIES[data[0] % len(BODIES)] if data else BODIES[0]
    with contextlib.suppress(FormatError):
        read = kind.from_json(data[1:])
        assert kind.from_json(read.to_json()).to_json() == read.to_json()


def compressed(data: bytes) -> None:
    """A registration as old brokers send it, or FormatError."""
    with contextlib.suppress(FormatError):
        decode_compressed(zlib.compress(data, 0), 479)
    with contextlib.suppress(FormatError):
        decode_compressed(data, 479)


def batch(data: bytes) -> None:
    """The messages of a batch, or FormatError; an unpacked body is never larger than allowed."""
    with contextlib.suppress(FormatError):
        items = decode_messages(data)
        assert sum(len(item.body) + len(item.properties) for item in items) <= len(data)
    for kind in COMPRESSED:
        with contextlib.suppress(FormatError):
            assert len(decompress_body(data, kind, INFLATED_MAX)) <= INFLATED_MAX


def sql(data: bytes) -> None:
    """An expression that can be asked of any properties (some cannot be compared), or FilterExpressionError."""
    with contextlib.suppress(FilterExpressionError):
        expression = compile_expression("SQL92", data.decode(errors="replace"))
        for properties in ({}, {"a": "1", "b": "x", "TAGS": "t"}):
            with contextlib.suppress(NotComparableError):
                assert expression.evaluate(properties) in (True, False, None)


class _Connections:
    """Two connections of one server: what comes on the first may close it, and is nothing to the second."""

    GOOD = encode_frame(RemotingCommand(7, opaque=7, ext_fields={"a": "b"}, body=b"good"))

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = RemotingServer()
        self.server.processors.register_default(self._answer)

    @staticmethod
    def _answer(_: Connection, command: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.create_response(remark=command.remark, body=command.body_bytes())

    def connect(self) -> tuple[Connection, KeepingTransport]:
        connection, transport = Connection(self.server, self.loop), KeepingTransport()
        connection.connection_made(transport)
        return connection, transport

    def give(self, connection: Connection, transport: KeepingTransport, data: bytes) -> None:
        """As a loop does, until the connection is closed."""
        while data and not transport.closing:
            room = connection.get_buffer(-1)
            assert len(room) > 0
            count = min(len(room), len(data))
            room[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]

    def run(self, data: bytes) -> None:
        bad, good = self.connect(), self.connect()
        cut = data[0] if data else 0
        pieces = [data[1 : 1 + cut], data[1 + cut :]]
        half = len(self.GOOD) // 2
        for piece, part in zip(pieces, (self.GOOD[:half], self.GOOD[half:]), strict=True):
            self.give(*bad, piece)
            self.give(*good, part)
        written = good[1].written
        answer = decode_frame(memoryview(written), 0, len(written))
        assert (answer.opaque, answer.body_bytes(), good[1].closing) == (7, b"good", False)
        for connection, _ in (bad, good):
            held = connection._buffer.held
            assert held <= len(data) or connection is good[0]
            connection.connection_lost(None)


def connection(data: bytes) -> None:
    """Answers, or a closed connection; the one beside it is served. The first byte cuts the rest in two reads."""
    _connections().run(data)


def _connections(made: list[_Connections] = []) -> _Connections:  # noqa: B006 - made once
    if not made:
        made.append(_Connections())
    return made[0]


def canary(data: bytes) -> None:
    """Fails, if the inputs are led by what they reach."""
    with contextlib.suppress(ProtocolError):
        if end := frame_end(data, 0, len(data)):
            assert decode_frame(memoryview(data), 0, end).opaque != 3 or len(data) % 2, "the canary"


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (frame, header, json, body, compressed, batch, sql, connection, canary)
}


# --- what each begins with


def seeds(name: str) -> Iterator[bytes]:
    frames = [
        encode_frame(
            RemotingCommand(
                code, opaque=3, flag=1, remark="r", ext_fields={"a": "x"}, body=b"b", serialize_type=kind
            )
        )
        for code in (10, 310)
        for kind in SerializeType
    ]
    texts = [b'{"a":[1,-2.5e3,true,null,"\\u00e9"],1:{"x":"y"}}', b"{{'q':1}:2}"]
    if name in ("frame", "canary"):
        yield from frames
    elif name == "connection":
        yield from (b"\x09" + one + two for one in frames for two in frames)
    elif name == "header":
        for index, kind in enumerate(HEADERS):
            names = [*kind.__annotations__, "a", "b", "topic", "queueId"]
            yield bytes([index]) + "\n".join(f"{each} 1" for each in names).encode()
    elif name == "json":
        yield from texts
    elif name == "body":
        for index, kind in enumerate(BODIES):
            with contextlib.suppress(TypeError):  # one that has no defaults
                yield bytes([index]) + kind().to_json()
    elif name == "batch":
        yield encode_messages([Message("T", b"x", properties={"a": "b"}), Message("T", b"")])
        for compression in COMPRESSED:
            yield compress_body(b"x" * 100, compression)
    elif name == "compressed":
        piece = b"\0\0\0\x02{}"
        yield piece + b"\0\0\0\0" + piece
    elif name == "sql":
        yield from (b"a > 1 AND b IN ('x','y') OR NOT (c IS NULL)", b"a BETWEEN 1 AND 2 AND d CONTAINS 'q'")


def fuzz(targets: dict[str, Callable[[bytes], None]], seeds: Callable[[str], Iterator[bytes]]) -> None:
    """The target that the command line names, from a corpus that its seeds begin; without one, each that a line of
    stdin asks for, in a process forked for it: to import all that is instrumented takes a second.

    in   {"target": ..., "options": [...], "directory": ..., "corpus": ..., "said": path}
    out  the exit status
    """
    if sys.argv[1:]:
        _run(targets, seeds)
    for line in sys.stdin:
        job = load_json(line)
        pid = os.fork()
        if not pid:
            _take_place(job)
            _run(targets, seeds)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _take_place(job: dict[str, Any]) -> None:
    """In the directory, as the command line would, with all that is said in a file."""
    said = os.open(job["said"], os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["directory"])
    sys.argv[1:] = [job["target"], *job["options"], job["corpus"]]


def _run(targets: dict[str, Callable[[bytes], None]], seeds: Callable[[str], Iterator[bytes]]) -> NoReturn:
    name = sys.argv.pop(1)
    corpus = Path(sys.argv[-1])
    if corpus.is_dir() and not any(corpus.iterdir()):
        for number, seed in enumerate(seeds(name)):
            (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, targets[name])
    atheris.Fuzz()
    sys.exit()


if __name__ == "__main__":
    fuzz(TARGETS, seeds)
