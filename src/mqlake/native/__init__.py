"""Code compiled ahead of time: loops over bytes that Python is too slow for, in Cython. All but those that append to
the log (single, produce) let go of the interpreter lock.

    prim.h, prim.pxd     numbers, bytes, checksums, fences: C; prim.py is their twin in Python
    *.py                 kernels in Cython's pure mode, which also run uncompiled
    constants, layout    Python's constants as C's, made by tools/native_constants.py

tools/build_native.py compiles a module to an extension beside its source. Where that could not be done `module` has
none, and plain Python does the work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

import mqlake

logger = logging.getLogger(__name__)


def module(name: str) -> ModuleType | None:
    """The compiled module of this name; None where it has not been compiled, and with MQLAKE_NO_NATIVE=1."""
    return None if mqlake.NO_NATIVE else _module(name)


@functools.cache
def _module(name: str) -> ModuleType | None:
    full = f"{__name__}.{name}"
    spec = importlib.util.find_spec(full)
    if spec is None or not (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES)):
        _warn()
        return None
    return importlib.import_module(full)


@functools.cache
def _warn() -> None:
    logger.warning(
        "mqlake was installed without native code, so plain Python does what it would do many times faster. Install "
        "it where there is a C compiler, or set MQLAKE_NO_NATIVE=1 to say that this is intended."
    )
