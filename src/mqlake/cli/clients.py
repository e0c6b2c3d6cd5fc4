"""Commands that talk to a cluster: their options, their errors, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mqlake.cli.contexts import NAME_VARIABLE, Context, Contexts, read_contexts
from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.config import ClientConfig
from mqlake.errors import (
    ConfigError,
    HandshakeError,
    MissingPartError,
    MqlakeError,
    NoNameServerError,
    NotFoundError,
)
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.remoting.tls import client_context

NAMESRV_VARIABLE = "NAMESRV_ADDR"

Command = TypeVar("Command", bound=Callable[..., Any])


_OPTIONS = [
    click.option(
        "--context",
        "context_name",
        default="",
        envvar=NAME_VARIABLE,
        metavar="NAME",
        help=f"Cluster of `mqlake context`; defaults to ${NAME_VARIABLE}, then to the current one.",
    ),
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
        "--tls-cert",
        type=click.Path(),
        default="",
        metavar="FILE",
        help="Use TLS, and show the certificate in this PEM file, which also has its key.",
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
    click.option(
        "--credentials",
        type=click.Path(),
        default="",
        envvar="MQLAKE_CREDENTIALS",
        metavar="FILE",
        help="File with accessKey=… and secretKey=…, or mqadmin's tools.yml; defaults to $MQLAKE_CREDENTIALS.",
    ),
]


def cluster_options(command: Command) -> Command:
    """--namesrv, TLS and keys; the command gets `where`, a ClientConfig."""

    @functools.wraps(command)
    def with_where(
        *args: Any,
        namesrv: str,
        tls: bool,
        tls_ca: str,
        tls_cert: str,
        access_key: str,
        secret_key: str,
        credentials: str,
        context_name: str,
        **options: Any,
    ) -> Any:
        if credentials and not access_key:
            access_key, secret_key = read_credentials(credentials)
        given = Context(
            namesrv=namesrv,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            access_key=access_key,
            secret_key=secret_key,
        )
        ctx = click.get_current_context()
        where = with_context(given, context_name, ctx)
        with _hints(context_of_cluster(context_name, ctx)):
            return command(*args, where=where, **options)

    decorated: Any = with_where
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def count_of_common(args: Sequence[str]) -> int:
    """How many of the first words are options of every command that talks to a cluster, and their values."""
    flags, valued = {"--json"}, {"--timeout"}
    for decorate in _OPTIONS:
        for option in getattr(decorate(lambda: None), "__click_params__"):  # noqa: B009 - mypy knows no such field
            (flags if option.is_flag else valued).update(option.opts)
    count = 0
    while count < len(args):
        name, equals, _ = args[count].partition("=")
        if name in flags:
            count += 1
        elif name in valued:
            count += 1 if equals and name.startswith("--") else 2
        elif name.startswith("-n"):
            count += 1
        else:
            break
    return min(count, len(args))


def with_context(given: Context, name: str, ctx: click.Context) -> ClientConfig:
    """The options, completed from a context: the one named, or, without -n and $NAMESRV_ADDR, the current one. The two
    keys are taken from the same place, and so are all TLS options. Raises ConfigError, OSError."""

    def is_said(*parameters: str) -> bool:
        return any(_is_said(each, name, ctx) for each in parameters)

    chosen = _chosen(name, ctx)[1]
    if chosen.namesrv and not is_said("namesrv"):
        given = dataclasses.replace(given, namesrv=chosen.namesrv)
    if chosen.access_key and not is_said("access_key", "credentials"):
        given = dataclasses.replace(given, access_key=chosen.access_key, secret_key=chosen.secret_key)
    if not is_said("tls", "tls_ca", "tls_cert"):
        given = dataclasses.replace(given, tls=chosen.tls, tls_ca=chosen.tls_ca, tls_cert=chosen.tls_cert)
    return client_config(
        given.namesrv, given.tls, given.tls_ca, given.access_key, given.secret_key, tls_cert=given.tls_cert
    )


def context_of_cluster(name: str, ctx: click.Context) -> str:
    """The name of the context that with_context() takes the name servers from; empty if they were given."""
    used, chosen = _chosen(name, ctx)
    return used if chosen.namesrv and not _is_said("namesrv", name, ctx) else ""


def _is_said(parameter: str, name: str, ctx: click.Context) -> bool:
    """True if it is given: on the command line, or in a variable unless --context overrides it."""
    counts = {ParameterSource.COMMANDLINE} | (set() if name else {ParameterSource.ENVIRONMENT})
    return ctx.get_parameter_source(parameter) in counts


def _chosen(name: str, ctx: click.Context) -> tuple[str, Context]:
    """The context in use, with its name. ConfigError, OSError."""
    if name:
        return name, read_contexts().named(name)
    found = Contexts() if _is_said("namesrv", name, ctx) else read_contexts()
    return found.current, found.named(found.current) if found.current else Context()


def client_config(
    namesrv: str,
    tls: bool,
    tls_ca: str,
    access_key: str,
    secret_key: str,
    timeout_s: float | None = None,
    *,
    tls_cert: str = "",
) -> ClientConfig:
    """Raises ConfigError if the file `tls_ca` or `tls_cert` cannot be used, or one of two keys is missing."""
    if bool(access_key) != bool(secret_key):
        given, missing = ("an access key", "secret") if access_key else ("a secret key", "access")
        raise ConfigError(f"{given} without its {missing} key: give --{missing}-key too, or --credentials")
    context = None
    if tls or tls_ca or tls_cert:
        context = client_context(trust_cert_path=tls_ca, cert_path=tls_cert, verify=bool(tls_ca))
    return ClientConfig(
        namesrv_addr=namesrv,
        tls=context,
        access_key=access_key,
        secret_key=secret_key,
        timeout_s=DEFAULT_TIMEOUTS.of(timeout_s),
    )


_CREDENTIAL = re.compile(r"\s*(accessKey|secretKey)\s*[=:]\s*(.*?)\s*", re.IGNORECASE)


def read_credentials(path: str) -> tuple[str, str]:
    """Access key and secret key in a file, of RocketMQ's client (AccessKey=…) or mqadmin (accessKey: …). ConfigError,
    OSError."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if match := _CREDENTIAL.fullmatch(line.rstrip("\n")):
                found[match[1].lower()] = match[2].strip("'\"")
    if not found.get("accesskey") or not found.get("secretkey"):
        raise ConfigError(f"{path}: accessKey=… and secretKey=… are needed")
    return found["accesskey"], found["secretkey"]


@contextlib.contextmanager
def _hints(context: str) -> Iterator[None]:
    """Adds to an error the context that chose the cluster, and, where no name server is there, what to do."""
    try:
        yield
    except MqlakeError as error:
        if isinstance(error, ConfigError | MissingPartError) and not isinstance(error, NotFoundError):
            raise
        if isinstance(error, NoNameServerError) and not isinstance(error.__cause__, HandshakeError):
            correct = (
                f"`mqlake context set {context} -n HOST:PORT`" if context else f"-n or {NAMESRV_VARIABLE}"
            )
            error.add_note(f"start one with `mqlake serve`, or set yours with {correct}")
        elif context:
            error.add_note(f"the cluster is that of context {context}")
        raise


def stop_on_signals() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM. A second Ctrl-C ends the program at once: by the signal, as a KeyboardInterrupt in the
    middle of a callback would become an error of the event loop's ("get_buffer()"), or be lost."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped(number: int) -> None:
        stop.set()
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped, number)
    return stop
