"""Writes the constants of Python's modules that native code needs to `.pxd` files, which Cython makes C's constants of.

`python tools/native_constants.py` writes them; with `--check` it compares, and the exit status is 1 when one differs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "src" / "mqlake" / "native"
MODULES = {
    "constants": "mqlake.native.constants",
    "layout": "mqlake.formats.columns.layout",
    "serving": "mqlake.native.serving",
    "requests": "mqlake.native.requests",
    "frame_layout": "mqlake.native.frame_layout",
    "send_layout": "mqlake.native.send_layout",
}
"""Of each file the module whose integers in capitals it has."""


def declarations(module: str) -> str:
    """The text of a file."""
    values = vars(importlib.import_module(module))
    lines = [
        f"    {name} = {value}" for name, value in values.items() if name.isupper() and type(value) is int
    ]
    head = f'"""The constants of {module}: made by tools/native_constants.py."""'
    return "\n".join([head, "", "cdef enum:", *lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = 0
    for name, module in MODULES.items():
        path, text = NATIVE / f"{name}.pxd", declarations(module)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is not what {module} says: python tools/native_constants.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
