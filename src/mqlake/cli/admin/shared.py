"""Shared by the commands of `mqlake admin`: options, completion, and the brokers that a command asks.

`admin_command` makes a command of an async function: it connects to the cluster of the options or of the context,
hands the function an Admin, and turns what goes wrong into an exit status.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from mqlake.cli.clients import NAMESRV_VARIABLE, cluster_options, with_context
from mqlake.cli.contexts import NAME_VARIABLE, Context
from mqlake.cli.formats import FORMATS, clear_screen, printed_as
from mqlake.cli.options import json_option
from mqlake.client.admin import Admin
from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.config import ClientConfig
from mqlake.errors import MqlakeError, NoNameServerError, RemotingConnectError, RemotingTimeoutError
from mqlake.message.topics import is_system_topic
from mqlake.remoting.loop import run

COMPLETION_TIMEOUT_S = 1.0
AT_ONCE = 16
"""Requests in flight of a command that asks for each topic or group."""

T = TypeVar("T")
Item = TypeVar("Item")
Command = TypeVar("Command", bound=Callable[..., Any])


def admin_command(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Makes an async function(admin, as_json=, ...) the body of a command, with the options common to all."""

    @cluster_options
    @click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.01, 3600),
        default=5.0,
        show_default=True,
        help="Seconds to wait for each answer.",
    )
    @json_option
    @functools.wraps(function)
    def command(where: ClientConfig, timeout_s: float, **options: Any) -> None:
        config = dataclasses.replace(where, timeout_s=timeout_s)
        run(_with_admin(config, lambda admin: function(admin, **options)))

    return command


def listing_command(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """As `admin_command`, of a listing: -o says how it is printed, --watch how often."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Format; wide: all columns.",
    )
    @click.option(
        "--watch",
        "watch_s",
        type=click.FloatRange(0.05, 86400),
        metavar="SECONDS",
        help="List again every so many seconds, until Ctrl-C.",
    )
    @admin_command
    @functools.wraps(function)
    async def listing(
        admin: Admin, *, as_json: bool, output: str, watch_s: float | None, **options: Any
    ) -> None:
        if as_json and output != "table":
            raise click.UsageError("--json and -o say it twice; use one of them.")
        with printed_as(output):
            while True:
                await function(admin, as_json=as_json or output in ("json", "yaml"), **options)
                if watch_s is None:
                    return
                await asyncio.sleep(watch_s)
                clear_screen()

    return listing


async def _with_admin(config: ClientConfig, ask: Callable[[Admin], Awaitable[T]]) -> T:
    async with Admin(config) as admin:
        try:
            return await ask(admin)
        except (RemotingConnectError, RemotingTimeoutError) as error:
            if error.address in admin.name_servers.addresses:
                raise NoNameServerError([(error.address, str(error))]) from error
            raise


async def of_each(items: Iterable[Item], ask: Callable[[Item], Awaitable[T]]) -> list[T]:
    """The answers in the order of the items, of which there may be thousands: AT_ONCE are asked at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> T:
        async with gate:
            return await ask(item)

    return await asyncio.gather(*map(one, items))


# --- arguments and options


def _complete(
    list_names: Callable[[Admin], Awaitable[Sequence[str]]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes names that the cluster knows; completes nothing if it does not answer quickly."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = (each.name for each in dataclasses.fields(Context))
        said: dict[str, Any] = {each: ctx.params[each] for each in names if ctx.params.get(each)}
        said["namesrv"] = ctx.params.get("namesrv") or os.environ.get(NAMESRV_VARIABLE) or DEFAULT_ADDRESS
        name = ctx.params.get("context_name") or os.environ.get(NAME_VARIABLE) or ""
        try:
            config = with_context(Context(**said), name, ctx)
            config = dataclasses.replace(config, timeout_s=COMPLETION_TIMEOUT_S)
            found = run(_with_admin(config, list_names))
        except (MqlakeError, OSError):
            return []
        fitting = sorted(name for name in found if name.startswith(incomplete))
        ordinary = [name for name in fitting if not is_system_topic(name)]
        return [CompletionItem(name) for name in ordinary or fitting]

    return complete


async def _topics(admin: Admin) -> Sequence[str]:
    return list(await admin.fetch_all_topic_list())


async def _groups(admin: Admin) -> Sequence[str]:
    return list(await admin.get_all_subscription_groups())


def _named(name: str, letter: str, complete: Any, *, required: bool) -> Callable[[Command], Command]:
    """An argument that mqadmin takes as an option, accepted in both forms."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def merged(*args: Any, **options: Any) -> Any:
            by_option, by_argument = options.pop(f"{name}_option"), options.pop(name)
            if by_option and by_argument and by_option != by_argument:
                raise click.UsageError(f"{name.upper()} is given twice: {by_argument} and {by_option}.")
            value = by_option or by_argument
            if required and not value:
                raise click.UsageError(f"Missing argument '{name.upper()}'.")
            return function(*args, **options, **{name: value})

        metavar = name.upper() if required else f"[{name.upper()}]"
        merged = click.argument(name, required=False, metavar=metavar, shell_complete=complete)(merged)
        return click.option(  # type: ignore[return-value]
            f"-{letter}", f"--{name}", f"{name}_option", hidden=True, shell_complete=complete
        )(merged)

    return decorate


complete_topic, complete_group = _complete(_topics), _complete(_groups)
topic_argument = _named("topic", "t", complete_topic, required=True)
group_argument = _named("group", "g", complete_group, required=True)
optional_group_argument = _named("group", "g", complete_group, required=False)
topic_option = click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, help="Only this topic."
)
cluster_option = click.option("-c", "--cluster", metavar="CLUSTER", help="All brokers of this cluster.")
broker_option = click.option("-b", "--broker", metavar="BROKER", help="One broker, by name or host:port.")


# --- brokers


async def targets(admin: Admin, broker: str | None, cluster: str | None) -> list[tuple[str, str]]:
    """(name, address) of one broker, or of the masters of a cluster, or of all masters."""
    if broker and cluster:
        raise click.UsageError("Use either --broker or --cluster.")
    if broker:
        return [(broker, await admin.broker_address(broker))]
    return [(master.name, master.address) for master in await admin.masters(cluster)]


def need_target(broker: str | None, cluster: str | None) -> None:
    """UsageError if neither is given: a command that changes brokers never changes all of them by default."""
    if not broker and not cluster:
        raise click.UsageError("Name a broker with --broker, or a cluster with --cluster.")
