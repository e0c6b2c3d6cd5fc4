"""The check of the functions' size finds long and wide ones, and exceptions that are not needed any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_functions import offences


def found(root: Path, source: str, rules: str = "") -> list[str]:
    (root / "source").mkdir()
    (root / "source" / "a.py").write_text(source)
    (root / "functions.toml").write_text(f"[long]\n[wide]\n{rules}")
    return offences(root / "source", root / "functions.toml")


def of_lines(count: int, docstring: str = "") -> str:
    return f"class A:\n    def f(self):\n{docstring}" + "        pass\n" * (count - 1)


def of_arguments(count: int) -> str:
    return f"async def g({', '.join(f'a{i}' for i in range(count - 1))}, *, last): ...\n"


@pytest.mark.parametrize(
    "source",
    [
        of_lines(50),
        of_lines(50, '        """Two lines\n        of a docstring do not count."""\n'),
        of_arguments(10),
        "class A:\n" + "    x = 1\n" * 60,
    ],
)
def test_a_function_within_the_limits(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, source) == []


def test_a_long_function(tmp_path: Path) -> None:
    (line,) = found(tmp_path, of_lines(51))
    assert line.startswith("a.py:A.f has 51 lines, more than 50")


def test_a_wide_function(tmp_path: Path) -> None:
    (line,) = found(tmp_path, of_arguments(11))
    assert line.startswith("a.py:g has 11 arguments, more than 10")


def test_a_named_function_may_be_wide_but_not_long(tmp_path: Path) -> None:
    (line,) = found(tmp_path, of_arguments(11) + of_lines(51), '"fields" = ["a.py:g"]\n')
    assert line.startswith("a.py:A.f")


def test_an_exception_that_is_not_needed(tmp_path: Path) -> None:
    assert found(tmp_path, of_arguments(10), '"fields" = ["a.py:g"]\n') == [
        "a.py:g: take it out of functions.toml"
    ]
