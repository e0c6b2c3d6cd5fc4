"""Packages whose names are imported at first use: what they list is there, and importing them costs nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mqlake.client
import mqlake.lake
import mqlake.store
from mqlake.base.lazy_exports import at_first_use

PACKAGES = [mqlake.client, mqlake.lake, mqlake.store]


def seen_by_mypy(package: object) -> dict[str, str]:
    """Name → the module that the package's `if TYPE_CHECKING` imports it from."""
    tree = ast.parse(Path(str(package.__file__)).read_text())  # type: ignore[attr-defined]
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
class TestPackages:
    def test_gives_out_what_mypy_sees(self, package: object) -> None:
        names = seen_by_mypy(package)
        assert sorted(names) == package.__all__  # type: ignore[attr-defined]
        for name, module in names.items():
            assert getattr(package, name) is getattr(importlib.import_module(module), name)

    def test_shows_its_names(self, package: object) -> None:
        assert {*seen_by_mypy(package), "__all__", "__doc__"} <= {*dir(package)}

    def test_an_unknown_name(self, package: object) -> None:
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            _ = package.Nothing  # type: ignore[attr-defined]


def test_importing_them_imports_none_of_their_modules() -> None:
    names = [package.__name__ for package in PACKAGES]
    heavy = ("numpy", "numba", "pyarrow", "asyncio", *(f"{name}." for name in names))
    code = f"import sys, {', '.join(names)}; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broker_starts_without_the_packages_of_extras() -> None:
    """`pip install mqlake` has none of them: an import of one at the top of a module would stop every broker there."""
    extras = ("pyarrow", "fsspec", "grpc", "cryptography", "yaml", "starlette", "pandas")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras}))\n"
        "import mqlake.broker.controller, mqlake.store.message_store, mqlake.namesrv, mqlake.cli.serve"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    package = type(sys)("a_package")
    monkeypatch.setitem(sys.modules, "a_package", package)
    asked: list[str] = []
    get, names = at_first_use("a_package", {"math": ["pi", "tau"]}, lambda: asked.append("before"))
    package.__getattr__, package.__dir__ = get, names  # type: ignore[attr-defined, method-assign, assignment]
    assert dir(package)[-2:] == ["pi", "tau"] and not asked
    assert package.pi == package.pi == importlib.import_module("math").pi and asked == ["before"]


def test_what_is_missing_is_said() -> None:
    def missing() -> None:
        raise ImportError("install it")

    get, _ = at_first_use("mqlake", {"math": ["pi"]}, missing)
    with pytest.raises(ImportError, match="install it"):
        get("pi")
