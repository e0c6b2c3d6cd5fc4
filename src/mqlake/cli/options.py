"""Arguments and options that several commands share, so that they have one name, help text and error each.

Every group of `mqlake` takes them from here. What a user typed is checked here, before anything is opened: ConfigError,
or click's UsageError with exit status 2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from mqlake.base.clock import parse_time_ms
from mqlake.base.settings import parse_assignments, parse_size
from mqlake.errors import ConfigError, NotThereError
from mqlake.store.config import MessageStoreConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SMALL_STORE = (
    "--set mappedFileSizeCommitLog=16m --set maxHashSlotNum=100000 --set maxIndexNum=400000 takes 41 MiB"
)
"""How to make a store for a small disk."""


def directory_argument(command: Command) -> Command:
    return click.argument("directory", metavar="DIR", type=click.Path())(command)


LONG_MAX = 2**63 - 1


class ExistingPath(click.Path):
    """A file or a directory that has to be there. What is not raises NotThereError: the command line is in order."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.path.exists(value):
            raise NotThereError(f"{os.fspath(value)}: there is no such {self.name}")
        return super().convert(value, param, ctx)


class ExistingFile(click.File):
    """As ExistingPath, opened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value != "-" and not os.path.exists(value):
            raise NotThereError(f"{value}: there is no such file")
        return super().convert(value, param, ctx)


class Whole(click.IntRange):
    """A whole number from `min` to `max`, or to the largest that 64 bits hold, as RocketMQ's long."""

    name = "integer"  # in help, and in "'x' is not a valid integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found > LONG_MAX:
            self.fail(f"{found} is too large (at most {LONG_MAX}).", param, ctx)
        return found


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


@contextlib.contextmanager
def port_to_choose(option: str) -> Iterator[None]:
    """Adds to the error of a server that cannot listen what to do: another port, which `option` takes, or address."""
    try:
        yield
    except ConfigError as error:
        if not str(error).startswith("cannot listen on"):
            raise
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError(f"{error}; --host takes an address of this machine") from error
        raise ConfigError(f"{error}; use {option} to choose another port; 0 picks a free one") from error


def accept_loss_option(command: Command) -> Command:
    """For commands that open or repair a store."""
    text = "Go on although flushed messages are gone from the end of the log; queue offsets continue above theirs."
    return click.option("--accept-loss", is_flag=True, help=text)(command)


def yes_option(command: Command) -> Command:
    """For commands that `confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(what: str, *, yes: bool, as_json: bool) -> None:
    """Asks on the terminal before something that cannot be undone; `what` is the question without its question mark.

    Raises ConfigError if there is no terminal to ask on or the output is JSON, click.Abort if the answer is no.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        why = "--json asks nothing" if as_json else "there is no terminal to ask on"
        raise ConfigError(f"{what}? Nothing was done, since {why}: add --yes to confirm")
    click.confirm(f"{what}?", abort=True, err=True)


def assignments(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """The callback of a repeatable option KEY=VALUE, of which the command gets a mapping."""
    return parse_assignments(value)


def _parse_settings(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    settings = parse_assignments(value)
    MessageStoreConfig.from_mapping(settings)  # raises ConfigError for an unknown key or an invalid value
    return settings


def size_option(name: str, default: str, help: str, least: int = 1) -> Callable[[Command], Command]:
    """The command gets bytes."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
        return parse_size(name, value, least)

    return click.option(
        name, default=default, show_default=default != "0", metavar="SIZE", callback=parse, help=help
    )


def set_option(command: Command) -> Command:
    return click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parse_settings,
        help="Store setting, e.g. mappedFileSizeCommitLog=64m; repeatable. "
        "The file sizes of an existing store are taken from its files.",
    )(command)


def time_ms(text: str) -> int:
    """Milliseconds since 1970, see parse_time_ms()."""
    try:
        return parse_time_ms(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
