"""`mqlake console`: pages on a cluster or on store directories, for browsers, scripts and MCP clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mqlake.base.net import is_every_address
from mqlake.cli.clients import cluster_options, stop_on_signals
from mqlake.cli.logs import log_options
from mqlake.cli.options import Whole, port_to_choose, set_option
from mqlake.cli.output import note, print_json_line
from mqlake.cli.stopping import stop_event
from mqlake.client.config import ClientConfig
from mqlake.errors import ConfigError, MissingPartError
from mqlake.remoting.loop import run

if TYPE_CHECKING:
    from mqlake.console.app import ConsoleConfig
    from mqlake.console.server import ConsoleServer

PORT = 8080
INSTALL = "pip install 'mqlake[console]'"


@click.command()
@cluster_options
@click.option(
    "--store",
    "directories",
    metavar="DIR",
    multiple=True,
    help="Show this store directory; repeatable. Without -n no cluster is shown, and no broker is needed.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--host-name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Name under which browsers reach it, besides localhost and addresses; repeatable.",
)
@click.option(
    "--body",
    "bodies",
    metavar="TOPIC=KIND:FILE",
    multiple=True,
    help="Decode the bodies of a topic (`*` and `?` stand for any): avro:FILE.avsc, protobuf:FILE.desc[#MESSAGE], "
    "json-schema:FILE.json or confluent:DIR; repeatable.",
)
@click.option(
    "--allow-changes", is_flag=True, help="Let users send messages, reset offsets and change settings."
)
@click.option("--mcp", is_flag=True, help="Serve MCP on stdin and stdout instead of pages; read-only.")
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
@click.option(
    "--until-eof", is_flag=True, hidden=True, help="Stop at the end of stdin: the parent process has gone."
)
@log_options
@click.pass_context
def console(
    ctx: click.Context,
    where: ClientConfig,
    directories: tuple[str, ...],
    host: str,
    port: int,
    names: tuple[str, ...],
    bodies: tuple[str, ...],
    allow_changes: bool,
    mcp: bool,
    settings: dict[str, str],
    as_json: bool,
    until_eof: bool,
) -> None:
    """Look at a cluster, or at store directories, in a browser.

    Topics, groups, messages, brokers and the files themselves; every page is also JSON. It changes nothing unless
    --allow-changes is given. On a cluster with access control everybody logs in as a user of the cluster.
    """
    config = console_config(
        where if _is_asked(ctx) or not directories else None,
        directories,
        settings,
        allow_changes,
        names,
        bodies,
    )
    if mcp:
        if allow_changes:
            raise ConfigError("--mcp is read-only; do not give --allow-changes")
        from mqlake.console.mcp_server import serve_stdio

        run(serve_stdio(config))
        return
    run(_serve(config, host, port, as_json, until_eof))


def _is_asked(ctx: click.Context) -> bool:
    """True if a cluster is named with -n. The environment alone does not count beside --store."""
    return ctx.get_parameter_source("namesrv") is click.core.ParameterSource.COMMANDLINE


def console_config(
    where: ClientConfig | None,
    directories: tuple[str, ...],
    settings: dict[str, str],
    allow_changes: bool,
    names: tuple[str, ...],
    bodies: tuple[str, ...],
) -> ConsoleConfig:
    """MissingPartError without the extra."""
    require_console()
    from mqlake.console.app import ConsoleConfig
    from mqlake.console.bodies import Bodies
    from mqlake.console.store_files import named
    from mqlake.store.files.store_directory import check_is_store

    for directory in directories:
        check_is_store(directory, must_exist=True)
    stores = named(list(directories), settings)
    return ConsoleConfig(where, stores, allow_changes, names, Bodies.given(bodies))


def require_console() -> None:
    """MissingPartError."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPartError(f"the Python package {error.name}", INSTALL, why="for the console") from None


async def start_console(config: ConsoleConfig, host: str, port: int) -> ConsoleServer:
    """ConfigError if it cannot listen."""
    from mqlake.console.server import ConsoleServer

    server = ConsoleServer(config)
    await server.start(host, port)
    return server


async def _serve(config: ConsoleConfig, host: str, port: int, as_json: bool, until_eof: bool) -> None:
    stop = stop_event(until_eof=True) if until_eof else stop_on_signals()
    with port_to_choose("--port"):
        server = await start_console(config, host, port)
    if is_every_address(host) and not until_eof:  # else `mqlake serve` warns
        note("listening on every address of this machine: put TLS in front of it, and keep strangers out")
    url = f"http://{server.address}/"
    if as_json:
        print_json_line({"url": url})
    else:
        click.echo(f"console      {url}")
    try:
        await stop.wait()
    finally:
        await server.stop()
