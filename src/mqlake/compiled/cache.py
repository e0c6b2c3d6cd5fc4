# mypy: disable-error-code="misc"
"""`compiled`: functions compiled by numba at their first call, and their machine code kept between processes
(`directories`).

An entry is valid for one function, numba version and processor, and for what the machine code was made of (`stamp`):
numba alone compares only the function's own source file, though it compiles in functions and constants of others.
The cache never stops a program: an entry that cannot be read is replaced, and where nothing can be written each
process compiles for itself, with one warning. Of processes that miss the same entry at the same time, one compiles it
and the others wait for it.

numba has no public way to give a function a cache of one's own. `compiled` therefore sets the dispatcher's private
`_cache`, `_Locator` stands in the list `CacheImpl._locator_classes`, and `_Entry` takes a library apart; pyproject.toml
bounds the versions, and tests/compiled/test_cache.py fails when one of them is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import IO, Any, ClassVar

import numpy as np
from llvmlite import binding
from numba import config, njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.codegen import JITCodeLibrary

from mqlake.compiled.directories import directories, is_writable

logger = logging.getLogger(__name__)

TURN_MAX_S = 60.0
"""As long as one process waits for another to compile a function; the longest takes a third of that."""
TURN_PAUSE_S = 0.02


def compiled(function: Any) -> Any:
    """`function` as a numba function that lets go of the interpreter lock, with its machine code kept.

    Without numba's entry for callers in C, which takes a fifth of the time to compile.
    """
    return _kept(njit(nogil=True, no_cfunc_wrapper=True)(function))


def compiled_for_c(function: Any) -> Any:
    """The same with an entry for callers in C."""
    return _kept(njit(nogil=True)(function))


def _kept(dispatcher: Any) -> Any:
    dispatcher._cache = KernelCache(dispatcher.py_func)
    return dispatcher


def inlined(function: Any) -> Any:
    """`function` as a part of the compiled ones that call it. One that takes a function has to be: what calls it with
    an argument of that kind cannot be kept."""
    return njit(nogil=True, inline="always")(function)


# --- what an entry is good for -------------------------------------------------------------------------------


def stamp(function: FunctionType) -> str:
    """A digest of what the machine code of `function` was made of: its source file, and the values of the constants
    and the sources of the functions that it names, and that these name."""
    made_of: dict[str, str] = {}
    if config.BOUNDSCHECK:  # an entry found beside the source does not check
        made_of["NUMBA_BOUNDSCHECK"] = "1"
    _add_function(function, made_of)
    return hashlib.sha256(repr(sorted(made_of.items())).encode()).hexdigest()


def _add_function(function: FunctionType, made_of: dict[str, str]) -> None:
    key = f"{function.__module__}.{function.__qualname__}"
    if key not in made_of:
        made_of[key] = _source_digest(function.__module__)
        names = set(_names(function.__code__))
        for name in names & function.__globals__.keys():
            _add_value(f"{function.__module__}.{name}", function.__globals__[name], names, made_of)


def _add_value(key: str, value: object, names: set[str], made_of: dict[str, str]) -> None:
    if isinstance(value, ModuleType):
        if value.__name__.startswith("mqlake."):
            for name in names & vars(value).keys():
                _add_value(f"{value.__name__}.{name}", vars(value)[name], set(), made_of)
    elif isinstance(function := getattr(value, "py_func", None), FunctionType):
        _add_function(function, made_of)
    elif isinstance(value, np.ndarray):
        made_of[key] = f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, int | float | str | bytes | tuple | np.generic):
        made_of[key] = repr(value)
    elif str(module := getattr(value, "__module__", "")).startswith(
        "mqlake."
    ):  # an intrinsic: its source counts
        made_of[key] = _source_digest(str(module))
    # what is left belongs to Python, numpy or numba


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.cache
def _source_digest(module_name: str) -> str:
    module: Any = sys.modules[module_name]
    return hashlib.sha256(module.__loader__.get_data(module.__file__)).hexdigest()


# --- the cache of one function -------------------------------------------------------------------------------


class _Locator(_CacheLocator):
    """Tells numba where entries are kept and whether they are current."""

    def __init__(self, function: FunctionType, directory: str, made_of: str) -> None:
        self._function = function
        self._directory = directory
        self._made_of = made_of

    def get_cache_path(self) -> str:
        return self._directory

    def get_source_stamp(self) -> str:
        return self._made_of

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


class _Library(JITCodeLibrary):
    """The machine code of an entry. Its bitcode is for functions that are compiled later and call this one."""

    bitcode: bytes
    _shared_module: Any

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self.bitcode)
        return self._shared_module


@functools.cache
def _no_bitcode() -> bytes:
    bitcode: bytes = binding.parse_assembly("").as_bitcode()
    return bitcode


class _Entry(CompileResultCacheImpl):
    """An entry whose bitcode is not read when it is loaded, which would take as long as all else of it: it is kept
    with the names that numba looks up in it."""

    def reduce(self, data: Any) -> Any:
        described, library = data.fndesc, data.library
        named = (
            described.llvm_func_name,
            described.llvm_cpython_wrapper_name,
            described.llvm_cfunc_wrapper_name,
        )
        return [name for name in named if library.get_pointer_to_function(name)], super().reduce(data)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        names, ((name, kind, (machine_code, bitcode)), *rest) = payload
        target_context.codegen()._engine._defined_symbols.update(names)
        data = super().rebuild(target_context, ((name, kind, (machine_code, _no_bitcode())), *rest))
        library = data.library
        library.__class__, library.bitcode, library._shared_module = _Library, bitcode, None
        return data


def _cache_in(directory: str, function: FunctionType, made_of: str) -> FunctionCache:
    class Here(_Locator):
        @classmethod
        def from_function(cls, py_func: FunctionType, _py_file: str) -> _Locator:
            return cls(py_func, directory, made_of)

    class Impl(_Entry):
        _locator_classes: ClassVar = [Here]

    class Cache(FunctionCache):
        _impl_class = Impl

    return Cache(function)


def _turn(path: str) -> IO[bytes] | None:
    """Waits until no other process has the lock `path`, up to TURN_MAX_S; the lock, or None without one."""
    deadline = time.monotonic() + TURN_MAX_S
    try:
        lock = open(path, "wb")  # noqa: SIM115 - closed with the turn
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    lock.close()
                    return None
                time.sleep(TURN_PAUSE_S)
    except OSError:  # a file system without locks, or a full one
        return None


class KernelCache(NullCache):
    """The cache of one function, over all `directories`. No error leaves it: the function is compiled then."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._turn: IO[bytes] | None = None

    @functools.cached_property
    def _places(self) -> list[FunctionCache]:
        # at the first call, when all that the function names is defined
        function, made_of = self._function, stamp(self._function)
        return [_cache_in(place, function, made_of) for place in directories(function.__code__.co_filename)]

    @property
    def cache_path(self) -> str | None:
        """Where entries are written to; None where nothing can be written."""
        return next((place.cache_path for place in self._places if is_writable(place.cache_path)), None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._find(sig, target_context)
        if found is None and self._turn is None:
            with contextlib.suppress(Exception):  # another numba: said by _find
                if place := self.cache_path:
                    self._turn = _turn(os.path.join(place, f"{self._function.__qualname__}.turn"))
                    found = self._find(sig, target_context)
        if found is not None:
            self._end_turn()
        return found

    def _end_turn(self) -> None:
        if self._turn is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._turn.name)  # who waits for it finds the entry
            self._turn.close()
            self._turn = None

    def _find(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        try:
            places = self._places
        except Exception as error:  # no source to read, or another numba
            _warn_once(f"{type(error).__name__}: {error}")
            return None
        for place in places:
            try:
                if os.path.isdir(place.cache_path) and (found := place.load_overload(sig, target_context)):
                    return found
            except Exception as error:  # half-written, or of whoever: pickle raises all there is
                logger.info("%s: an entry that cannot be read is replaced: %s", place.cache_path, error)
                try:
                    place.flush()
                except OSError:
                    pass  # what can be written is found when the function has been compiled
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save(sig, data)
        finally:
            self._end_turn()

    def _save(self, sig: Any, data: Any) -> None:
        try:
            if data.library.has_dynamic_globals:
                logger.warning(
                    "%s cannot be kept, so each process compiles it for itself, which takes seconds: its machine code "
                    "has an address in it that is this process's alone. Such are those of ctypes functions, and of a "
                    "compiled function that is passed to another one which LLVM did not compile into its caller: call "
                    "it by name there, or make the other one smaller",
                    self._function.__qualname__,
                )
                return
            for place in self._places:
                if is_writable(place.cache_path):
                    try:
                        place.save_overload(sig, data)
                        return
                    except OSError as error:
                        logger.info("%s: %s", place.cache_path, error)
        except Exception as error:
            _warn_once(f"{type(error).__name__}: {error}")
            return
        _warn_once("no directory for it can be written")

    def flush(self) -> None:
        for place in self._places:
            if os.path.isdir(place.cache_path) and is_writable(place.cache_path):
                place.flush()


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning(
        "compiled code cannot be kept (%s), so each process compiles for itself, which takes seconds: "
        "set NUMBA_CACHE_DIR to a directory that this user can write",
        reason,
    )


# --- whether it works ----------------------------------------------------------------------------------------


@compiled
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


def prove() -> None:
    """Compiles a function and calls it: raises whatever a numba raises that imports and does not work."""
    if _add(1, 2) != 3:
        raise RuntimeError("compiled code calculates wrongly")
