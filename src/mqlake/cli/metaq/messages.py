"""`mqlake metaq produce | consume | stats`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import click

from mqlake.cli.options import ExistingFile, Whole, json_option
from mqlake.cli.output import count_text, note, print_fields, print_json, print_json_line
from mqlake.errors import ConfigError, MqlakeError, RemotingError
from mqlake.metaq.client import ConsumerConfig, Message, MetaMessageSessionFactory, SendResult
from mqlake.metaq.client.consumer import MAX_OFFSET
from mqlake.metaq.config.meta_config import ZKConfig
from mqlake.remoting.loop import run

Command = TypeVar("Command", bound=Callable[..., Any])
MAX_WAIT_S = 1e9
BATCH, BATCH_BYTES = 64, 4 << 20
"""At most so many messages, and about so many bytes, are in flight."""
SEND_S = 30.0


def zookeeper_options(command: Command) -> Command:
    for option in (
        click.option("--zk-root", default="/meta", show_default=True, help="MetaQ's root node in ZooKeeper."),
        click.option(
            "--zookeeper",
            metavar="HOST:PORT",
            default="127.0.0.1:2181",
            show_default=True,
            help="The ZooKeeper of the brokers.",
        ),
    ):
        command = option(command)
    return command


def session_options(command: Command) -> Command:
    """ZooKeeper, or one broker."""
    return zookeeper_options(
        click.option("--server", metavar="HOST:PORT", help="Use this broker, without ZooKeeper.")(command)
    )


def _session(zookeeper: str, zk_root: str, server: str | None = None) -> MetaMessageSessionFactory:
    if server:
        return MetaMessageSessionFactory(server_url=f"meta://{server.removeprefix('meta://')}")
    return MetaMessageSessionFactory(zk_config=ZKConfig.of_command(zookeeper, zk_root))


# ---------------------------------------------------------------------- produce


@click.command()
@click.argument("topic")
@click.argument("file", type=ExistingFile("rb"), default="-")
@session_options
@click.option("--attribute", help="The attribute of every message.")
@click.option("--whole", is_flag=True, help="Send the whole file as one message, not line by line.")
@click.option("--transaction", is_flag=True, help="Send all messages or none, in one local transaction.")
@json_option
def produce(
    topic: str,
    file: Any,
    zookeeper: str,
    zk_root: str,
    server: str | None,
    attribute: str | None,
    whole: bool,
    transaction: bool,
    as_json: bool,
) -> None:
    """Send each line of FILE (or of the input) to TOPIC as a message."""
    bodies = [file.read()] if whole else (line.rstrip(b"\n") for line in file)
    job = _Sending(topic, attribute, as_json)

    async def send() -> None:
        async with _session(zookeeper, zk_root, server) as session:
            producer = session.create_producer()
            await producer.publish(topic)
            if not transaction:
                await job.send(bodies, producer.send_message, BATCH)
                return
            try:
                async with producer.begin_transaction() as open_transaction:
                    await job.send(bodies, open_transaction.send_message, 1)
            except BaseException:
                job.stored = 0
                raise

    try:
        run(send())
    except BaseException as error:
        stored = f"{count_text(job.stored, 'message')} stored in {topic}"
        if isinstance(error, RemotingError):
            raise RemotingError(f"{error}; {stored}") from error
        if job.stored:
            note(stored)
        raise
    if not as_json:
        note(f"{count_text(job.stored, 'message')} sent to {topic}")


class _Sending:
    """Sends messages, and counts those that are stored."""

    def __init__(self, topic: str, attribute: str | None, as_json: bool) -> None:
        self.topic, self.attribute, self.as_json = topic, attribute, as_json
        self.stored = 0
        self._line = 0
        """Line of the last message that was sent, from 1."""

    async def send(
        self, bodies: Iterable[bytes], send: Callable[[Message, float], Awaitable[SendResult]], at_once: int
    ) -> None:
        """RemotingError for the first message that is not stored, after all answers of its batch."""
        waiting: list[Awaitable[SendResult]] = []
        size = 0
        for body in bodies:
            waiting.append(send(Message(self.topic, body, self.attribute), SEND_S))
            self._line += 1
            size += len(body)
            if len(waiting) == at_once or size >= BATCH_BYTES:
                await self._settled(waiting)
                size = 0
        await self._settled(waiting)

    async def _settled(self, waiting: list[Awaitable[SendResult]]) -> None:
        results = await asyncio.gather(*waiting, return_exceptions=True)
        first = self._line - len(results) + 1
        waiting.clear()
        failed: tuple[int, str] | None = None
        for line, result in enumerate(results, first):
            if isinstance(result, SendResult) and result.success:
                self.stored += 1
                self._show(result)
            elif isinstance(result, BaseException) and not isinstance(result, MqlakeError | OSError):
                raise result
            elif failed is None:
                failed = line, _reason(result)
        if failed is not None:
            raise RemotingError(f"{self.topic}: line {failed[0]} is not stored: {failed[1]}")

    def _show(self, result: SendResult) -> None:
        if self.as_json:
            fields = {"id": result.message_id, "partition": str(result.partition), "offset": result.offset}
            print_json_line(fields)


def _reason(result: SendResult | BaseException) -> str:
    if isinstance(result, BaseException):
        return str(result)
    if result.error_message == "403":
        return f"partition {result.partition} is closed (403)"
    return result.error_message


# ---------------------------------------------------------------------- consume


@click.command()
@click.argument("topic")
@zookeeper_options
@click.option("-g", "--group", help="Consume as a member of this group.  [show all messages, consume none]")
@click.option("-c", "--count", type=Whole(1), help="Stop after so many messages.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, MAX_WAIT_S),
    help="With --group: stop after so many seconds without a message.",
)
@click.option("--from-end", is_flag=True, help="A group without an offset begins at the end.")
@json_option
def consume(
    topic: str,
    zookeeper: str,
    zk_root: str,
    group: str | None,
    count: int | None,
    wait_s: float | None,
    from_end: bool,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC.

    Without --group: the messages that exist now, from the first to the last. With it: as one consumer of the group,
    until Ctrl-C, --count or --wait; the next time the group continues from there.
    """
    if wait_s is not None and math.isnan(wait_s):
        raise ConfigError("--wait: a number of seconds is needed")
    printer = _Printer(as_json, count)
    session = _session(zookeeper, zk_root)
    if group is None:
        run(_browse(session, topic, printer))
    else:
        config = ConsumerConfig(group=group, offset=MAX_OFFSET if from_end else 0, max_delay_fetch_s=1.0)
        run(_consume(session, topic, config, printer, wait_s))


class _Printer:
    """Prints messages, at most `count` of them."""

    def __init__(self, as_json: bool, count: int | None) -> None:
        self._as_json = as_json
        self._left = math.inf if count is None else count

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def show(self, message: Message) -> None:
        self._left -= 1
        if self._as_json:
            print_json_line(
                {
                    "id": message.id,
                    "partition": str(message.partition),
                    "attribute": message.attribute,
                    "data": message.data.decode("utf-8", "backslashreplace"),
                }
            )
        else:
            sys.stdout.buffer.write(message.data + b"\n")
            sys.stdout.buffer.flush()


async def _browse(factory: MetaMessageSessionFactory, topic: str, printer: _Printer) -> None:
    async with factory as session:
        browser = session.create_topic_browser(topic)
        if not await browser.partitions():
            raise RemotingError(f"{topic}: no broker has messages of this topic")
        async for message in browser:
            printer.show(message)
            if printer.is_done:
                return
        for partition in browser.closed:
            note(f"{topic}: partition {partition} is closed (403); its messages are not shown")


async def _consume(
    factory: MetaMessageSessionFactory,
    topic: str,
    config: ConsumerConfig,
    printer: _Printer,
    wait_s: float | None,
) -> None:
    done = asyncio.Event()
    last = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)

    def listener(message: Message) -> None:
        nonlocal last
        if done.is_set():
            message.rollback_only = True  # the next run gets it
            return
        printer.show(message)
        last = time.monotonic()
        if printer.is_done:
            done.set()

    async with factory as session:
        consumer = session.create_consumer(config)
        consumer.subscribe(topic, listener)
        await consumer.complete_subscribe()
        last = time.monotonic()
        while not done.is_set():
            left = None if wait_s is None else last + wait_s - time.monotonic()
            if left is not None and left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), left)


# ---------------------------------------------------------------------- stats


@click.command()
@click.argument("item", default="")
@session_options
@json_option
def stats(item: str, zookeeper: str, zk_root: str, server: str | None, as_json: bool) -> None:
    """Show each broker's statistics; ITEM is topics, offsets, realtime, config, help or the name of a topic."""

    async def ask() -> dict[str, dict[str, str]]:
        async with _session(zookeeper, zk_root, server) as session:
            return await session.stats(item)

    found = run(ask())
    if not found:
        raise RemotingError(f"ZooKeeper {zookeeper} has no broker below {zk_root}")
    if as_json:
        print_json(found)
        return
    for address, values in found.items():
        click.echo(address)
        if item == "config":
            click.echo(values["config"])
        else:
            print_fields(list(values.items()), indent=2)
