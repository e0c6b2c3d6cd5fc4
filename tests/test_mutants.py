"""The mutation run finds what tests do not notice, draws the same again, and leaves the sources alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tools import mutants
from tools.mutants import ROOT, draw, modules_of, own_tests

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
    assert len({mutant.module for mutant in drawn}) == 2


def test_own_tests_a_module() -> None:
    source = ROOT / "src" / "mqlake"
    assert own_tests(ROOT, source / "store" / "checkpoint.py") == "tests/store/test_checkpoint.py"
    assert own_tests(ROOT, source / "errors.py") != "tests/test_errors.py"


def test_a_run(project: Path) -> None:
    """A changed comparison is noticed, a call that is left out is not."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path; from tools.mutants import *
root = Path({str(project)!r}); module = root / "src/mqlake/compare.py"
drawn = [m for m in mutants(module) if m.lines().endswith(("+ if not a > b:", "+ pass"))]
print([m.position[0] for m in run(drawn, root)])
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
