"""`mqlake`: one command with a group of subcommands for each room.

Exit status: 0 all is well, 1 something is wrong with the store or the data (named by file and offset), 2 the
command line or the configuration cannot be used as it is. Whatever goes wrong on purpose (MqlakeError) or in
the system (OSError) is one line on stderr; MQLAKE_DEBUG=1 shows where it came from.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from mqlake import __version__
from mqlake.cli.lazy_group import LazyGroup
from mqlake.errors import MqlakeError

COMMANDS = {
    "serve": ("mqlake.cli.serve:serve", "Run a name server and a broker, with nothing to configure."),
    "produce": ("mqlake.cli.produce:produce", "Send messages to a topic: lines, JSON lines or files."),
    "consume": ("mqlake.cli.consume:consume", "Print a topic's messages: as text, formatted or as JSON."),
    "admin": ("mqlake.cli.admin:admin", "Look after clusters: topics, groups, messages, brokers."),
    "broker": ("mqlake.cli.broker:broker", "Run a broker with a broker.conf."),
    "namesrv": ("mqlake.cli.namesrv:namesrv", "Run a name server."),
    "store": ("mqlake.cli.store:store", "Look into, check, fill and mend a store directory."),
    "spark": ("mqlake.cli.spark:spark", "Jobs over whole logs: verify, export, search, stats, ingest, …"),
    "metaq": (
        "mqlake.cli.metaq:metaq",
        "MetaQ: the broker, clients and data directories of RocketMQ's ancestor.",
    ),
    "demo": (
        "mqlake_flights.demo:demo",
        "The main job: a year of flights, a crash, recovery, Spark over the log.",
    ),
}
EXIT_ERROR = 1
EXIT_BROKEN_PIPE = 128 + 13  # what a filter that ends by SIGPIPE shows
SHELLS = {
    "bash": 'eval "$(mqlake completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(mqlake completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "mqlake completion fish > ~/.config/fish/completions/mqlake.fish",
}


class MainGroup(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # whoever read our output has enough of it; nothing more may be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_BROKEN_PIPE)
        except (MqlakeError, OSError) as error:
            if debugging():
                raise
            click.echo(f"error: {one_line(error)}", err=True)
            ctx.exit(error.exit_code if isinstance(error, MqlakeError) else EXIT_ERROR)


def debugging() -> bool:
    return os.environ.get("MQLAKE_DEBUG", "0") not in ("", "0")


def one_line(error: MqlakeError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        text = ": ".join([*names, error.strerror])
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


@click.group(
    cls=MainGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mqlake", message="%(prog)s %(version)s")
def cli() -> None:
    """A message store and broker that are Apache RocketMQ on disk and on the wire, and whose log is read in place.

    Every command takes --help, and --json for output that programs read. MQLAKE_DEBUG=1 shows tracebacks and
    what the store logs. Begin with `mqlake serve`, or with `mqlake store info DIR`.
    """
    level = logging.DEBUG if debugging() else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)


@cli.command()
@click.argument("shell", type=click.Choice(sorted(SHELLS)))
def completion(shell: str) -> None:
    """Print the script that completes mqlake's commands in a shell.

    \b
    bash  in ~/.bashrc:              eval "$(mqlake completion bash)"
    zsh   in ~/.zshrc, after compinit:  eval "$(mqlake completion zsh)"
    fish  once:   mqlake completion fish > ~/.config/fish/completions/mqlake.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(f"# install it with: {SHELLS[shell]}")
    click.echo(kind(cli, {}, "mqlake", "_MQLAKE_COMPLETE").source())


def main() -> None:
    cli(prog_name="mqlake")
