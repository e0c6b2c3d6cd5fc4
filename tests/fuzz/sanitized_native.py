"""Imported first, it has `mqlake.native` take its modules from build/sanitize (tools/build_native.py --sanitize)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import mqlake.native

DIRECTORY = Path(__file__).parents[2] / "build" / "sanitize"


def kernels(name: str) -> ModuleType:
    """The module with sanitizers."""
    found = mqlake.native.module(name)
    assert found is not None and (found.__file__ or "").startswith(f"{DIRECTORY}/")
    return found


mqlake.native.__path__.insert(0, str(DIRECTORY))
kernels("records")
