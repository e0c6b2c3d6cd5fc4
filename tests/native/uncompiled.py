"""Native modules as plain Python: the sources of kernels imported without what was compiled of them."""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import mqlake.native
from mqlake.formats.columns import plain
from mqlake.native import columns


@functools.cache
def uncompiled(name: str) -> ModuleType:
    """The module of this name in mqlake.native, run by Python: slow, and every index is checked."""
    path = Path(mqlake.native.__file__).with_name(f"{name}.py")
    loader = SourceFileLoader(f"uncompiled_{name}", str(path))
    module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
    records = {"mqlake.native.records": uncompiled("records")} if name != "records" else {}
    with patch.dict(sys.modules, records):  # which others call
        loader.exec_module(module)
    return module


def uncompiled_columns() -> ModuleType:
    """mqlake.native.columns, uncompiled."""
    module = ModuleType("uncompiled_columns")
    for name in ("dispatch", "index", "queues", "records", "units"):
        found = vars(uncompiled(name))
        vars(module).update({key: found[key] for key in columns.__all__ if key in found})
    module.append_batch = plain.append_batch  # what is written to the log is written by C alone
    return module
