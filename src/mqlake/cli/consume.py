"""`mqlake consume`: prints messages as text, formatted or as JSON lines, as kcat does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

import click
import orjson

from mqlake.base.clock import now_ms
from mqlake.base.progress import Progress
from mqlake.cli.clients import cluster_options, stop_on_signals
from mqlake.cli.complete import complete_group, complete_topic
from mqlake.cli.consume_pop import PopJob
from mqlake.cli.options import Whole, json_option, time_ms
from mqlake.cli.output import count_text, note, progress
from mqlake.cli.produce import queue_matches
from mqlake.cli.standard_streams import unguarded
from mqlake.cli.terminal import visible
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.pull_consumer import PullConsumer
from mqlake.client.consume.subscription import MessageSelector
from mqlake.client.consume.undecodable import CHOICES
from mqlake.client.records import MessageClientExt
from mqlake.errors import (
    ConfigError,
    MqlakeError,
    TopicNotFoundError,
    UndecodableMessageError,
    did_you_mean,
    nearest,
)
from mqlake.message import validate_topic
from mqlake.message.rendering import record_object
from mqlake.message.topics import is_system_topic
from mqlake.remoting.bodies.client import ConsumeFromWhere
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.loop import run

TOOLS_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's group for tools that read; it stores no offsets."""
COMMIT_INTERVAL_S = 1.0
POLL_S = 0.2

BODIES = ("text", "base64", "json")
Formatter = Callable[[MessageClientExt], bytes]
_FIELDS: dict[str, Callable[[MessageClientExt], bytes | str | int]] = {
    "t": lambda m: m.topic,
    "b": lambda m: m.broker_name,
    "q": lambda m: m.queue_id,
    "o": lambda m: m.queue_offset,
    "k": lambda m: m.keys or "",
    "g": lambda m: m.tags or "",
    "i": lambda m: m.uniq_key or m.msg_id,
    "T": lambda m: m.store_timestamp,
    "s": lambda m: m.body,
    "S": lambda m: len(m.body),
    "p": lambda m: ",".join(f"{name}={value}" for name, value in m.properties.items()),
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)|(.)", re.DOTALL)


def formatter(text: str, *, guard: bool = False) -> Formatter:
    """A function from a message to its output in the format `text`. Raises ConfigError for an unknown token.

    `guard`: what a message holds must not steer a terminal; the format itself may.
    """
    parts: list[bytes | Callable[[MessageClientExt], bytes | str | int]] = []
    for token, escape, plain, odd in _TOKEN.findall(text):
        if token == "%":
            parts.append(b"%")
        elif token:
            if token not in _FIELDS:
                raise ConfigError(
                    f"--format: unknown token %{token}; use {' '.join('%' + name for name in _FIELDS)} %%"
                )
            parts.append(_FIELDS[token])
        elif escape:
            if escape[0] == "x" and len(escape) == 3:
                parts.append(bytes([int(escape[1:], 16)]))
            elif escape in _ESCAPES:
                parts.append(_ESCAPES[escape].encode())
            else:
                raise ConfigError(f"--format: unknown escape \\{escape}; use \\n \\r \\t \\0 \\\\ \\xHH")
        elif odd:
            raise ConfigError(f"--format ends with {odd}; use {odd}{odd} for the character itself")
        else:
            parts.append(plain.encode())

    def field(value: bytes | str | int) -> bytes:
        found = value if isinstance(value, bytes) else str(value).encode()
        return visible(found.decode(errors="surrogateescape")).encode() if guard else found

    def format_message(message: MessageClientExt) -> bytes:
        return b"".join(part if isinstance(part, bytes) else field(part(message)) for part in parts)

    return format_message


def json_formatter(body: str) -> Formatter:
    """A function from a message to its line of JSON; `body` is one of BODIES."""

    def format_message(message: MessageClientExt) -> bytes:
        found = record_object(message)
        if body == "json" and (value := _json_value(message.body)) is not None:
            found = _replaced(found, "json", value)
        elif body != "base64" and (text := _text(message.body)) is not None:
            found = _replaced(found, "text", text)
        found["brokerName"] = message.broker_name
        if message.undecodable:
            found["undecodable"] = message.undecodable
        return orjson.dumps(found) + b"\n"

    return format_message


def _replaced(fields: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The fields with another one in the place of `body`."""
    return {(name if key == "body" else key): value if key == "body" else old for key, old in fields.items()}


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _json_value(body: bytes) -> orjson.Fragment | None:
    """The body as it is if it is JSON: numbers keep their digits. Line ends in it are white space."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return orjson.Fragment(body.replace(b"\r", b" ").replace(b"\n", b" "))


# --- the start


@dataclass(frozen=True)
class Start:
    """`earliest`, `latest`, an offset, -N from the end of each queue, or @TIME."""

    kind: str
    value: int = 0

    async def offset(self, consumer: PullConsumer, queue: MessageQueue) -> int:
        first, end = await consumer.begin_offset(queue), await consumer.max_offset(queue)
        if self.kind == "latest":
            return end
        if self.kind == "time":
            return await consumer.offset_for_timestamp(queue, self.value)
        wanted = {"earliest": first, "offset": self.value, "from_end": end - self.value}[self.kind]
        return min(max(first, wanted), end)


def parse_start(_ctx: click.Context, _param: click.Parameter, text: str) -> Start:
    if text in ("earliest", "latest"):
        return Start(text)
    if re.fullmatch(r"\d{1,19}", text):
        return Start("offset", int(text))
    if re.fullmatch(r"-\d{1,19}", text):
        return Start("from_end", int(text[1:]))
    try:
        return Start("time", time_ms(text.removeprefix("@")))
    except click.BadParameter:
        raise click.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, -N from the end of each queue, nor a time (@ms or "
            "2024-05-01T12:30)"
        ) from None


def parse_until(ctx: click.Context, param: click.Parameter, text: str | None) -> Start | None:
    until = None if text is None else parse_start(ctx, param, text)
    if until is not None and until.kind not in ("offset", "time"):
        raise click.BadParameter(f"{text!r} is neither an offset nor a time (@ms or 2024-05-01T12:30)")
    return until


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-f",
    "--format",
    "text",
    default="%s\\n",
    show_default=True,
    metavar="TEXT",
    help="Output format: %t topic, %b broker, %q queue, %o offset, %k keys, %g tags, %i id, %T store time in ms, "
    "%p properties, %s body, %S body size; \\n \\t \\xHH.",
)
@click.option(
    "-g",
    "--group",
    shell_complete=complete_group,
    help="Join this consumer group: share its queues and commit its offsets.",
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    callback=parse_start,
    help="Start position: earliest, latest, an offset, -N from the end of each queue, @TIME (ms or ISO 8601). "
    "With --group: where the group has no offset.",
)
@click.option("--tags", help="Only messages with this tag, or with one of several: `a || b`.")
@click.option("--sql", metavar="CONDITION", help="Only messages whose properties match this SQL92 condition.")
@click.option("--queue", "wanted", metavar="[BROKER:]ID", multiple=True, help="Only this queue; repeatable.")
@click.option("-c", "--count", type=Whole(1), help="Stop after this many messages.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end that the topic had at the start.")
@click.option(
    "--until",
    callback=parse_until,
    metavar="OFFSET|TIME",
    help="Stop before this offset of each queue, or before messages stored at this time (ms or ISO 8601; a future "
    "time is waited for). With --exit-at-end also where the topic ends.",
)
@click.option(
    "--on-undecodable",
    type=click.Choice(CHOICES),
    default="raise",
    show_default=True,
    help="If a body cannot be decompressed: raise stops with an error that names the message, skip warns and "
    "continues, raw prints it as it is stored.",
)
@click.option(
    "--pop",
    is_flag=True,
    help="With --group: pop instead of pulling, and acknowledge what is printed. All members share all queues.",
)
@click.option(
    "--invisible",
    "invisible_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --pop: for how long popped messages are kept from other members.",
)
@click.option(
    "--body",
    type=click.Choice(BODIES),
    help="With --json: text gives a body that is text as `text`, json one that is JSON as `json`, and both others as "
    "base64 gives all: in `body`.  [text]",
)
@cluster_options
@json_option
def consume(
    topic: str,
    text: str,
    group: str | None,
    start: Start,
    tags: str | None,
    sql: str | None,
    wanted: Sequence[str],
    count: int | None,
    exit_at_end: bool,
    until: Start | None,
    on_undecodable: Literal["raise", "skip", "raw"],
    pop: bool,
    invisible_s: float,
    body: str | None,
    where: ClientConfig,
    as_json: bool,
) -> None:
    """Print the messages of a topic, and wait for new ones until Ctrl-C.

    Without --group it reads all queues and commits nothing, so other consumers are not affected. --json prints one
    object per line, which `mqlake produce --format json` takes.

    \b
    mqlake consume T -e                              all messages up to now
    mqlake consume T -f '%t %q %o %k %s\\n' --from -10
    mqlake consume T --group g --json                as a member of group g
    mqlake consume T --group g --pop                 likewise, sharing every queue
    mqlake consume T --from 2024-05-01T12:00 --tags 'a || b' -c 100
    mqlake consume T --from 2024-05-01 --until 2024-05-02
    """
    validate_topic(topic)
    if tags is not None and sql is not None:
        raise click.UsageError("use either --tags or --sql")
    if group is not None and wanted:
        raise click.UsageError("--queue excludes --group: a group assigns its queues itself")
    if group is not None and start.kind in ("offset", "from_end"):
        raise click.UsageError("with --group, --from must be earliest, latest or a time")
    selector = MessageSelector.by_sql(sql) if sql is not None else MessageSelector.by_tag(tags or "*")
    if until is not None and until.kind == start.kind and until.value < start.value:
        raise click.UsageError("--until is before --from")
    if until is not None and group is not None:
        raise click.UsageError("--until excludes --group: a member commits what it has read")
    if body is not None and not as_json:
        raise click.UsageError("--body is for --json; -f '%s' prints bodies as they are")
    line = json_formatter(body or "text") if as_json else formatter(text, guard=sys.stdout.isatty())
    out = sys.stdout.buffer if as_json else unguarded()
    if pop and (group is None or start.kind not in ("earliest", "latest")):
        raise click.UsageError("--pop needs --group, and --from earliest or latest")
    job = (
        PopJob(
            topic,
            line,
            out,
            selector,
            start.kind == "latest",
            invisible_s,
            count,
            exit_at_end,
            on_undecodable,
        )
        if pop
        else _Job(
            topic,
            line,
            out,
            selector,
            start,
            list(wanted),
            count,
            exit_at_end,
            group is not None,
            on_undecodable,
            until,
        )
    )
    with progress("consuming", in_bytes=False, among_results=True) as report:
        try:
            run(job.run(group or TOOLS_GROUP, where, report))
        except TopicNotFoundError as error:
            topics = [each for each in run(_topics(where)) if not is_system_topic(each)]
            near = did_you_mean(nearest(error.topic, topics)).removeprefix("; ")
            error.add_note(f"{near} `mqlake admin topic list` lists the topics".lstrip())
            raise
    note(count_text(job.taken, "message") + (f", {job.skipped} skipped" if job.skipped else ""))


async def _topics(where: ClientConfig) -> set[str]:
    """All topics; empty if the name server refuses to list them."""
    from mqlake.client.admin import Admin

    with contextlib.suppress(MqlakeError):
        async with Admin(where) as admin:
            return await admin.fetch_all_topic_list()
    return set()


@dataclass
class _Job:
    topic: str
    line: Formatter
    out: IO[bytes]
    selector: MessageSelector
    start: Start
    wanted: list[str]
    count: int | None
    exit_at_end: bool
    commits: bool
    on_undecodable: Literal["raise", "skip", "raw"] = "raise"
    until: Start | None = None
    taken: int = 0
    skipped: int = 0
    ends: dict[MessageQueue, int] = field(default_factory=dict)
    """The offsets to stop at: the ends of the queues at the start, or what --until says; empty: nowhere."""

    async def run(self, group: str, where: ClientConfig, report: Progress) -> None:
        stop = stop_on_signals()
        from_where = {
            "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            "time": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        }
        config = ConsumerConfig(
            consume_from_where=from_where.get(self.start.kind, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
            consume_timestamp=self.start.value,
            auto_commit=False,
            on_undecodable=self._skip if self.on_undecodable == "skip" else self.on_undecodable,
        )
        async with PullConsumer(group, where, config) as consumer:
            queues = await self._queues(consumer)
            await self._find_ends(consumer, queues)
            if self.commits:
                consumer.subscribe(self.topic, self.selector)
            else:
                offsets = {queue: await self.start.offset(consumer, queue) for queue in queues}
                await consumer.assign(queues, self.selector, offsets=offsets)
            try:
                await self._consume(consumer, stop, report)
            except UndecodableMessageError as error:
                raise MqlakeError(
                    f"{error}; --on-undecodable skip continues after it, raw prints its body as it is stored"
                ) from error
            finally:
                if self.commits:
                    await consumer.commit()

    async def _find_ends(self, consumer: PullConsumer, queues: Iterable[MessageQueue]) -> None:
        """For a time in the past the current ends do: everything stored before it is in the queues already."""
        is_over = self.until is not None and self.until.kind == "time" and self.until.value <= now_ms()
        if self.exit_at_end or is_over:
            self.ends = {queue: await consumer.max_offset(queue) for queue in queues}
        if self.until is not None and self.until.kind == "offset":
            last = self.until.value
            self.ends = {queue: min(last, self.ends.get(queue, last)) for queue in queues}

    def _before_the_end(self, message: MessageClientExt) -> bool:
        if (
            self.until is not None
            and self.until.kind == "time"
            and message.store_timestamp >= self.until.value
        ):
            return False
        return message.queue_offset < self.ends.get(message.message_queue, 1 << 63)

    def _skip(self, message: MessageClientExt) -> None:
        self.skipped += 1
        note(f"skipped: {message.undecodable_error()}")

    async def _queues(self, consumer: PullConsumer) -> list[MessageQueue]:
        queues = await consumer.fetch_message_queues(self.topic)
        for wanted in self.wanted:
            if not any(queue_matches(queue, wanted) for queue in queues):
                names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
                raise MqlakeError(f"--queue {wanted} is not one of {names}")
        if self.wanted:
            queues = [queue for queue in queues if any(queue_matches(queue, each) for each in self.wanted)]
        return queues

    async def _consume(self, consumer: PullConsumer, stop: asyncio.Event, report: Progress) -> None:
        committed_at = time.monotonic()
        while not stop.is_set() and not self._is_done(consumer):
            left = 1024 if self.count is None else min(1024, self.count - self.taken)
            messages = await consumer.poll(POLL_S, left)
            if self.until is not None and not self.ends:
                await self._find_ends(consumer, consumer.assignment())
            if messages:
                if (self.ends or self.until is not None) and not self.commits:
                    messages = list(filter(self._before_the_end, messages))
                self.out.write(b"".join(map(self.line, messages)))
                self.out.flush()
                self.taken += len(messages)
                report(self.taken, self.count or 0)
            if self.commits and time.monotonic() - committed_at > COMMIT_INTERVAL_S:
                await consumer.commit()
                committed_at = time.monotonic()

    def _is_done(self, consumer: PullConsumer) -> bool:
        if self.count is not None and self.taken >= self.count:
            return True
        return (
            (self.exit_at_end or bool(self.ends))
            and consumer.balanced
            and all(consumer.position(queue) >= self.ends.get(queue, 0) for queue in consumer.assignment())
        )
