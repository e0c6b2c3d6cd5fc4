"""A package with entry points, as if it were installed: a module and its metadata in a directory on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    source: str,
    entry_points: Mapping[str, str],
) -> None:
    """`entry_points`: group → lines of `name = module:attribute`. Gone when the test ends."""
    (directory / f"{module}.py").write_text(source)
    metadata = directory / f"{module}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
    text = "".join(f"[{group}]\n{lines}\n" for group, lines in entry_points.items())
    (metadata / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
