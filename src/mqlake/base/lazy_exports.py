"""Names of a package that are imported when they are first asked for, so that importing the package costs nothing.

if TYPE_CHECKING:  # what mypy and editors see
    from mqlake.store.config import FlushDiskType
else:  # what happens
    __getattr__, __dir__ = at_first_use(__name__, {"mqlake.store.config": ["FlushDiskType"]})

__all__ = ["FlushDiskType"]
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def at_first_use(
    package: str, homes: Mapping[str, Iterable[str]], before: Callable[[], object] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that gives out names of modules.

    `homes`: module → its names. `before` is called before the first of them is imported; what it raises, the import
    raises.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if before is not None:
            before()
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)  # from now on it is found without us
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
