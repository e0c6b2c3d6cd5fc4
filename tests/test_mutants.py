"""The mutation run finds what tests do not notice, draws the same again, and leaves the sources alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tools import mutants
from tools.build_native import compile_module, this_python
from tools.mutants import ROOT, draw, figures, modules_of, own_tests, room_of

MODULE = """
from __future__ import annotations

import functools
import logging

logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=7)
def larger(a: int | None, b: int) -> int | None:
    assert a is not None
    logger.info("%d", a + b)
    if a > b:
        return a
    return b


def put(at: list[int], value: int) -> None:
    if value < 0:
        raise ValueError(f"{value + 1}")
    at.append(value)
"""

TESTS = """
from mqlake.compare import larger, put

def test_larger():
    assert larger(2, 1) == 2
    assert larger(1, 2) == 2

def test_put():
    put([], 5)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in (
        ("src/mqlake/__init__.py", ""),
        ("src/mqlake/testing/plugin.py", ""),  # pytest loads it, as mqlake is installed
        ("src/mqlake/compare.py", MODULE),
        ("tests/test_compare.py", TESTS),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def changes(module: Path) -> set[str]:
    return {mutant.lines().split("+ ")[1] for mutant in mutants.mutants(module)}


def test_what_is_changed_and_what_is_not(project: Path) -> None:
    """Not annotations, decorators, log lines, assertions and the wording of errors."""
    assert changes(project / "src" / "mqlake" / "compare.py") == {
        "if a >= b:",
        "if a <= b:",
        "if not a > b:",
        "if value <= 0:",
        "if value >= 0:",
        "if not value < 0:",
        "if value < 1:",
        "if value < -1:",
        "pass",
    }


def test_what_is_drawn_is_python_and_another_program() -> None:
    drawn = draw([ROOT / "src" / "mqlake" / "remoting" / "peer.py"], 40, 1)
    assert len(drawn) == 40
    for mutant in drawn:
        before, after = mutant.texts()
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), mutant


def test_a_seed_draws_the_same_again() -> None:
    modules = modules_of(ROOT, ["remoting", "store/checkpoint"])
    assert ROOT / "src" / "mqlake" / "remoting" / "codec.py" in modules
    drawn = draw(modules, 8, 3)
    assert drawn == draw(modules, 8, 3) != draw(modules, 8, 4)
    assert len({(mutant.module, mutant.position) for mutant in drawn}) == 8
    assert len({mutant.module for mutant in drawn}) == 4


@pytest.mark.nightly
def test_all_rooms_take_their_turn() -> None:
    """A sample that two rooms fill says nothing about the others, and one that never changes nothing new."""
    modules = modules_of(ROOT, ["."])
    rooms = {path.name for path in (ROOT / "src" / "mqlake").iterdir() if (path / "__init__.py").exists()}
    assert {room_of(module) for module in modules} >= rooms
    drawn = draw(modules, 16, 1)
    assert len({room_of(mutant.module) for mutant in drawn}) == 8
    seen = {room_of(mutant.module) for seed in range(4) for mutant in draw(modules, 16, seed)}
    assert len(seen) > 14


def test_a_figure_for_each_room() -> None:
    drawn = draw(modules_of(ROOT, ["remoting", "store/checkpoint"]), 8, 3)
    survived = [mutant for mutant in drawn if mutant.module.stem == "checkpoint"][:1]
    assert list(figures(drawn, survived)) == [
        "  remoting   6 of 6",
        "  store      1 of 2",
    ]


def test_own_tests_a_module() -> None:
    source = ROOT / "src" / "mqlake"
    assert own_tests(ROOT, source / "store" / "checkpoint.py") == "tests/store/test_checkpoint.py"
    assert own_tests(ROOT, source / "errors.py") != "tests/test_errors.py"

    recovery = str(own_tests(ROOT, source / "store" / "recovery.py")).split()
    assert recovery[0] == "tests/store/test_recovery.py" and "tests/store/test_lost_end.py" in recovery
    assert own_tests(ROOT, source / "native" / "single.pyx") == "tests/store/log/test_fast_put.py"


CYTHON = """
# cython: language_level=3
cdef enum:
    LIMIT = 3 - 1

cdef struct Text:
    int size[4]

cdef inline int longest(char *text, int limit=7) noexcept:
    \'\'\'Not 1 of this.\'\'\'
    cdef int at = 0
    while at < limit and text[at] != 0:
        at += 1
    use(<char *>text)
    return <int>at
"""


def test_what_is_changed_of_cython(tmp_path: Path) -> None:
    """Not declarations, casts, pointers and docstrings: most of that would not compile."""
    module = tmp_path / "mqlake" / "native" / "text.pyx"
    module.parent.mkdir(parents=True)
    module.write_text(CYTHON)
    assert changes(module) == {
        "while not (at < limit and text[at] != 0):",
        "while at <= limit and text[at] != 0:",
        "while at >= limit and text[at] != 0:",
        "while at < limit or text[at] != 0:",
        "while at < limit and text[at] == 0:",
        "while at < limit and text[at] != 1:",
        "while at < limit and text[at] != -1:",
        "at -= 1",
        "at += 2",
        "at += 0",
        "pass",
    }


@pytest.mark.nightly
def test_a_run_compiles_what_is_compiled(project: Path) -> None:
    """Else the tests would run what was compiled of the module before the change."""
    for name, text in (
        ("src/mqlake/native/__init__.py", ""),
        ("src/mqlake/native/twice.pyx", "def twice(int a):\n    return a + a\n"),
        (
            "tests/native/test_twice.py",
            "from mqlake.native.twice import twice\ndef test(): assert twice(3) == 6\n",
        ),
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    module = project / "src/mqlake/native/twice.pyx"
    compile_module(project, module, this_python(project))
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path; from tools.mutants import *
root = Path({str(project)!r}); module = root / "src/mqlake/native/twice.pyx"
print(run(mutants(module), root))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "killed    native/twice.pyx:2\n    - return a + a\n    + return a - a\n" in done.stdout
    assert done.stdout.endswith("([], [])\n")


def test_a_run(project: Path) -> None:
    """A changed comparison is noticed, a call that is left out is not."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path; from tools.mutants import *
root = Path({str(project)!r}); module = root / "src/mqlake/compare.py"
drawn = [m for m in mutants(module) if m.lines().endswith(("+ if not a > b:", "+ pass"))]
print([m.position[0] for m in run(drawn, root)[0]])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    line = MODULE.split("\n").index("    at.append(value)") + 1
    assert "compare.py: tests/test_compare.py passes in" in done.stdout
    assert "killed    compare.py:" in done.stdout
    assert f"survived  compare.py:{line}\n    - at.append(value)\n    + pass" in done.stdout
    assert done.stdout.endswith(f"[{line}]\n")
    assert (project / "src/mqlake/compare.py").read_text() == MODULE


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(SystemExit, match="no module or folder store/nowhere"):
        modules_of(ROOT, ["store/nowhere"])
