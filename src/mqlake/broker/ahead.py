"""Compiled code ahead of its use: all that a broker may call for, compiled, or loaded, with nothing to do."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import mqlake
from mqlake.base.progress import Progress
from mqlake.broker.config import read_settings
from mqlake.broker.controller import BrokerController
from mqlake.compiled import load, loading
from mqlake.errors import MissingPartError, MqlakeError
from mqlake.formats.columns import compile_all
from mqlake.store.log.single_put import compile_put


class Ahead(NamedTuple):
    directory: str
    """Where machine code is written to."""
    functions: int
    """How many were compiled now."""


def compile_ahead(report: Progress, others: Iterable[Callable[[], None]] = ()) -> Ahead:
    """Those of brokers and stores, and of `others`. MissingPartError; MqlakeError where that is not wanted, or would be
    in vain."""
    if mqlake.NO_JIT:
        raise MqlakeError("MQLAKE_NO_JIT=1 says that nothing is to be compiled; unset it")
    kernels = load("mqlake.compiled.kernels.primitives")
    if kernels is None:
        raise MissingPartError("the Python package numba, in a version that works", "pip install numba")
    directory: str | None = kernels.load64._cache.cache_path
    if directory is None:
        raise MqlakeError(
            "machine code can be kept nowhere: set NUMBA_CACHE_DIR to a directory that this user can write"
        )
    with loading(), _counted(report) as count:
        for compile_some in (compile_all, compile_put, _compile_broker, *others):
            compile_some()
    return Ahead(directory, count[0])


@contextlib.contextmanager
def _counted(report: Progress) -> Iterator[list[int]]:
    """How many functions were compiled while the `with` lasts; `report` is told."""
    from numba.core import event

    count = [0]

    class Compiled(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None: ...

        def on_end(self, event: Any) -> None:
            count[0] += 1
            report(count[0], max(count[0], _functions()))

    with event.install_listener("numba:compile", Compiled()):
        yield count


def _functions() -> int:
    """How many there are to compile in what is imported."""
    kernels = [module for name, module in sys.modules.items() if name.startswith("mqlake.compiled.kernels.")]
    return len(
        {id(value) for module in kernels for value in vars(module).values() if hasattr(value, "py_func")}
    )


def _compile_broker() -> None:
    """Of a broker that is never started."""
    with tempfile.TemporaryDirectory(prefix="mqlake-compile-") as directory:
        settings = read_settings(
            {
                "storePathRootDir": os.path.join(directory, "store"),
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "fastLoopThreads": "2",
            }
        )
        BrokerController(settings.config, settings.store_config).load_compiled()
