"""Changes modules in small ways and runs their own tests: a change that they do not notice is a gap in the tests.

    python tools/mutants.py                               a sample over all rooms, another one each day
    python tools/mutants.py store/recovery -n 8 --seed 2  a sample of one module; a folder (store/log) is a sample of it

    src, tests ──copy──▶ /tmp/…   one change of one module ──▶ pytest -x of its own tests ──▶ killed, or survived
                                  (the copy is put right)

cosmic-ray makes the changes (mutants) and runs the tests. Its operators that mostly make equal programs are left out;
one is added, which drops a call whose result is not used, such as a flush. A module's tests are those of its name, or
those that tests/mirror.toml names. What is compiled is compiled again for each change, in the copy; Cython (.pyx) has
its own changes (cython_mutants). Mutants that tests/equivalent_mutants.toml calls equal are not drawn. A sample takes
its modules from as many rooms as it can, and ends with a figure for each. The same seed draws the same mutants from the
same sources. Exit status 1 when fewer than 85 % of the mutants were killed.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import difflib
import functools
import itertools
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome
from parso.python.tree import Keyword

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this may be run as a script

from tools import cython_mutants  # noqa: E402
from tools.build_native import NATIVE, CannotCompileError, compile_module, this_python  # noqa: E402
from tools.build_native import modules as compiled  # noqa: E402

AT_LEAST = 0.85
SUFFIXES = (".py", ".pyx")
PER_MODULE = 2
"""Mutants of one module in a sample over several: each module costs one run of its tests without a change."""
NO_PROGRAM = "no program"
TIMEOUT_FACTOR, TIMEOUT_MORE_S = 2, 20
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "tools.line_order", "-p", "no:cacheprovider")
_LEFT_OUT = shutil.ignore_patterns(".*", "target", "*.egg-info", "mqlake-demo", "dist")

_COMPARISONS = {"Eq": "NotEq", "NotEq": "Eq", "Is": "IsNot", "IsNot": "Is"}
_BOUNDS = {"Lt": ("LtE", "GtE"), "LtE": ("Lt", "Gt"), "Gt": ("GtE", "LtE"), "GtE": ("Gt", "Lt")}
_ARITHMETIC = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "FloorDiv": "Mul",
    "Div": "Mul",
    "Mod": "FloorDiv",
    "LShift": "RShift",
    "RShift": "LShift",
    "BitAnd": "BitOr",
    "BitOr": "BitAnd",
    "BitXor": "BitOr",
}
OPERATORS = (
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in _COMPARISONS.items()),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, others in _BOUNDS.items() for b in others),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in _ARITHMETIC.items()),
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "ZeroIterationForLoop",
)
"""Of cosmic-ray's. Not `==` to `is` or `<=`, nor removed decorators: what they change is seldom a fault."""


class DropCall(Operator):
    """Replaces a statement that is a call alone by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt" and node.children[0].type in ("atom_expr", "power"):
            call = node.children[0]
            if getattr(call.children[-1], "type", "") == "trailer" and call.children[-1].children[0] == "(":
                yield call.start_pos, call.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.children[0].get_first_leaf()
        node.children[0] = Keyword("pass", first.start_pos, prefix=first.prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("flush()\n", "pass\n"),)


@functools.cache
def operators() -> dict[str, Operator]:
    return {name: cosmic_ray.plugins.get_operator(f"core/{name}")() for name in OPERATORS} | {
        "DropCall": DropCall()
    }


@functools.cache
def equivalent() -> dict[str, dict[str, str]]:
    """Module → changed line → why the program is the same: no test can notice these, and they are not drawn."""
    return tomllib.loads((ROOT / "tests" / "equivalent_mutants.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Mutant:
    """One change: the `occurrence`-th place of a module where `operator` can change something."""

    module: Path
    operator: str
    occurrence: int
    position: tuple[int, int]
    """Line, from 1, and column, from 0."""

    def texts(self) -> tuple[str, str]:
        """The module, before and after."""
        text = self.module.read_text(encoding="utf-8")
        if self.module.suffix == ".pyx":
            change = cython_mutants.changes(text)[self.occurrence]
            return text, text[: change.start] + change.new + text[change.end :]
        return text, mutate_code(text, operators()[self.operator], self.occurrence)

    def is_equivalent(self) -> bool:
        """True if tests/equivalent_mutants.toml says why its changed line does the same."""
        known = next(
            (lines for name, lines in equivalent().items() if str(self.module).endswith(f"/mqlake/{name}")),
            {},
        )
        return any(line[6:] in known for line in self.lines().split("\n") if line[4] == "+")

    def is_a_program(self) -> bool:
        """True if what it makes is Python, and not the same: `*` between parameters is no product, and `except a.b`
        is not replaced as a whole. Of Cython it is the compiler that says so."""
        if self.module.suffix == ".pyx":
            return True
        try:
            before, after = self.texts()
            return ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
        except (SyntaxError, AttributeError):  # cosmic-ray's ExceptionReplacer takes names for dotted ones
            return False

    def lines(self) -> str:
        """The changed lines, before and after."""
        before, after = self.texts()
        changed = list(difflib.unified_diff(before.split("\n"), after.split("\n"), n=0, lineterm=""))[3:]
        return "\n".join(f"    {line[0]} {line[1:].strip()}" for line in changed)


def mutants(module: Path) -> list[Mutant]:
    """All of a module, in the order of its text."""
    text = module.read_text(encoding="utf-8")
    if module.suffix == ".pyx":
        changes = cython_mutants.changes(text)
        return [Mutant(module, "", n, change.position) for n, change in enumerate(changes)]
    nodes = list(ast_nodes(get_ast(text)))
    skipped = _skipped(text)
    found = []
    for name, operator in operators().items():
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (start, _end) in enumerate(positions):
            if not any(first <= start < last for first, last in skipped):
                found.append(Mutant(module, name, occurrence, start))
    return sorted(found, key=lambda mutant: mutant.position)


def _skipped(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Stretches that no test should have to notice: annotations, decorators, assertions and invariants,
    what is for types alone, log lines, the wording of errors, and limits of time (in names that end with _S)."""
    found: list[Any] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            found += node.decorator_list
        elif isinstance(node, ast.Raise):
            found += [part for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
        elif (
            isinstance(node, ast.Assert)
            or (isinstance(node, ast.keyword) and node.arg == "strict")  # of zip
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_S"))
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Expr) and _only_tells(ast.unparse(node)))
        ):
            found.append(node)
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in found if n]


def _only_tells(statement: str) -> bool:
    return statement.startswith(("logger.", "log.")) or statement == "self.invariants()"


def room_of(module: Path) -> str:
    """`store` of src/mqlake/store/log/flush.py; a module outside of all rooms is its own."""
    parts = module.parts[len(module.parts) - module.parts[::-1].index("mqlake") :]
    return Path(parts[0]).stem


def draw(modules: list[Path], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, no two at one position, of a few of the modules: of one room after the other, and of larger
    modules more often."""
    dice = random.Random(seed)
    rooms = sorted({room_of(module) for module in modules})
    turns = itertools.cycle(dice.sample(rooms, len(rooms)))
    left = set(modules)
    places: dict[Path, dict[tuple[int, int], list[Mutant]]] = {}
    while left and len(places) < -(-count // PER_MODULE):
        room = next(turns)
        if found := sorted(module for module in left if room_of(module) == room):
            (module,) = dice.choices(found, [module.stat().st_size for module in found])
            left.remove(module)
            at: dict[tuple[int, int], list[Mutant]] = {}
            for mutant in mutants(module):
                at.setdefault(mutant.position, []).append(mutant)
            places |= {module: at} if at else {}
    pool = {module: dice.sample(sorted(at), len(at)) for module, at in places.items()}
    drawn: list[Mutant] = []
    while len(drawn) < count and any(pool.values()):
        for module in pool:
            if pool[module] and len(drawn) < count:
                mutant = dice.choice(places[module][pool[module].pop()])
                drawn += [mutant] if mutant.is_a_program() and not mutant.is_equivalent() else []
    return sorted(drawn, key=lambda mutant: (mutant.module, mutant.position))


def own_tests(root: Path, module: Path) -> str | None:
    """The paths of the module's tests in the project at `root`, with spaces between them; None where it has none of its
    own. Of a package's `__init__.py`, and of a module whose test is one of those, all of the package's name and what
    follows it. tests/mirror.toml names more for some."""
    inner = module.relative_to(root / "src" / "mqlake").with_suffix(".py")
    rules = _mirror(root)
    own = _named_after(root, inner, rules.get("covered_by", {}))
    more = [f"tests/{name}" for name in rules.get("more_tests", {}).get(str(inner), ())]
    return " ".join([own, *more]) if own else None


def _mirror(root: Path) -> dict[str, Any]:
    rules = root / "tests" / "mirror.toml"
    return tomllib.loads(rules.read_text("utf-8")) if rules.exists() else {}


def _named_after(root: Path, inner: Path, covered: dict[str, str]) -> str | None:
    beside = (root / "tests" / inner.parent.parent).glob(f"test_{inner.parent.name}*.py")
    of_package = sorted(str(path.relative_to(root)) for path in beside)
    if inner.name == "__init__.py":
        return " ".join(of_package) or None
    own = Path("tests") / inner.with_name(f"test_{inner.name}")
    if (root / own).exists():
        return str(own)
    if str(inner) not in covered:
        return None
    named = f"tests/{covered[str(inner)]}"
    return " ".join(of_package) if named in of_package else named


def run(drawn: list[Mutant], root: Path = ROOT) -> tuple[list[Mutant], list[Mutant]]:
    """Runs the tests on each mutant in a copy of the project, in memory where that is possible, with a line for each;
    those that survived, and those that no compiler takes."""
    survived, impossible = [], []
    lines = {mutant: mutant.lines() for mutant in drawn}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory) as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(root, copy, ignore=_LEFT_OUT, symlinks=True)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(copy / "src"), str(copy / "examples"), str(ROOT)])
        os.environ["TMPDIR"] = directory
        here = Path.cwd()
        os.chdir(copy)
        try:
            for module in dict.fromkeys(mutant.module for mutant in drawn):
                tests = _Tests(copy, module.relative_to(root), str(own_tests(root, module)))
                name = module.relative_to(root / "src" / "mqlake")
                print(f"{name}: {tests.names} passes in {tests.took:.0f} s without a mutant", flush=True)
                for mutant in (each for each in drawn if each.module == module):
                    result = _try(mutant, copy, module.relative_to(root), tests)
                    if result == "survived":
                        survived.append(mutant)
                    elif result == NO_PROGRAM:
                        impossible.append(mutant)
                    print(f"  {result:<9} {name}:{mutant.position[0]}\n{lines[mutant]}", flush=True)
        finally:
            os.chdir(here)
    return survived, impossible


class _Tests:
    """Tests of a module in the copy; those that run the changed line come first, if any order will do."""

    def __init__(self, copy: Path, module: Path, names: str) -> None:
        """Exits if the tests fail without a change."""
        self.names, self._lines = names, copy.parent / "lines.json"
        self._command = shlex.join([*PYTEST, "--basetemp", str(copy.parent / "tmp"), *names.split()])
        self._lines.unlink(missing_ok=True)
        began = time.monotonic()
        lines = {"MQLAKE_LINES_OF": str(copy / module), "MQLAKE_LINES_TO": str(self._lines)}
        outcome, output = self._run(None, **lines)
        self._any_order = outcome == TestOutcome.SURVIVED and self._lines.exists()
        if not self._any_order:
            began = time.monotonic()
            outcome, output = self._run(None)
        self.took = time.monotonic() - began
        if outcome != TestOutcome.SURVIVED:
            sys.exit(f"{names} fails without a mutant:\n{output}")

    def notice(self, line: int) -> str:
        """`killed` or `survived`."""
        limit = TIMEOUT_FACTOR * self.took + TIMEOUT_MORE_S
        order = {"MQLAKE_LINES": str(self._lines), "MQLAKE_FIRST": str(line)} if self._any_order else {}
        return str(self._run(limit, **order)[0].value)

    def _run(self, limit: float | None, **environment: str) -> tuple[TestOutcome, str]:
        os.environ.update(environment)
        try:
            return run_tests(self._command, limit)
        finally:
            for name in environment:
                del os.environ[name]


def _try(mutant: Mutant, copy: Path, inner: Path, tests: _Tests) -> str:
    """What the tests say of the mutant in the copy, which is put right again."""
    inside = copy / inner
    target = this_python(copy) if inner.parent == NATIVE and inside in compiled(copy) else None
    made = None if target is None else target.extension(inside)
    kept = made.read_bytes() if made is not None and made.exists() else b""
    before, after = mutant.texts()
    _forget(inside)
    inside.write_text(after, encoding="utf-8")
    try:
        if target is not None and kept:
            compile_module(copy, inside, target)
        return tests.notice(mutant.position[0])
    except CannotCompileError:
        return NO_PROGRAM
    finally:
        inside.write_text(before, encoding="utf-8")
        if made is not None and kept:
            made.write_bytes(kept)
        _forget(inside)


def _forget(module: Path) -> None:
    """Byte code of one mutant is not for the next."""
    Path(cache_from_source(str(module))).unlink(missing_ok=True)


def modules_of(root: Path, names: list[str]) -> list[Path]:
    """The modules that have tests, of those named: `store/recovery`, or a folder."""
    source = root / "src" / "mqlake"
    found: set[Path] = set()
    for name in names:
        path = source / name
        if path.is_dir():
            found |= {each for each in path.rglob("*.py*") if each.suffix in SUFFIXES}
            found -= set(path.rglob("__init__.py"))
        elif its := [each for each in map(path.with_suffix, SUFFIXES) if each.exists()]:
            found |= set(its)
        else:
            sys.exit(f"there is no module or folder {name} in {source}")
    tested = sorted(module for module in found if own_tests(root, module))
    return tested or sys.exit(f"no tests of {' '.join(names)}: name them in tests/mirror.toml")


def figures(drawn: list[Mutant], survived: list[Mutant]) -> Iterator[str]:
    """`store  3 of 4`: how many of each room's mutants were killed."""
    alive = Counter(room_of(mutant.module) for mutant in survived)
    for room, count in sorted(Counter(room_of(mutant.module) for mutant in drawn).items()):
        yield f"  {room:<10} {count - alive[room]} of {count}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "modules", nargs="*", default=["."], metavar="MODULE", help="store/recovery, or a folder"
    )
    parser.add_argument("-n", type=int, default=16, help="how many mutants (default: 16)")
    parser.add_argument("--seed", type=int, help="of the sample (default: the day's number)")
    given = parser.parse_args()
    seed = datetime.date.today().toordinal() if given.seed is None else given.seed
    modules = modules_of(ROOT, list(given.modules))
    print(f"seed {seed}: {given.n} mutants of {len(modules)} modules", flush=True)
    drawn = draw(modules, given.n, seed)
    survived, impossible = run(drawn)
    drawn = [mutant for mutant in drawn if mutant not in impossible]
    print("\n".join(figures(drawn, survived)))
    rate = 1 - len(survived) / max(len(drawn), 1)
    print(f"{len(drawn) - len(survived)} of {len(drawn)} mutants killed ({rate:.0%})")
    return int(rate < AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())
