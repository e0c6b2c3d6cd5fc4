"""Commands that talk to a cluster: their options, their errors, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.config import ClientConfig
from mqlake.errors import MqlakeError, NoNameServerError
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.remoting.tls import client_context

NAMESRV_VARIABLE = "NAMESRV_ADDR"

Command = TypeVar("Command", bound=Callable[..., Any])


def cluster_options(command: Command) -> Command:
    """--namesrv, TLS and keys; the command gets `where`, a ClientConfig."""

    @functools.wraps(command)
    def with_where(
        *args: Any, namesrv: str, tls: bool, tls_ca: str, access_key: str, secret_key: str, **options: Any
    ) -> Any:
        where = client_config(namesrv, tls, tls_ca, access_key, secret_key)
        return command(*args, where=where, **options)

    decorated: Any = with_where
    options = [
        click.option(
            "-n",
            "--namesrv",
            envvar=NAMESRV_VARIABLE,
            default=DEFAULT_ADDRESS,
            show_default=True,
            metavar="HOST:PORT",
            help=f"Name servers, separated by `;`; defaults to ${NAMESRV_VARIABLE} if it is set.",
        ),
        click.option("--tls", is_flag=True, help="Use TLS without verifying certificates."),
        click.option(
            "--tls-ca",
            type=click.Path(),
            default="",
            metavar="FILE",
            help="Use TLS, and verify certificates against the CAs in this PEM file.",
        ),
        click.option(
            "--access-key",
            default="",
            envvar="MQLAKE_ACCESS_KEY",
            help="Access key to sign requests with; defaults to $MQLAKE_ACCESS_KEY.",
        ),
        click.option(
            "--secret-key",
            default="",
            envvar="MQLAKE_SECRET_KEY",
            help="Secret key for --access-key. Prefer $MQLAKE_SECRET_KEY: other users can see a command line.",
        ),
    ]
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def client_config(
    namesrv: str,
    tls: bool,
    tls_ca: str,
    access_key: str,
    secret_key: str,
    timeout_s: float | None = None,
) -> ClientConfig:
    """Raises ConfigError if the file `tls_ca` cannot be used."""
    context = client_context(trust_cert_path=tls_ca, verify=bool(tls_ca)) if tls or tls_ca else None
    return ClientConfig(
        namesrv_addr=namesrv,
        tls=context,
        access_key=access_key,
        secret_key=secret_key,
        timeout_s=DEFAULT_TIMEOUTS.of(timeout_s),
    )


@contextlib.contextmanager
def reachable() -> Iterator[None]:
    """Says what to do when no name server answers."""
    try:
        yield
    except NoNameServerError as error:
        raise MqlakeError(
            f"{error}; start one with `mqlake serve`, or set yours with -n or {NAMESRV_VARIABLE}"
        ) from error


def stop_on_signals() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM. A second Ctrl-C ends the program at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped(number: int) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped, number)
    return stop
