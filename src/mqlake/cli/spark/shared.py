"""Commands of `mqlake spark`: their options, the Spark session, and readable errors."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

import mqlake.errors
import mqlake.spark
from mqlake.cli.options import assignments, time_ms
from mqlake.errors import ConfigError, SparkJobError
from mqlake.lake.requirements import require_modules
from mqlake.spark.requirements import INSTALL_CONNECT, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

CONNECT_SCHEME, STANDALONE_SCHEME = "sc://", "spark://"
PORTS = {CONNECT_SCHEME: 15002, STANDALONE_SCHEME: 7077}
CONNECT_TIMEOUT_S = 10.0
NO_VALUE = "[INVALID_CONF_VALUE"
"""In Spark's error for a setting (--conf) with an invalid value."""
MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[[\d, ]+\]|yarn|(spark|k8s|sc)://.+")


@dataclass(frozen=True)
class Where:
    """The place where a job runs; `config` holds settings of Spark."""

    master: str
    config: Mapping[str, str]


def _time(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else time_ms(value)


def spark_options(command: Command) -> Command:
    """--master and --conf; the command gets `where`."""

    def with_where(*arguments: Any, master: str, config: dict[str, str], **named: Any) -> Any:
        return command(*arguments, where=Where(master, config), **named)

    with_where.__doc__, with_where.__name__ = command.__doc__, command.__name__
    with_where.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = with_where
    for option in (
        click.option(
            "--conf",
            "config",
            metavar="KEY=VALUE",
            multiple=True,
            callback=assignments,
            help="Spark setting; repeatable.",
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Spark master: local[N], spark://…, yarn, k8s://…, or sc://… (Spark Connect).",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def wanted_options(command: Command) -> Command:
    """Conditions of a search; the command gets the fields of mqlake.spark.jobs.search.Wanted."""
    for option in (
        click.option(
            "--sql", metavar="CONDITION", help='Spark SQL condition, such as "queueId = 1 and size > 1000".'
        ),
        click.option("--text", metavar="TEXT", help="Text in the body."),
        click.option(
            "--until",
            metavar="TIME",
            callback=_time,
            help="Stored before this time: ISO 8601, or ms since 1970.",
        ),
        click.option("--since", metavar="TIME", callback=_time, help="Stored at or after this time."),
        click.option(
            "--tag", "tags", metavar="TAG", multiple=True, help="Tag; repeatable, any of them matches."
        ),
        click.option(
            "--key",
            "keys",
            metavar="KEY",
            multiple=True,
            help="Key (KEYS or UNIQ_KEY); repeatable, any of them matches.",
        ),
        click.option(
            "--topic",
            "topics",
            metavar="TOPIC",
            multiple=True,
            help="Topic; repeatable, any of them matches.",
        ),
    ):
        command = option(command)
    return command


def check_stores(*directories: str) -> None:
    """Raises the errors of mqlake.spark.read_log() for a path that is not a store, before Spark is started."""
    require_pyspark()
    from mqlake.lake.log.storage import Storage

    for directory in directories:
        Storage.at(directory).check()


@contextlib.contextmanager
def job(where: Where, what: str) -> Iterator[SparkSession]:
    """A session while the `with` lasts, with progress on a terminal.

    Raises MissingPartError, and SparkJobError for an error of Spark, with mqlake's own error if there is one in it.
    """
    if where.master.startswith(CONNECT_SCHEME):
        require_modules("pyspark", "pyarrow", "grpc", "grpc_status", command=INSTALL_CONNECT)
    require_pyspark()
    running = _active()
    if running is not None:
        with translated(), _progress(running, where, what):
            yield running
        return
    with ended_by_signals():
        with translated():
            spark = _session(where)
        # PySpark's own handler calls the JVM while another call waits for its answer, which ends in tracebacks
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with translated(), _progress(spark, where, what):
                yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, which leaves no files over. Py4J handles KeyboardInterrupt; any other
    exception would leave its connection waiting for an answer."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(_is_no_interrupt)
        for each, handler in before.items():
            signal.signal(each, handler)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Filters out what Py4J logs on Ctrl-C, which is not an error."""
    return record.msg != "KeyboardInterrupt while sending command."


def retry_once(ask: Callable[[], T]) -> T:
    """Makes the first call after an interrupted one, twice if needed: the JVM sometimes drops the new connection of
    Py4J together with the old one."""
    from py4j.protocol import Py4JNetworkError

    try:
        return ask()
    except Py4JNetworkError:
        return ask()


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _session(where: Where) -> SparkSession:
    _check_master(where.master)
    if not where.master.startswith(CONNECT_SCHEME):
        return mqlake.spark.session(
            "mqlake", master=where.master, config=where.config, short=where.master.startswith("local")
        )
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(where.master)
    for key, value in where.config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    mqlake.spark.register(spark)
    return spark


def _check_master(master: str) -> None:
    """Raises ConfigError for an invalid master, SparkJobError if none listens there: Spark would try for minutes."""
    if not MASTER.fullmatch(master):
        raise ConfigError(f"--master {master!r}: use local[N], spark://HOST:PORT, yarn, k8s://… or sc://…")
    for scheme, port in PORTS.items():
        if master.startswith(scheme):
            _check_reachable(master, port)


def _check_reachable(master: str, default_port: int) -> None:
    """One of several masters, separated by commas, is enough."""
    scheme, _, places = master.partition("://")
    failed: OSError | None = None
    for each in places.split(","):
        try:
            place = urlsplit(f"{scheme}://{each}")
            address = (place.hostname or "", place.port or default_port)
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()
        except ValueError as error:
            raise ConfigError(f"--master {master}: {error}") from error
        except OSError as error:
            failed = error
        else:
            return
    who = "Spark Connect server" if master.startswith(CONNECT_SCHEME) else "Spark master"
    raise SparkJobError(f"--master {master}: no {who} answers there: {failed}")


def _progress(spark: SparkSession, where: Where, what: str) -> contextlib.AbstractContextManager[None]:
    if where.master.startswith(CONNECT_SCHEME) or not sys.stderr.isatty():
        return contextlib.nullcontext()
    from mqlake.spark.session_helper import job_progress

    return job_progress(spark, what)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns Spark's exceptions into SparkJobError; those of mqlake and the system pass through."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise spark_error("\n".join([str(error), *getattr(error, "__notes__", ())])) from error


def spark_error(text: str) -> SparkJobError:
    """The error of a task or a source in Spark's message, if there is one; else the first line of the message."""
    from mqlake.spark.error_messages import reason

    own = re.findall(r"mqlake\.errors\.(\w+): ", text)
    if own:
        kind = getattr(mqlake.errors, own[-1], SparkJobError)
        return SparkJobError(reason(text), exit_code=getattr(kind, "exit_code", 1))
    return SparkJobError(reason(text), exit_code=ConfigError.exit_code if NO_VALUE in text else 1)
