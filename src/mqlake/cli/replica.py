"""`mqlake replica`: a read replica of a running broker, for analytics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mqlake.base.progress import Progress
from mqlake.base.settings import parse_assignments
from mqlake.cli.clients import NAMESRV_VARIABLE
from mqlake.cli.logs import log_options
from mqlake.cli.options import json_option, size_option
from mqlake.cli.output import note, print_fields, print_json, print_json_line, progress, size_text, time_text
from mqlake.cli.serve import settle
from mqlake.cli.stopping import stop_event
from mqlake.errors import RemotingError
from mqlake.remoting.loop import run

if TYPE_CHECKING:
    from mqlake.read_replica import ReplicaStatus

EXIT_TROUBLE = 1


@click.group(invoke_without_command=True, subcommand_metavar="[COMMAND]")
@click.option("--of", metavar="HOST:PORT", help="The master: its address, or with -n its broker name.")
@click.option("--store", "directory", metavar="DIR", type=click.Path(), help="Directory of the replica.")
@click.option(
    "-n",
    "--namesrv",
    envvar=NAMESRV_VARIABLE,
    help=f"Name servers to find the master by its name; defaults to ${NAMESRV_VARIABLE}.",
)
@click.option("--from-start", is_flag=True, help="An empty replica gets the whole log.  [default]")
@click.option("--from-now", is_flag=True, help="An empty replica begins with the master's newest file.")
@size_option("--bandwidth", "0", "Bytes a second at most, as 20m; 0: no limit.", least=0)
@click.option("--once", is_flag=True, help="End when the replica has caught up.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Setting of broker.conf; repeatable."
)
@json_option
@log_options
@click.pass_context
def replica(
    ctx: click.Context,
    of: str | None,
    directory: str | None,
    namesrv: str | None,
    from_start: bool,
    from_now: bool,
    bandwidth: int,
    once: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep a read replica of a running broker, RocketMQ's or mqlake's.

    It follows the log byte by byte, with consume queues and index, and Spark reads DIR in place: the broker carries no
    query. It registers nowhere, so no client is sent to it, and never writes to the master. Start it again after any
    stop or crash: it goes on where it was. Ctrl-C ends it.
    """
    if ctx.invoked_subcommand is not None:
        return
    if of is None or directory is None:
        raise click.UsageError("--of HOST:PORT and --store DIR are needed.")
    if from_start and from_now:
        raise click.UsageError("Use either --from-start or --from-now.")
    given = parse_assignments(settings)
    run(_follow(of, directory, namesrv or "", from_now, bandwidth, once, given, as_json))


async def _follow(
    of: str,
    directory: str,
    namesrv: str,
    from_now: bool,
    bandwidth: int,
    once: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    from mqlake.auth.signed_client import remoting_client
    from mqlake.broker.config import read_settings, require_known
    from mqlake.read_replica import ReadReplica, find_master, remembered_master

    require_known(settings)
    stop = stop_event()
    credentials = read_settings(settings).config.auth.inner_credentials
    async with remoting_client(credentials) as client:
        try:
            master = await find_master(client, of, namesrv)
        except RemotingError as error:
            known = remembered_master(directory, of)
            if known is None or once:
                raise
            note(f"{error}; going on with what is here, and trying again")
            master = known
    made = ReadReplica(master, directory, settings, from_now=from_now, bandwidth=bandwidth)
    await made.start()
    settle()
    try:
        if as_json:
            print_json_line(made.status.to_json())
        else:
            click.echo(f"replica      {directory} of {made.status.master} at {master.address}")
        with progress("catching up") as report:
            await made.run(stop, _Display(report, as_json).show, until_in_step=once)
    finally:
        await made.stop()


class _Display:
    """Shows a replica's status: progress until it has caught up, and each new line of text once."""

    def __init__(self, report: Progress, as_json: bool) -> None:
        self._report = report
        self._as_json = as_json
        self._text = ""
        self._was_in_step = False

    def show(self, status: ReplicaStatus) -> None:
        if status.text and status.text != self._text:
            note(status.text)
        self._text = status.text
        if self._was_in_step:
            return
        if not status.is_in_step:
            begin = status.min_offset
            self._report(status.max_offset - begin, max(status.master_max_offset - begin, 0))
            return
        self._was_in_step = True
        if self._as_json:
            print_json_line(status.to_json())
        else:
            click.echo(f"in step      at offset {status.max_offset:,}")


@replica.command()
@click.option(
    "--store", "directory", metavar="DIR", type=click.Path(), required=True, help="Directory of the replica."
)
@json_option
@click.pass_context
def status(ctx: click.Context, directory: str, as_json: bool) -> None:
    """Show how far a replica is.

    Exit status 1 means that it does not follow its master: the text says why.
    """
    from mqlake.read_replica import read_status

    found = read_status(directory)
    if as_json:
        print_json(found)
    else:
        print_fields(_fields(found))
    if found.get("trouble") or not found["running"]:
        ctx.exit(EXIT_TROUBLE)


def _fields(found: dict[str, Any]) -> list[tuple[str, object]]:
    lag, dispatched = int(found["lagBytes"]), int(found["dispatchedOffset"])
    state = str(found["state"]) if found["running"] else "not running"
    fields: list[tuple[str, object]] = [
        ("master", f"{found['master']} at {found['of']}"),
        ("state", "in step" if found["running"] and found["inStep"] else state),
    ]
    if found["text"]:
        fields.append((str(found["trouble"]) or "note", found["text"]))
    return [
        *fields,
        ("lag", "unknown" if lag < 0 else size_text(lag)),
        ("log", f"offsets {found['minOffset']:,} to {found['maxOffset']:,}"),
        ("queues and index", f"up to {dispatched:,} (lag {size_text(found['maxOffset'] - dispatched)})"),
        ("received", f"{size_text(found['bytesPerSecond'])}/s"),
        ("looked at", time_text(int(found["updatedAt"]))),
    ]
