"""What Spark says of mqlake's errors: the reason, without the way it came.

    before   [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call …
    after    [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: mqlake.errors.NotAStoreError: …

Spark quotes the traceback of a Python source unless SPARK_HIDE_TRACEBACK is in the environment of its worker when the
error arrives there. The worker ends with the error, so nobody else's traceback is left out. Errors that nobody
foresaw keep theirs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mqlake.errors import MqlakeError

Class = TypeVar("Class", bound=type)

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextlib.contextmanager
def only_reasons() -> Iterator[None]:
    """Around what a worker of Spark calls; elsewhere, and with MQLAKE_DEBUG=1, it changes nothing."""
    try:
        yield
    except (MqlakeError, OSError):
        is_worker = "pyspark.worker_util" in sys.modules
        if is_worker and os.environ.get("MQLAKE_DEBUG", "0") in ("", "0"):
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def tells_reasons(source: Class) -> Class:
    """A class decorator: `only_reasons` around what Spark calls of a source, a reader or a writer."""
    for name, method in list(vars(source).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(source, name, told(method))
    return source


def told(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one function, such as mapInArrow's."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Iterator[Any]:
            with only_reasons():
                yield from method(*arguments, **named)

    else:

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            with only_reasons():
                return method(*arguments, **named)

    return called
