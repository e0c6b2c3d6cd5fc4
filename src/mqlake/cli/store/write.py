"""`mqlake store append | bench`: filling a store, and measuring this machine."""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import IO, Any

import click

from mqlake.base.clock import now_ms
from mqlake.base.progress import Progress
from mqlake.base.settings import parse_assignments
from mqlake.cli.options import ExistingFile, ExistingPath, Whole, directory_argument, json_option, set_option
from mqlake.cli.output import count_text, note, print_json, print_table, progress, size_text
from mqlake.errors import MessageError, MessageTooLargeError, MqlakeError, StoreError
from mqlake.formats.batch import encode_messages
from mqlake.message import Host, MessageExtBatch, MessageExtBrokerInner, create_uniq_id, validate_topic
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.queues.consume_queue_store import BATCH_CQ
from mqlake.store.read_only import queue_type_by_files
from mqlake.store.results import PutMessageFuture

HOST: Host = ("127.0.0.1", 10911)
FUTURES_MAX = 1024
# upper bound of what an item of a batch takes besides body and properties
ITEM_OVERHEAD = 64


def open_for_writing(directory: str, settings: dict[str, str]) -> DefaultMessageStore:
    """The store in a directory, recovered and running; a new store if there is none."""
    check_is_store(directory, must_exist=False)
    known = detect_settings(directory) if os.path.isdir(directory) else {}
    config = MessageStoreConfig.from_mapping({**known, **settings, "storePathRootDir": directory})
    queue_type_of = queue_type_by_files(config)
    store = DefaultMessageStore(config, is_batch_topic=lambda topic: queue_type_of(topic) == BATCH_CQ)
    with progress("recovering") as report_progress:
        recovered = store.load(report_progress)
    if not recovered.clean_exit or recovered.torn_bytes:
        note(recovered.describe())
    store.start()
    return store


# ---------------------------------------------------------------------- append


@dataclasses.dataclass(slots=True)
class AppendedRange:
    """`count` messages starting at a queue offset."""

    first_offset: int
    count: int = 0


@dataclasses.dataclass(slots=True)
class Appended:
    """The places of stored messages: queue offsets per queue, and physical offsets."""

    topic: str
    messages: int = 0
    bytes: int = 0
    first_physical_offset: int = -1
    end_physical_offset: int = -1
    queues: dict[int, AppendedRange] = dataclasses.field(default_factory=dict)
    """By queue id."""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for messages that do not set them."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    delay_level: int
    body_max: int


@click.command()
@directory_argument
@click.option("--topic", required=True, help="Topic to append to.")
@click.option("--file", "source", type=ExistingFile("rb"), default="-", help="Input file.  [standard input]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Each line is a body, or a JSON object as printed by `dump --json` (`text` may replace `body`).",
)
@click.option("--queue", "queue_id", type=Whole(0), help="Append everything to this queue.")
@click.option(
    "--queues",
    type=Whole(1, 65536),
    default=4,
    show_default=True,
    help="Number of queues to spread messages over.",
)
@click.option("--tag", help="Tag for messages without one.")
@click.option("--key", "keys", multiple=True, help="Key for messages without one; repeatable.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="Property of every message; repeatable.",
)
@click.option("--delay-level", type=Whole(0, 18), default=0, help="RocketMQ delay level.")
@click.option(
    "--batch",
    type=Whole(1, 65536),
    default=1,
    help="Messages per batch; a batch is stored as a whole or not at all.",
)
@click.option("--sync", is_flag=True, help="Wait until each message is on disk (SYNC_FLUSH).")
@set_option
@json_option
def append(
    directory: str,
    topic: str,
    source: IO[bytes],
    kind: str,
    queue_id: int | None,
    queues: int,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int,
    batch: int,
    sync: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Append lines or JSON lines to a topic; creates the store if DIR is new or empty.

    Reads standard input, or --file. Reports how many messages were stored, and where.
    """
    if delay_level and batch > 1:
        raise click.UsageError("--delay-level and --batch exclude each other: a batch cannot be delayed")
    validate_topic(topic)
    if sync:
        settings = {**settings, "flushDiskType": "SYNC_FLUSH"}
    body_max = MessageStoreConfig.from_mapping(settings).max_message_size
    defaults = Defaults(topic, tag, keys, parse_assignments(properties), delay_level, body_max)
    began = time.monotonic()
    with progress("appending") as report:
        messages = _read(source, kind, defaults, report)
        first = next(messages, None)  # an invalid first message fails before a store is created
        with open_for_writing(directory, settings) as store:
            appender = _Appender(store, topic, queues if queue_id is None else 0, queue_id, batch)
            if first is not None:
                appender.put(*first)
                for line, message, own_queue in messages:
                    appender.put(line, message, own_queue)
            appender.finish()
    appended = appender.appended
    appended.seconds = time.monotonic() - began
    if as_json:
        print_json(appended)
    else:
        _print_appended(appended)


def _print_appended(appended: Appended) -> None:
    rate = f", {appended.messages / appended.seconds:,.0f} a second" if appended.seconds > 0.1 else ""
    click.echo(
        f"stored {count_text(appended.messages, 'message')} ({size_text(appended.bytes)}) in topic "
        f"{appended.topic}; {appended.seconds:.2f} s{rate}"
    )
    if appended.messages:
        click.echo(f"  physical offset {appended.first_physical_offset} to {appended.end_physical_offset}")
    for queue_id, found in sorted(appended.queues.items()):
        last = found.first_offset + found.count - 1
        click.echo(f"  queue {queue_id}: queue offset {found.first_offset} to {last}")


def _read(
    source: IO[bytes], kind: str, defaults: Defaults, report: Progress
) -> Iterator[tuple[int, MessageExtBrokerInner, int | None]]:
    """(line number, message, the queue it names)."""
    try:
        total = os.fstat(source.fileno()).st_size
    except (OSError, ValueError):
        total = 0
    done = 0
    for number, line in enumerate(source, 1):
        done += len(line)
        if number % 1024 == 0:
            report(done, total)
        line = line.removesuffix(b"\n")
        try:
            if kind == "json":
                if not line.strip():
                    continue
                message, own_queue = _from_json(line, defaults)
            else:
                message, own_queue = MessageExtBrokerInner(defaults.topic, line), None
            _complete(message, defaults)
        except MqlakeError as error:
            raise type(error)(f"line {number}: {error}") from error
        yield number, message, own_queue


def _from_json(line: bytes, defaults: Defaults) -> tuple[MessageExtBrokerInner, int | None]:
    import orjson

    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MessageError("not a JSON object")
    body = _body_of(value)
    properties = _typed(value, "properties", dict, {})
    if not all(isinstance(text, str) for text in properties.values()):
        raise MessageError("the values of `properties` must be strings")
    keys = value.get("keys")
    if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
        keys = " ".join(keys)
    elif keys is not None and not isinstance(keys, str):
        raise MessageError("`keys` must be a string or a list of strings")
    message = MessageExtBrokerInner(
        defaults.topic,
        body,
        _typed(value, "tags", str, None),
        keys,
        properties=properties,
        flag=_typed(value, "flag", int, 0),
        born_timestamp=_typed(value, "bornTimestamp", int, 0),
    )
    queue_id = _typed(value, "queueId", int, None)
    if queue_id is not None and not 0 <= queue_id < 1 << 31:
        raise MessageError(f"`queueId` is {queue_id}")
    return message, queue_id


def _body_of(value: dict[str, Any]) -> bytes:
    if "text" in value:
        text: str = _typed(value, "text", str, "")
        return text.encode("utf-8")
    encoded: str = _typed(value, "body", str, "")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MessageError("`body` must be base64; use `text` for text") from error


def _typed(value: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, kind) or isinstance(found, bool):
        words = {str: "a string", int: "a whole number", dict: "an object"}
        raise MessageError(f"`{name}` must be {words[kind]}")
    return found


def _complete(message: MessageExtBrokerInner, defaults: Defaults) -> None:
    """Adds what a RocketMQ client and broker would add."""
    if len(message.body) > defaults.body_max:
        raise MessageTooLargeError(
            f"the body has {len(message.body)} bytes, more than maxMessageSize allows ({defaults.body_max})"
        )
    for name, text in defaults.properties.items():
        message.properties.setdefault(name, text)
    if defaults.tag and not message.tags:
        message.tags = defaults.tag
    if defaults.keys and not message.keys:
        message.keys = " ".join(defaults.keys)
    if message.uniq_key is None:
        message.uniq_key = create_uniq_id()
    if defaults.delay_level:
        message.delay_time_level = defaults.delay_level
    if not message.born_timestamp:
        message.born_timestamp = now_ms()
    message.born_host = message.store_host = HOST


class _Appender:
    """Puts messages one by one or in batches, with some in flight to the disk."""

    def __init__(
        self, store: DefaultMessageStore, topic: str, queues: int, queue_id: int | None, batch: int
    ) -> None:
        self.appended = Appended(topic)
        self._store = store
        self._queues = queues
        self._queue_id = queue_id
        self._batch = batch
        self._turn = 0
        self._body_max = store.config.max_message_size
        self._waiting: dict[int, list[MessageExtBrokerInner]] = {}
        self._waiting_bytes: collections.Counter[int] = collections.Counter()
        self._futures: collections.deque[tuple[int, int, int, PutMessageFuture]] = collections.deque()

    def put(self, line: int, message: MessageExtBrokerInner, own_queue: int | None) -> None:
        queue_id = self._queue_id
        if queue_id is None:
            queue_id = own_queue
        if queue_id is None:
            queue_id = self._turn // self._batch % self._queues
            self._turn += 1
        message.queue_id = queue_id
        if self._batch == 1:
            self._track(line, queue_id, 1, self._store.async_put_message(message))
            return
        size = (
            len(message.body)
            + ITEM_OVERHEAD
            + sum(len(k) + 4 * len(v) for k, v in message.properties.items())
        )
        if self._waiting_bytes[queue_id] + size > self._body_max:
            self._put_batch(line, queue_id)
        self._waiting.setdefault(queue_id, []).append(message)
        self._waiting_bytes[queue_id] += size
        if len(self._waiting[queue_id]) >= self._batch:
            self._put_batch(line, queue_id)

    def _put_batch(self, line: int, queue_id: int) -> None:
        messages = self._waiting.pop(queue_id, [])
        self._waiting_bytes[queue_id] = 0
        if not messages:
            return
        first = messages[0]
        batch = MessageExtBatch(
            first.topic,
            encode_messages(messages),
            queue_id=queue_id,
            born_timestamp=first.born_timestamp,
            born_host=HOST,
            store_host=HOST,
        )
        self._track(line, queue_id, len(messages), self._store.async_put_messages(batch))

    def finish(self) -> None:
        for queue_id in sorted(self._waiting):
            self._put_batch(0, queue_id)
        while self._futures:
            self._take()

    def _track(self, line: int, queue_id: int, count: int, future: PutMessageFuture) -> None:
        self._futures.append((line, queue_id, count, future))
        while self._futures and (len(self._futures) > FUTURES_MAX or self._futures[0][3].done()):
            self._take()

    def _take(self) -> None:
        line, queue_id, count, future = self._futures.popleft()
        result, found = future.result(), future.result().append_result
        appended = self.appended
        if not result.is_ok or found is None:
            where = f"line {line}: " if line else ""
            raise StoreError(
                f"{where}{result.status.name}: {result.reason}; "
                f"{count_text(appended.messages, 'message')} stored before that"
            )
        if appended.first_physical_offset < 0:
            appended.first_physical_offset = found.wrote_offset
        appended.end_physical_offset = found.wrote_offset + found.wrote_bytes
        appended.messages += count
        appended.bytes += found.wrote_bytes
        appended.queues.setdefault(queue_id, AppendedRange(found.logics_offset)).count += count


# ---------------------------------------------------------------------- bench


@click.command()
@click.argument("directory", metavar="[DIR]", type=ExistingPath(file_okay=False), required=False)
@click.option(
    "--seconds", type=click.FloatRange(0.05, 600), default=2.0, show_default=True, help="Seconds per step."
)
@click.option("--size", type=Whole(0, 1 << 20), default=1024, show_default=True, help="Body size in bytes.")
@set_option
@json_option
def bench(directory: str | None, seconds: float, size: int, settings: dict[str, str], as_json: bool) -> None:
    """Measure this machine quickly: append, get, scan, verify.

    Works in a temporary directory under DIR (default: the system's), which it deletes at the end.
    """
    from mqlake.cli.bench import run_bench

    with progress("measuring", in_bytes=False) as report:
        results = run_bench(directory, settings, seconds=seconds, body_size=size, progress=report)
    if as_json:
        print_json(results)
        return
    rows = [
        (
            result.name,
            result.messages,
            f"{result.messages / result.seconds:,.0f}",
            f"{result.bytes / 1e6 / result.seconds:,.0f}",
            f"{result.cpu_seconds * 1e6 / max(1, result.messages):.2f}",
        )
        for result in results
    ]
    print_table(("step", "messages", "messages/s", "MB/s", "CPU µs/message"), rows)
