"""Holds the imports of src/mqlake to one direction: a room imports only from the rooms before it.

    errors → message → formats → store → remoting → namesrv | broker → client → spark → cli
    metaq may import errors, message, formats and remoting, and two small modules of the store (files written
    durably, findings of a check); nobody but spark and cli imports metaq.
    namesrv takes two modules of the store, for small files that survive a crash, and nothing else of it.

Codecs do no I/O: `message` and `formats` may not import os, io, mmap, socket, asyncio, pathlib or shutil.
Exit status 1 with a line per offence.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "mqlake"
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "message": {"errors"},
    "formats": {"errors", "message"},
    "store": {"errors", "message", "formats"},
    "remoting": {"errors", "message", "formats"},
    "namesrv": {"errors", "message", "formats", "remoting", "store.config_manager", "store.durable"},
    "broker": {"errors", "message", "formats", "store", "remoting"},
    "client": {"errors", "message", "formats", "remoting"},
    "metaq": {"errors", "message", "formats", "remoting", "store.durable", "store.findings"},
    "spark": {"errors", "message", "formats", "store", "client", "metaq"},
    "cli": {
        "errors",
        "message",
        "formats",
        "store",
        "remoting",
        "namesrv",
        "broker",
        "client",
        "metaq",
        "spark",
    },
    "__main__": {"cli"},
}
NO_IO_ROOMS = {"errors", "message", "formats"}
IO_MODULES = {"os", "io", "mmap", "socket", "asyncio", "pathlib", "shutil", "tempfile", "subprocess"}


def room_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mqlake" else []
            found += [(node.lineno, name) for name in names or [node.module]]
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.append((node.lineno, "relative import"))
    return found


def offences(path: Path) -> list[str]:
    room = room_of(path)
    if room == "__init__":
        return []
    if room not in ALLOWED:
        return [f"{path}: room {room!r} is not in the layers of tools/check_layers.py"]
    allowed = ALLOWED[room] | {room, "__version__"}
    bad = []
    for line, module in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        parts = module.split(".")
        if module == "relative import":
            bad.append(f"{path}:{line}: write imports in full, from mqlake...")
        elif parts[0] == "mqlake" and len(parts) > 1 and not {parts[1], ".".join(parts[1:3])} & allowed:
            bad.append(f"{path}:{line}: {room} may not import mqlake.{parts[1]}")
        elif room in NO_IO_ROOMS and parts[0] in IO_MODULES:
            bad.append(f"{path}:{line}: {room} does no I/O, so it may not import {parts[0]}")
    return bad


def main() -> int:
    paths = sorted(SOURCE.rglob("*.py"))
    found = [line for path in paths for line in offences(path)]
    print("\n".join(found) or f"layers: {len(paths)} modules, imports run one way")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
