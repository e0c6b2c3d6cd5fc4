# mypy: disable-error-code="misc"
"""mqlake's errors as Spark shows them: the reason, without a traceback.

    before   [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call …
    after    [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: mqlake.errors.NotAStoreError: …

Spark quotes the traceback of a Python source unless SPARK_HIDE_TRACEBACK is in the environment of its worker when the
error arrives there. The worker ends with the error, so other tracebacks stay. Unexpected errors keep
theirs.

For an error while a stream reader is created, Spark (4.2) shows only "cannot access local variable 'reader'". So a
reader that raises the error at its first call is returned instead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamReader

from mqlake.errors import MqlakeError

logger = logging.getLogger(__name__)

Class = TypeVar("Class", bound=type)
T = TypeVar("T")

WORKER_TRIES = 3

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
JAVA_EXITED = "[JAVA_GATEWAY_EXITED]"
_OWN = re.compile(r"mqlake\.errors\.\w+: (.+)")
WORKER_LATE = "Python worker failed to connect back"
_OF_WORKERS = {
    WORKER_LATE: (
        "a Python worker did not start within the 10 s that Spark waits for one: the machine is too busy. "
        "Try again, or with fewer tasks at once (--master local[2])"
    ),
    "No module named 'mqlake'": (
        "the Python that runs Spark's workers cannot import mqlake: pip install 'mqlake[spark]' there, or set "
        "PYSPARK_PYTHON to one that has it before Spark starts"
    ),
}
_CAUSE = re.compile(r'(?:Caused by: |: |Exception in thread "main" )?([\w.$]+(?:Error|Exception): .*)')


def reason(text: str) -> str:
    """The line of mqlake's own error, if there is one in what Spark says; else that of the last cause, or the first.

    Of what Spark says of its workers, what to do about it.
    """
    if own := _OWN.findall(text):
        return str(own[-1]).strip()
    for said, meant in _OF_WORKERS.items():
        if said in text:
            return meant
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith(("at ", "WARNING: "))
    ]
    if len(lines) > 1 and lines[0].startswith(JAVA_EXITED):  # what it has said before it ended follows
        del lines[0]
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    return (causes or lines or ["Spark does not say why"])[-1 if causes else 0]


def when_workers_start(ask: Callable[[], T], tries: int = WORKER_TRIES) -> T:
    """The result of `ask`, which is called up to `tries` times while a Python worker does not start in time."""
    for left in range(tries - 1, -1, -1):
        try:
            return ask()
        except (PySparkException, Py4JJavaError) as error:  # the latter for the tasks of a batch
            if WORKER_LATE not in str(error) or not left:
                raise
            logger.warning("a Python worker did not start in time; asking again")
    raise AssertionError("tries is 0")


@contextlib.contextmanager
def hide_tracebacks() -> Iterator[None]:
    """For code that a worker of Spark runs; elsewhere, and with MQLAKE_DEBUG=1, it changes nothing."""
    try:
        yield
    except (MqlakeError, OSError):
        if _is_worker() and os.environ.get("MQLAKE_DEBUG", "0") in ("", "0"):
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    return "pyspark.worker_util" in sys.modules


def short_errors(source: Class) -> Class:
    """A class decorator: `hide_tracebacks` around the methods of a source, a reader or a writer that Spark calls."""
    for name, method in list(vars(source).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(
                source,
                name,
                _with_reader_errors(method) if name == "streamReader" else short_errors_of(method),
            )
    return source


def short_errors_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one function, such as mapInArrow's."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Iterator[Any]:
            with hide_tracebacks():
                yield from method(*arguments, **named)

    else:

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            with hide_tracebacks():
                return method(*arguments, **named)

    return called


def _with_reader_errors(
    make_reader: Callable[..., DataSourceStreamReader],
) -> Callable[..., DataSourceStreamReader]:
    @functools.wraps(make_reader)
    def called(*arguments: Any, **named: Any) -> DataSourceStreamReader:
        try:
            return make_reader(*arguments, **named)
        except MqlakeError as error:
            if not _is_worker():
                raise
            return _NoReader(error)

    return called


@short_errors
class _NoReader(DataSourceStreamReader):
    """Raises the error in every call with which Spark starts or continues a stream."""

    def __init__(self, error: MqlakeError) -> None:
        self._error = error

    def initialOffset(self) -> Any:  # noqa: N802 - Spark's names, here and below
        raise self._error

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
        raise self._error

    def partitions(self, start: Any, end: Any) -> Any:
        raise self._error

    def read(self, partition: Any) -> Any:
        raise self._error
