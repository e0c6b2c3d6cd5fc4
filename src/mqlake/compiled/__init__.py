"""Compiled code: when a process loads it, and what happens where it cannot be loaded.

    work ── Worth.count ──▶ enough? ── load("….kernels") ──▶ the module: compiled, or from the cache (`compiled.cache`)
                                          └──▶ None: switched off, or numba is missing or broken; plain Python goes on

A module of kernels is imported through `load` only, so that every user of compiled code falls back in the same way.
Importing this package imports neither numba nor numpy.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import mqlake
from mqlake.compiled.directories import has_any

logger = logging.getLogger(__name__)

UNKEPT = 50
"""Where machine code cannot be kept, that much more work is needed: it has to be compiled, which takes seconds."""

_lock = threading.Lock()


class Worth:
    """Counts work until there was enough of it for compiled code to be worth loading: a second, and 80 MB.

    `enough` is in the caller's own units; UNKEPT times as much where machine code cannot be kept. With `within_s`, only
    work done within that many seconds counts, which goes on for long, so compiling pays anyway.
    """

    def __init__(self, enough: int, within_s: float = math.inf) -> None:
        self._unkept = within_s == math.inf
        self.left = enough
        """Work that plain Python may still do; 0 once loading is worth it."""
        self._enough = enough
        self._within_s = within_s
        self._since = 0.0

    def count(self, amount: int) -> bool:
        """Adds `amount`; whether the kernels are worth loading, which they then stay."""
        if self.left <= 0:
            return True
        if self._within_s != math.inf:
            now = time.monotonic()
            if self.left == self._enough or now - self._since > self._within_s:
                self.left, self._since = self._enough, now
        self.left = max(0, self.left - amount)
        if not self.left and self._unkept:
            self._unkept = False
            if not has_any(__file__):
                self.left = max(0, UNKEPT * self._enough - amount)
        return not self.left


@functools.cache
def _load(name: str) -> ModuleType | None:
    if not _works():
        return None
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("mqlake"):
            raise  # the caller's name is wrong
        _warn(error)
        return None


def load(name: str) -> ModuleType | None:
    """The module of kernels of this name; None where plain Python has to do its work.

    That is so with MQLAKE_NO_JIT=1 or NUMBA_DISABLE_JIT=1, and where numba is missing or does not work, of which one
    warning is logged.
    """
    with _lock:
        return _load(name)


COLLECT_AFTER = 50_000
"""New objects while compiled code is loaded, when Python by itself looks through them after each 700: a tenth of the
time. Few of them are garbage."""
_collector = threading.Lock()
_loadings = 0
_usual = gc.get_threshold()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While it lasts, the garbage collector seldom runs. In a process that has it leave out what lives to the end, as a
    broker's does, it leaves out from then on what has been loaded, too: a hundred thousand objects, which it would look
    through while everything else waits. Other processes may have garbage of their own that would stay."""
    global _loadings, _usual
    with _collector:
        if not _loadings:
            _usual = gc.get_threshold()
            gc.set_threshold(COLLECT_AFTER, *_usual[1:])
        _loadings += 1
    try:
        yield
    finally:
        with _collector:
            _loadings -= 1
            if not _loadings:
                gc.set_threshold(*_usual)
                if gc.get_freeze_count():
                    gc.freeze()


@functools.cache
def _works() -> bool:
    """True if numba is there, may compile, and compiles."""
    if mqlake.NO_JIT:
        return False
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return False
        from mqlake.compiled import cache

        cache.prove()
    except (
        Exception
    ) as error:  # of the import alone: ImportError, OSError of a library, SystemError of another numpy
        _warn(error)
        return False
    return True


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _warn(error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    _warn_once(
        f"numba does not work here ({reason[:200]}), so plain Python does what compiled code would do many times "
        "faster. Install numba as mqlake requires it, or set MQLAKE_NO_JIT=1 to say that this is intended."
    )
