"""Logs of servers on stderr: `--log-level` and `--log-format`.

text   2026-05-01T12:00:00.123Z WARNING mqlake.broker.state.topic_config: topic T does not exist: nothing to delete
json   {"time":"2026-05-01T12:00:00.123Z","level":"WARNING","logger":"mqlake.broker.state.topic_config","message":"…"}

In systemd's journal, which has the time of each line, text is without it.
One line per record, whatever the message holds. A record's `extra` fields become fields of the JSON object. Processes
that a server starts log the same way: they find the settings in their environment.
"""

from __future__ import annotations

import datetime
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import IO, Any, TextIO, TypeVar

import click

from mqlake.cli.terminal import visible

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
LEVEL_VARIABLE = "MQLAKE_LOG_LEVEL"
FORMAT_VARIABLE = "MQLAKE_LOG_FORMAT"

Command = TypeVar("Command", bound=Callable[..., Any])

_OWN_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def log_options(command: Command) -> Command:
    """Adds the options to a command, and sets up logging before it runs."""

    @click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        envvar=LEVEL_VARIABLE,
        help=f"Lowest level to log; defaults to ${LEVEL_VARIABLE} if it is set.  [warning]",
    )
    @click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        envvar=FORMAT_VARIABLE,
        help=f"Log as text or as JSON; defaults to ${FORMAT_VARIABLE} if it is set.  [text]",
    )
    @functools.wraps(command)
    def logging_command(*args: Any, log_level: str | None, log_format: str | None, **options: Any) -> Any:
        if log_level or log_format:
            set_up(log_level or "warning", log_format or "text")
        return command(*args, **options)

    return logging_command  # type: ignore[return-value]


def set_up(level: str, log_format: str) -> None:
    """Logs to stderr, replacing any earlier set-up."""
    os.environ[LEVEL_VARIABLE], os.environ[FORMAT_VARIABLE] = level, log_format
    handler = LogHandler()
    text = TextFormatter(with_time=not _is_journal(sys.stderr))
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class LogHandler(logging.StreamHandler[TextIO]):
    """To stderr; what would steer a terminal is made visible there."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return visible(text) if self.stream.isatty() else text


def _is_journal(stream: IO[str]) -> bool:
    """Returns True if `stream` is the one that systemd gave the service: JOURNAL_STREAM is its device and inode
    (systemd.exec(5)), and is there as well for processes that write elsewhere."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file, or a closed one
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    def __init__(self, *, with_time: bool = True) -> None:
        super().__init__()
        self._with_time = with_time

    def format(self, record: logging.LogRecord) -> str:
        message = " ".join(record.getMessage().splitlines())
        time = f"{_time_of(record)} " if self._with_time else ""
        text = f"{time}{record.levelname} {record.name}: {message}"
        # a traceback is for people: it keeps its own lines
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import orjson

        fields: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in record.__dict__.items() if key not in _OWN_FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
