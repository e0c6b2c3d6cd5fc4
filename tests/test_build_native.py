"""How native code is built, and what is said where it cannot be."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path

import pytest
from tools import build_native
from tools.build_native import (
    CannotCompileError,
    build_wheels,
    compile_all,
    for_others,
    is_stale,
    modules,
    this_python,
)

MODULE = "# cython: language_level=3\ndef double(n: int) -> int:\n    return 2 * n\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one module, and one that is no native code."""
    package = tmp_path / build_native.NATIVE
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "twice.py").write_text(MODULE)
    return tmp_path


def test_a_module_is_compiled_beside_its_source_and_again_when_that_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = root / build_native.NATIVE / "twice.py", this_python(root)
    assert modules(root) == [source] and is_stale(root, source, target)
    assert compile_all(root, target) == [target.extension(source)]
    assert not is_stale(root, source, target)
    monkeypatch.syspath_prepend(source.parent)
    module = __import__("twice")
    assert module.__file__ == str(target.extension(source)) and module.double(21) == 42
    (source.parent / "more.pxd").touch()
    os.utime(source.parent / "more.pxd", (2**31, 2**31))
    assert is_stale(root, source, target)


def test_without_a_compiler_it_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(CannotCompileError, match="no C compiler"):
        compile_all(root, this_python(root))
    assert not build_native.has_compiler()


def test_a_failure_shows_what_the_compiler_said(root: Path) -> None:
    (root / build_native.NATIVE / "twice.py").write_text(MODULE + "cython.nothing.at.all(\n")
    with pytest.raises(CannotCompileError, match=r"twice\.py:5"):
        compile_all(root, this_python(root))


def test_what_a_wheel_for_others_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag that package indexes take, and the compiler, flags and headers that make it true."""
    headers = tmp_path / "python3.14"
    headers.mkdir()
    (headers / "Python.h").touch()
    of_processor = tmp_path / f"{platform.machine()}-linux-gnu" / "python3.14" / "pyconfig.h"
    of_processor.parent.mkdir(parents=True)
    of_processor.write_text("/* Debian's */")
    monkeypatch.setattr(build_native, "has_ziglang", lambda: True)
    target, tag = for_others(tmp_path, f"cp314-aarch64:{headers}")
    assert tag == "cp314-cp314-manylinux_2_17_aarch64.manylinux2014_aarch64"
    assert target.command[-2:] == ["-target", "aarch64-linux-gnu.2.17"]
    assert target.extension(Path("records.py")).name == "records.cpython-314-aarch64-linux-gnu.so"
    assert not any("x86" in flag for flag in target.flags)
    own, copied = target.includes
    assert own == headers
    assert (copied / "aarch64-linux-gnu/python3.14/pyconfig.h").read_text() == "/* Debian's */"
    assert "-mcpu=x86_64_v2" in for_others(tmp_path, f"cp314-x86_64:{headers}")[0].flags


@pytest.mark.parametrize("named", ["cp314-riscv64", "cp314-aarch64:/nowhere", "aarch64", ""])
def test_a_target_that_is_none_is_an_error(named: str, tmp_path: Path) -> None:
    with pytest.raises(CannotCompileError, match="MQLAKE_TARGET="):
        for_others(tmp_path, named)


def test_a_python_without_headers_has_no_wheel_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_native, "headers_of", lambda version, uv: None)
    given = argparse.Namespace(python=["3.14"], machine=None, include=[], out=tmp_path, uv="uv")
    assert build_wheels(tmp_path, given) == [
        "no wheel for Python 3.14: its headers are not here (--include 3.14=DIR)"
    ]


def test_without_uv_no_wheels_are_built_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # it was a traceback: FileNotFoundError of subprocess
    monkeypatch.setattr(sys, "argv", ["build_native.py", "--wheels", "--uv", "/nowhere/uv"])
    assert build_native.main() == 1
    assert capsys.readouterr().err == "/nowhere/uv is missing, which builds the wheels: --uv names it\n"
