"""Where machine code is kept, what it is good for, and that nothing about it stops a program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numba
import pytest

from mqlake.compiled import cache, directories
from tests.compiled.container import installation, lines_of, read_only

WARNING = "set NUMBA_CACHE_DIR to a directory that this user can write"

PROGRAM = """
import logging
logging.basicConfig(format="%(message)s")
import numpy as np
from mqlake.compiled import load
kernels = load("mqlake.compiled.kernels.primitives")
print(int(kernels.load16(np.array([1, 2], np.uint8), 0)))
print(sum(kernels.load16.stats.cache_hits.values()))
print(kernels.load16._cache.cache_path)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    with installation() as directory:
        yield directory


def test_a_read_only_installation_without_a_home_compiles_every_time(site: Path) -> None:
    for _ in range(2):
        done = read_only(site, PROGRAM)
        assert lines_of(done) == ["258", "0", "None"]
        assert done.stderr.count(WARNING) == 1


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"])
def test_one_writable_directory_is_enough(site: Path, tmp_path: Path, variable: str) -> None:
    found = [
        read_only(site, PROGRAM, writable=tmp_path, **{variable: str(tmp_path)}) for _ in ("first", "second")
    ]
    (value, hits, place), (_, hits_then, place_then) = map(lines_of, found)
    assert (value, hits, hits_then) == ("258", "0", "1")
    assert place == place_then
    assert place.startswith(str(tmp_path))
    assert [done.stderr for done in found] == ["", ""]
    if variable == "TMPDIR":
        assert [path.name for path in tmp_path.iterdir()] == [f"mqlake-{os.getuid()}"]


def test_what_an_image_was_built_with_is_used_where_it_cannot_be_written(tmp_path: Path) -> None:
    with installation() as built:
        writer = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(built), "NUMBA_CACHE_DIR": "", "MQLAKE_NO_JIT": "0"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert lines_of(writer)[2] == str(built / "mqlake" / "compiled" / "kernels" / "__pycache__")
        done = read_only(built, PROGRAM)
        assert lines_of(done) == ["258", "1", "None"]
        assert done.stderr == ""


def test_no_one_elses_temporary_directory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_to_all = tmp_path / f"mqlake-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert directories.temporary_directory.__wrapped__() == ""
    open_to_all.rmdir()
    open_to_all.symlink_to(tmp_path)
    assert directories.temporary_directory.__wrapped__() == ""
    open_to_all.unlink()
    assert directories.temporary_directory.__wrapped__() == str(open_to_all)


def test_the_working_directory_is_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert directories.temporary_directory.__wrapped__() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home_gets_no_directory_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert all(os.path.isabs(path) and "~" not in path for path in directories.directories(__file__))


# --- one function --------------------------------------------------------------------------------------------


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for machine code."""
    directory = tmp_path / "machine-code"
    monkeypatch.setattr(cache, "directories", lambda source: iter([str(directory)]))
    directories.is_writable.cache_clear()
    cache._warn_once.cache_clear()
    return directory


def module_of(tmp_path: Path, name: str, source: str) -> types.ModuleType:
    """A module `mqlake.NAME` made of a file, imported as if for the first time."""
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    shutil.rmtree(
        tmp_path / "__pycache__", ignore_errors=True
    )  # a file of the same size and second looks unchanged
    spec = spec_from_file_location(f"mqlake.{name}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    cache._source_digest.cache_clear()
    spec.loader.exec_module(module)
    return module


def hits(function: object) -> int:
    return sum(function.stats.cache_hits.values())  # type: ignore[attr-defined]


FUNCTION = """
from mqlake.compiled.cache import compiled

@compiled
def double(number):
    return number * 2
"""


def test_numba_still_has_what_is_taken_of_it(own_directory: Path, tmp_path: Path) -> None:
    """Fails when numba no longer has `_cache` in a dispatcher, `_locator_classes`, or libraries as `_Entry` takes them
    apart: see the module's docstring."""
    assert isinstance(numba.njit(lambda: 1)._cache, numba.core.caching.NullCache)
    first = module_of(tmp_path, "kept", FUNCTION).double
    assert (first(2), hits(first)) == (4, 0)
    assert len(list(own_directory.glob("kept.double-*"))) == 2
    second = module_of(tmp_path, "kept", FUNCTION).double
    assert (second(2), hits(second)) == (4, 1)
    (loaded,) = second.overloads.values()
    assert loaded.library._shared_module is None


CALLER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mqlake.compiled import cache
cache.directories = lambda source: iter([sys.argv[1]])
import kept

@cache.compiled
def more(number):
    return kept.double(number) + MORE

print(kept.double(1), sum(kept.double.stats.cache_hits.values()), more(3))
"""


def test_a_function_that_was_loaded_is_compiled_into_one_that_calls_it(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(FUNCTION)
    said = [
        subprocess.run(
            [sys.executable, "-c", CALLER.replace("MORE", more), str(tmp_path)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.split()
        for more in ("4", "5")
    ]
    assert said == [["2", "0", "10"], ["2", "1", "11"]]


ONCE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mqlake.compiled import cache, directories
cache.directories = lambda source: iter([sys.argv[1]])
import numba.core.event as event

class Said(event.Listener):
    def on_start(self, happened):
        print("compiles", happened.data["dispatcher"].py_func.__name__, flush=True)
    def on_end(self, happened):
        pass

event.register("numba:compile", Said())
import above
print("ready", flush=True)
sys.stdin.readline()
print(above.twice(3), flush=True)
"""


def test_processes_that_miss_the_same_entry_compile_it_once(tmp_path: Path) -> None:
    (tmp_path / "above.py").write_text(
        FUNCTION + "\n@compiled\ndef twice(number):\n    return double(double(number))\n"
    )
    command = [sys.executable, "-c", ONCE, str(tmp_path)]
    with contextlib.ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(3)]  # type: ignore[call-overload]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate()[0].split("\n") for process in processes]
    lines = sorted(line for lines in said for line in lines if line)
    assert lines == ["12", "12", "12", "compiles double", "compiles twice"]
    assert not list(tmp_path.glob("*.turn"))


def test_it_does_not_wait_for_ever_for_another_process(
    own_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "TURN_MAX_S", 0.0)
    own_directory.mkdir()
    with (own_directory / "double.turn").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        function = module_of(tmp_path, "kept", FUNCTION).double
        assert (function(2), hits(function)) == (4, 0)
    again = module_of(tmp_path, "kept", FUNCTION).double
    assert (again(2), hits(again)) == (4, 1)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"\x80\x04K*."])
def test_a_damaged_entry_is_replaced(own_directory: Path, tmp_path: Path, ending: str, damage: bytes) -> None:
    assert module_of(tmp_path, "kept", FUNCTION).double(2) == 4
    (entry,) = own_directory.glob(f"*.{ending}")
    entry.write_bytes(damage)
    again = module_of(tmp_path, "kept", FUNCTION).double
    assert (again(2), hits(again)) == (4, 0)
    third = module_of(tmp_path, "kept", FUNCTION).double
    assert (third(2), hits(third)) == (4, 1)


@pytest.mark.usefixtures("own_directory")
def test_the_entries_of_another_processor_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.codegen.CPUCodegen.magic_tuple", lambda self: ("sparc", "ultra", ""))
        assert module_of(tmp_path, "kept", FUNCTION).double(2) == 4
    here = module_of(tmp_path, "kept", FUNCTION).double
    assert (here(2), hits(here)) == (4, 0)


@pytest.mark.usefixtures("own_directory")
def test_a_full_disk_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    two = module_of(tmp_path, "kept", FUNCTION + FUNCTION.replace("double", "again"))
    assert (two.double(2), two.again(3)) == (4, 6)
    assert [WARNING in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.usefixtures("own_directory")
def test_another_numba_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def changed(*_: object) -> None:
        raise AttributeError("no _locator_classes")

    monkeypatch.setattr(cache, "_cache_in", changed)
    assert module_of(tmp_path, "kept", FUNCTION).double(2) == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


WITH_AN_ADDRESS = """
import ctypes
from mqlake.compiled.cache import compiled
absolute = ctypes.CDLL(None).labs
absolute.argtypes, absolute.restype = [ctypes.c_long], ctypes.c_long

@compiled
def distance(number):
    return absolute(number)
"""


def test_of_code_with_an_address_of_its_process_is_said_why_it_is_not_kept(
    own_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert module_of(tmp_path, "kept", WITH_AN_ADDRESS).distance(-2) == 2
    (record,) = caplog.records
    assert record.getMessage().startswith("distance cannot be kept")
    assert "an address in it that is this process's alone" in record.getMessage()
    assert not list(own_directory.glob("kept.*"))


# --- what an entry is good for -------------------------------------------------------------------------------

BELOW = """
import numpy as np
from mqlake.compiled.cache import compiled
FACTOR, TABLE, UNUSED = 2, np.array([1, 2]), 3

@compiled
def inner(number):
    return number * FACTOR + TABLE[0]
"""
ABOVE = """
from mqlake import below
from mqlake.below import FACTOR, inner
from mqlake.compiled.cache import compiled

@compiled
def by_name(number):
    return number + FACTOR

@compiled
def by_module(number):
    return number + below.FACTOR

@compiled
def by_function(number):
    return inner(number)
"""


def stamps(tmp_path: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    import mqlake

    monkeypatch.setattr(mqlake, "below", module_of(tmp_path, "below", below), raising=False)
    above = module_of(tmp_path, "above", ABOVE)
    return {
        name: cache.stamp(getattr(above, name).py_func) for name in ("by_name", "by_module", "by_function")
    }


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (("FACTOR, TABLE, UNUSED = 2", "FACTOR, TABLE, UNUSED = 5"), {"by_name", "by_module", "by_function"}),
        (("number * FACTOR +", "number * FACTOR -"), {"by_function"}),
        (("np.array([1, 2])", "np.array([9, 2])"), {"by_function"}),
        (("", ""), set()),
    ],
)
def test_an_entry_is_good_as_long_as_all_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], changed: set[str]
) -> None:
    before = stamps(tmp_path, BELOW, monkeypatch)
    after = stamps(tmp_path, BELOW.replace(*change), monkeypatch)
    assert {name for name in before if before[name] != after[name]} == changed


def test_code_that_checks_indexes_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = stamps(tmp_path, BELOW, monkeypatch)
    monkeypatch.setattr(cache.config, "BOUNDSCHECK", 1)
    assert not set(plain.values()) & set(stamps(tmp_path, BELOW, monkeypatch).values())


def test_intrinsics_count_with_their_source() -> None:
    from mqlake.compiled.kernels import sends

    made_of: dict[str, str] = {}
    cache._add_function(sends.store_sends.py_func, made_of)
    source = cache._source_digest("mqlake.compiled.kernels.primitives")
    assert made_of["mqlake.compiled.kernels.sends.pointer"] == source
    assert made_of["mqlake.compiled.kernels.frames.QUOTE"] == "34"
    assert "mqlake.compiled.kernels.primitives.store32" in made_of
    assert not any(key.startswith("numpy") for key in made_of)
