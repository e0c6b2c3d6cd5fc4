"""`mqlake produce`: sends messages from lines, JSON lines or whole files, as kcat does."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import json
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import click
import orjson

from mqlake.base.clock import now_ms
from mqlake.base.progress import Progress
from mqlake.cli.clients import cluster_options, stop_on_signals
from mqlake.cli.complete import complete_topic
from mqlake.cli.options import Whole, json_option, time_ms
from mqlake.cli.output import count_text, note, print_json, progress, size_text
from mqlake.client.config import ClientConfig
from mqlake.client.produce.producer import Producer, ProducerConfig, select_by_hash
from mqlake.client.results import SendResult
from mqlake.errors import ConfigError, MessageError, MqlakeError, TopicNotFoundError
from mqlake.message import STRING_PROPERTY, Message, validate_topic
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.loop import run
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS

BATCH_BYTES_MAX = 1 << 20
"""A batch that reaches this size is sent, whatever --batch says."""
READ_SIZE = 1 << 20


@dataclass
class _Template:
    """Fields of all messages, unless a JSON line overrides them."""

    topic: str
    key: str | None
    tag: str | None
    properties: dict[str, str]
    delay: str | None
    deliver_at_ms: int | None
    key_separator: str | None
    is_filled: bool = False
    """`{n}` and the like stand for values."""
    number: int = 0

    def message(self, body: bytes) -> Message:
        key = self.key
        if self.key_separator is not None:
            text, found, rest = body.partition(self.key_separator.encode())
            if found:
                key, body = text.decode("utf-8", "replace"), rest
        message = Message(self.topic, body, self.tag, key, properties=dict(self.properties))
        if self.is_filled:
            self._fill(message)
        self._set_time(message)
        return message

    def _fill(self, message: Message) -> None:
        values = {"n": str(self.number), "ms": str(now_ms()), "uuid": str(uuid.uuid4())}
        self.number += 1

        def filled(text: str) -> str:
            return _FIELD.sub(lambda found: values[found[1]], text)

        message.body = filled(message.body.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
        if message.keys:
            message.keys = filled(message.keys)
        if message.tags:
            message.tags = filled(message.tags)
        for name in self.properties:
            message.properties[name] = filled(self.properties[name])

    def _set_time(self, message: Message) -> None:
        if self.deliver_at_ms is not None:
            message.deliver_time_ms = self.deliver_at_ms
        elif self.delay is not None and self.delay.isdigit():
            message.delay_time_level = int(self.delay)
        elif self.delay is not None:
            message.delay_time_ms = duration_ms(self.delay)

    def from_json(self, line: bytes, number: int) -> Message:
        """A message of a line as `consume --json` prints it, with its body as `text`, `json` or `body` (base64)."""
        try:
            fields = orjson.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
            given = fields.get("properties") or {}
            if not isinstance(given, dict):
                raise ValueError("`properties` is not an object")
            for name in ("tags", "keys"):
                if not isinstance(fields.get(name) or "", str):
                    raise ValueError(f"`{name}` is not a string")
            if "text" in fields:
                body = _text(fields, "text").encode()
            elif "json" in fields:
                # not orjson: integers of any size stay what they are
                value = json.loads(line)["json"]
                body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            else:
                body = base64.b64decode(_text(fields, "body"), validate=True)
            message = Message(
                self.topic,
                body,
                fields.get("tags") or self.tag,
                fields.get("keys") or self.key,
                flag=int(fields.get("flag") or 0),
                properties=dict(self.properties),
            )
            for name, value in given.items():
                if name not in STRING_PROPERTY:  # the client sets these
                    message.properties[name] = str(value)
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise MessageError(f"line {number} is not a message: {error}") from error
        self._set_time(message)
        return message


_FIELDS = ("n", "ms", "uuid")
_FIELD = re.compile(rf"\{{({'|'.join(_FIELDS)})\}}")


def _note_unknown_fields(texts: Sequence[str]) -> None:
    """They may be meant as they are, or mistyped."""
    found = {name for text in texts for name in re.findall(r"\{([a-z]+)\}", text) if name not in _FIELDS}
    for name in sorted(found):
        note(f"{{{name}}} is sent as it is; --template fills in {{n}}, {{ms}} and {{uuid}}")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"`{name}` is missing or not a string (use `text`, `json`, or `body` in base64)")
    return value


def _properties(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    properties = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        if name in STRING_PROPERTY:
            raise click.BadParameter(f"{name} is reserved by RocketMQ")
        properties[name] = text
    return properties


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)


def duration_ms(text: str) -> int:
    """`90s` → 90000. ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2]]


def _delay(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if (
        value is None
        or _DURATION.fullmatch(value)
        or (value.isascii() and value.isdigit() and 1 <= int(value) <= 18)
    ):
        return value
    raise click.BadParameter(f"{value!r} is neither a time like 90s, 10m, 2h, 500ms nor a level of 1 to 18")


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option("-m", "--message", "texts", multiple=True, help="Body of a message; repeatable.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["lines", "json", "file"]),
    default="lines",
    show_default=True,
    help="Each message is a line, a line of JSON as printed by `consume --json`, or a whole file.",
)
@click.option("-k", "--key", help="Key of the messages.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator between key and body in each line.")
@click.option("-t", "--tag", help="Tag of the messages.")
@click.option(
    "-p",
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_properties,
    help="Property of the messages; repeatable.",
)
@click.option(
    "--delay",
    callback=_delay,
    metavar="TIME|LEVEL",
    help="Deliver after this time, like 90s, 10m, 2h or 500ms; or a delay level, 1 (1 s) to 18 (2 h).",
)
@click.option(
    "--deliver-at",
    "deliver_at_ms",
    type=time_ms,
    metavar="TIME",
    help="Deliver at this time, like 2030-01-31T08:00, or in ms since 1970.",
)
@click.option(
    "--template",
    "is_template",
    is_flag=True,
    help="In bodies, -k, -t and -p, {n} is the number of the message, from 0, {ms} the time, {uuid} a random id.",
)
@click.option("--count", type=Whole(1), help="With -m: send this many, of the texts in turn.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N messages a second."
)
@click.option("--queue", metavar="[BROKER:]ID", help="Send everything to this queue.")
@click.option("--by-key", is_flag=True, help="Send messages with the same key to the same queue, in order.")
@click.option(
    "--batch",
    type=Whole(1, 10_000),
    default=1,
    show_default=True,
    help="Number of messages per batch.",
)
@click.option(
    "--in-flight",
    type=Whole(1, 4096),
    default=64,
    show_default=True,
    help="Maximum number of sends in flight. Above 1, only mqlake brokers preserve order.",
)
@click.option(
    "--compress",
    type=click.Choice(["zlib", "lz4", "zstd", "none"]),
    default="zlib",
    show_default=True,
    help="Compression of bodies of 4 KiB or more.",
)
@click.option("-g", "--group", default="mqlake_produce", show_default=True, help="Producer group.")
@click.option(
    "--allow-empty-body",
    is_flag=True,
    help="Send messages without a body (-m ''), which delete their key in tables of latest rows. "
    "RocketMQ's brokers refuse them.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=DEFAULT_TIMEOUTS.request_s,
    show_default=True,
    help="Seconds to wait for each send.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Print a line per message: id, queue, offset, recall handle."
)
@cluster_options
@json_option
def produce(
    topic: str,
    files: Sequence[str],
    texts: Sequence[str],
    kind: str,
    key: str | None,
    key_separator: str | None,
    tag: str | None,
    properties: dict[str, str],
    delay: str | None,
    deliver_at_ms: int | None,
    is_template: bool,
    count: int | None,
    rate: float | None,
    queue: str | None,
    by_key: bool,
    batch: int,
    in_flight: int,
    compress: str,
    group: str,
    allow_empty_body: bool,
    timeout_s: float,
    verbose: bool,
    where: ClientConfig,
    as_json: bool,
) -> None:
    """Send messages to a topic: the lines of FILES, or of stdin.

    Each line is a message; empty lines are skipped. The command stops at the first message that cannot be sent, with
    exit status 1. Ctrl-C, or Ctrl-D when typing, stops it after the sends in flight have finished.

    \b
    echo hello | mqlake produce T
    mqlake produce T -m hello -t tag -k key
    mqlake produce T --format json messages.jsonl --batch 100
    mqlake produce T --format file picture.png
    mqlake produce T --template -m 'order {n}' -k 'key-{n}' -t new --count 1000 --rate 50
    """
    validate_topic(topic)
    template = _Template(topic, key, tag, properties, delay, deliver_at_ms, key_separator, is_template)
    job = _Job(
        template, list(files), list(texts), kind, batch, in_flight, queue, by_key, verbose, count, rate
    )
    job.refuse_contradictions()
    if is_template:
        _note_unknown_fields([*texts, key or "", tag or "", *properties.values()])
    settings = ProducerConfig(
        send_msg_timeout_s=timeout_s,
        compress_type="ZLIB" if compress == "none" else compress.upper(),
        compress_msg_body_over_howmuch=sys.maxsize if compress == "none" else 4096,
        allow_empty_body=allow_empty_body,
    )

    async def main() -> None:
        async with Producer(group, where, settings) as producer:
            size = job.input_size()
            with progress(
                "producing", in_bytes=bool(size), among_results=job.shares_the_terminal()
            ) as report:
                await job.run(producer, (lambda _, __: report(job.taken, size)) if size else report)

    has_more_to_say = True
    try:
        run(main())
    except (MqlakeError, OSError):
        has_more_to_say = job.sent > 0 or as_json  # else the error says all
        raise
    finally:
        if has_more_to_say:
            job.summarize(as_json)


@dataclass
class _Job:
    template: _Template
    files: list[str]
    texts: list[str]
    kind: str
    batch: int
    in_flight: int
    queue: str | None
    by_key: bool
    verbose: bool
    count: int | None = None
    rate: float | None = None
    """Messages a second."""
    sent: int = 0
    bytes: int = 0
    taken: int = 0
    """Bytes of input read so far."""
    begun: float = field(default_factory=time.monotonic)
    is_new_topic: bool = False
    """No name server knew it before."""
    failure: MqlakeError | OSError | None = None
    _due: float = 0.0

    def refuse_contradictions(self) -> None:
        """click.UsageError for options that exclude each other."""
        delay, deliver_at_ms = self.template.delay, self.template.deliver_at_ms
        if (delay is not None or deliver_at_ms is not None) and self.batch > 1:
            raise click.UsageError(
                "--delay, --deliver-at and --batch exclude each other: a batch cannot be delayed"
            )
        if delay is not None and deliver_at_ms is not None:
            raise click.UsageError("use either --delay or --deliver-at")
        if self.by_key and (self.batch > 1 or self.queue is not None):
            raise click.UsageError("--by-key excludes --batch and --queue")
        if self.texts and self.files:
            raise click.UsageError("use either -m or FILES")
        if self.texts and self.kind != "lines":
            raise click.UsageError(f"--format {self.kind} is for FILES and stdin: -m gives a body as it is")
        if self.count is not None and not self.texts:
            raise click.UsageError("--count needs -m")
        if self.template.is_filled and self.kind == "json":
            raise click.UsageError(
                "--template is for lines, files and -m: a JSON line says everything itself"
            )

    def shares_the_terminal(self) -> bool:
        """True if lines are printed or typed on the terminal while messages are sent."""
        return self.verbose or (not self.texts and not self.files and sys.stdin.isatty())

    def input_size(self) -> int:
        """Bytes of the whole input; 0 if unknown, or if there is none."""
        sizes = []
        for path in [] if self.texts else self.files or ["-"]:
            try:
                found = os.fstat(0) if path == "-" else os.stat(path)
            except OSError:  # opening the file reports it
                return 0
            if not stat.S_ISREG(found.st_mode):
                return 0
            sizes.append(found.st_size)
        return sum(sizes)

    async def run(self, producer: Producer, report: Progress) -> None:
        stop = stop_on_signals()
        queue = None
        if self.queue is not None:
            queue = _find_queue(await producer.fetch_publish_message_queues(self.template.topic), self.queue)
        else:
            self.is_new_topic = await _is_unknown(producer, self.template.topic)
        sends: set[asyncio.Task[None]] = set()
        stopping = asyncio.ensure_future(stop.wait())
        batches = self._batches()
        try:
            while not stop.is_set() and self.failure is None:
                taking = asyncio.ensure_future(anext(batches, None))
                await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done() or (messages := taking.result()) is None:
                    taking.cancel()
                    break
                await self._keep_to_the_rate(len(messages), stopping)
                while len(sends) >= self.in_flight:
                    await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
                if self.failure is None:
                    task = asyncio.ensure_future(self._send(producer, messages, queue, report))
                    sends.add(task)
                    task.add_done_callback(sends.discard)
                    if not self.sent:
                        # before routes and connections exist, sends would overtake one another
                        await asyncio.wait([task])
        finally:
            stopping.cancel()
            if sends:
                await asyncio.wait(sends)
        if self.failure is not None:
            raise self.failure

    async def _keep_to_the_rate(self, count: int, stopping: asyncio.Future[Any]) -> None:
        """Waits until the next `count` messages are due. What was missed is not made up for at once."""
        if self.rate is None:
            return
        now = time.monotonic()
        wait_s = self._due - now
        self._due = max(self._due, now) + count / self.rate
        if wait_s > 0:
            await asyncio.wait([stopping], timeout=wait_s)

    async def _send(
        self, producer: Producer, messages: list[Message], queue: MessageQueue | None, report: Progress
    ) -> None:
        try:
            if self.batch > 1:
                result = await producer.send_batch(messages, queue=queue)
            else:
                (message,) = messages
                selector = select_by_hash(message.keys or "") if self.by_key else None
                result = await producer.send(message, queue=queue, selector=selector)
            self.sent += len(messages)
            self.bytes += sum(len(message.body) for message in messages)
            report(self.sent, 0)
            if self.verbose:
                _print_result(result)
        except (MqlakeError, OSError) as error:  # OSError: stdout cannot be written
            self.failure = self.failure or error

    async def _batches(self) -> AsyncIterator[list[Message]]:
        messages: list[Message] = []
        size = 0
        async for message in self._messages():
            if messages and size + len(message.body) > BATCH_BYTES_MAX:
                yield messages
                messages, size = [], 0
            messages.append(message)
            size += len(message.body)
            if len(messages) >= self.batch:
                yield messages
                messages, size = [], 0
        if messages:
            yield messages

    async def _messages(self) -> AsyncIterator[Message]:
        number = len(self.texts) if self.count is None else self.count
        for text in itertools.islice(itertools.cycle(self.texts), number if self.texts else 0):
            yield self.template.message(text.encode("utf-8", "surrogateescape"))
        if self.texts:
            return
        number = 0
        for path in self.files or ["-"]:
            with _opened(path) as file:
                if self.kind == "file":
                    body = b"".join([data async for data in _chunks(file)])
                    self.taken += len(body)
                    yield self.template.message(body)
                    continue
                async for line in _lines(file):
                    number += 1
                    self.taken += len(line) + 1
                    if self.kind == "lines" and line:
                        yield self.template.message(line)
                    elif self.kind == "json" and line.strip():
                        yield self.template.from_json(line, number)

    def summarize(self, as_json: bool) -> None:
        seconds = time.monotonic() - self.begun
        if as_json:
            print_json(
                {
                    "topic": self.template.topic,
                    "sent": self.sent,
                    "bytes": self.bytes,
                    "seconds": round(seconds, 3),
                    "topicCreated": self.is_new_topic and self.sent > 0,
                }
            )
            return
        text = f"{count_text(self.sent, 'message')}, {size_text(self.bytes)} sent to {self.template.topic}"
        note(f"{text} in {seconds:.2f} s")
        if self.is_new_topic and self.sent:
            note(f"there was no topic {self.template.topic}: the broker has made it")


async def _is_unknown(producer: Producer, topic: str) -> bool:
    """Also learns the topic's route, which the first send needs."""
    try:
        await producer.client.update_topic_route(topic)
    except TopicNotFoundError:
        return True
    return False


def _print_result(result: SendResult) -> None:
    queue = result.message_queue
    for msg_id in result.msg_id.split(","):
        handle = f"  {result.recall_handle}" if result.recall_handle else ""
        click.echo(f"{msg_id}  {queue.broker_name}/{queue.queue_id}@{result.queue_offset}{handle}")


def _find_queue(queues: list[MessageQueue], wanted: str) -> MessageQueue:
    found = [queue for queue in queues if queue_matches(queue, wanted)]
    if len(found) != 1:
        names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
        kind = ConfigError if found else MqlakeError
        raise kind(f"--queue {wanted} matches {count_text(len(found), 'queue')} of {names}")
    return found[0]


def queue_matches(queue: MessageQueue, wanted: str) -> bool:
    """True if `wanted`, `ID` or `BROKER:ID`, names this queue."""
    broker, _, number = wanted.rpartition(":")
    return number == str(queue.queue_id) and broker in ("", queue.broker_name)


@contextlib.contextmanager
def _opened(path: str) -> Any:
    if path == "-":
        yield sys.stdin.buffer
    else:
        with open(path, "rb") as file:
            yield file


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Chunks of the file as they arrive. Waiting for a pipe or a terminal can be cancelled."""
    loop = asyncio.get_running_loop()
    descriptor = file.fileno()
    mode = os.fstat(descriptor).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    while True:
        if waits:
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
        data = os.read(descriptor, READ_SIZE)
        if not data:
            return
        yield data


async def _lines(file: BinaryIO) -> AsyncIterator[bytes]:
    """Lines without their line ends, each as soon as it is complete."""
    rest = b""
    async for data in _chunks(file):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
