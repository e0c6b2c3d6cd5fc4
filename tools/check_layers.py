"""Holds the imports of src/mqlake to one direction: a room imports only from the rooms before it, and no module, in a
room either, imports one that needs it. An import for types alone, or inside of a function, counts as any other.

    errors → base → message → formats → store → remoting → auth → namesrv | broker → client → lake → spark → cli
    console, which cli starts, shows what client and store answer.
    auth, namesrv and client do without the store. metaq may import errors, base, message, formats and remoting; only
    migrate, spark and cli import metaq.
    native, compiled ahead of time, imports the constants of message, formats and remoting.
    Codecs know it only by name (native.module).

Rooms in a room have an order, too: WITHIN. A check or a reader of a store never imports its writer.

Codecs do no I/O: `message` and `formats` may not import os, io, mmap, socket, asyncio,
pathlib or shutil.
Exit status 1 with a line per offence.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "mqlake"
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "native": {"NO_NATIVE", "message", "formats", "remoting"},
    "base": {"errors"},
    "message": {"errors", "base"},
    "formats": {"native", "errors", "base", "message"},
    "store": {"native", "errors", "base", "message", "formats"},
    "remoting": {"errors", "base", "message", "formats"},
    "auth": {"errors", "base", "message", "remoting"},
    "namesrv": {"errors", "base", "message", "formats", "remoting", "auth"},
    "broker": {
        "native",
        "errors",
        "base",
        "message",
        "formats",
        "store",
        "remoting",
        "auth",
    },
    "read_replica": {"errors", "base", "store", "remoting", "broker"},
    "client": {"errors", "base", "message", "formats", "remoting", "auth"},
    "metaq": {"native", "errors", "base", "message", "formats", "remoting"},
    "migrate": {"errors", "base", "message", "formats", "store", "metaq"},
    "lake": {"native", "errors", "base", "message", "formats", "store", "client"},
    "spark": {
        "errors",
        "base",
        "message",
        "formats",
        "store",
        "client",
        "metaq",
        "migrate",
        "lake",
    },
    "console": {"errors", "base", "message", "formats", "store", "remoting", "auth", "client", "lake"},
    "cli": {
        "native",
        "console",
        "errors",
        "base",
        "message",
        "formats",
        "store",
        "remoting",
        "auth",
        "namesrv",
        "broker",
        "read_replica",
        "client",
        "proxy",
        "metaq",
        "migrate",
        "lake",
        "spark",
    },
    "proxy": {"errors", "base", "message", "formats", "remoting", "auth", "broker", "client"},
    "adapters": {"errors", "base", "message", "remoting", "client"},
    "testing": {"errors", "base"},
    "__main__": {"cli"},
}
_OF_SOURCES = {
    "schema",
    "filters",
    "options",
    "positions",
    "partitions",
    "error_messages",
    "requirements",
    "stream_readers",
}
WITHIN: dict[str, set[str]] = {
    "store.files": {"config"},
    "store.log": {"config", "results", "files"},
    "store.queues": {"config", "results", "files"},
    "store.ha": {"config", "results", "files"},
    "store.index": {"config", "checkpoint", "files"},
    "store.archive": {"config", "results", "file_sizes", "files", "log", "queues", "index", "heads"},
    "store.timer": {"config", "results", "dispatch", "message_store", "store_view", "log", "queues"},
    "store.check": {
        "config",
        "results",
        "checkpoint",
        "kept_copies",
        "file_sizes",
        "heads",
        "read_only",
        "store_view",
        "lost_end",
        "files",
        "log",
        "queues",
        "index",
        "timer",
        "archive",
    },
    "broker.state": {"config", "filter"},
    "broker.mqtrace": {"broker"},
    "broker.services": {"broker", "config", "state"},
    "broker.failover": {"broker", "config", "services"},
    "broker.requests": {
        "broker",
        "config",
        "flow_control",
        "state",
        "filter",
        "mqtrace",
        "services",
        "transaction",
    },
    "broker.fast": {"broker", "config", "state", "metrics", "pop", "requests", "transaction"},
    "broker.pop": {"broker", "config", "state", "filter", "services", "mqtrace"},
    "broker.admin": {"broker", "config", "state", "metrics", "services"},
    "lake.arrow": {"options", "offsets", "log"},
    "lake.log": {"options", "offsets", "arrow"},
    "lake.heads": {"options", "offsets", "arrow", "log"},
    "lake.bodies": {"arrow", "requirements"},
    "lake.live": {"options", "offsets", "arrow", "log"},
    "lake.tables": {
        "options",
        "offsets",
        "arrow",
        "log",
        "dataset",
        "plan",
        "requirements",
        "bodies",
        "live",
    },
    "spark.log": _OF_SOURCES,
    "spark.rocketmq": {*_OF_SOURCES, "log"},
    "spark.metaq": {*_OF_SOURCES, "log"},
    "metaq.formats": {"message"},
    "metaq.wire": {"formats"},
    "metaq.store": {"message", "formats", "config"},
    "metaq.client": {"message", "formats", "config", "wire", "zookeeper"},
    "client.api": {"records", "results"},
    "client.produce": {
        "api",
        "client_base",
        "config",
        "hooks",
        "mq_client",
        "namespace",
        "records",
        "results",
        "routes",
    },
    "client.consume": {
        "api",
        "client_base",
        "config",
        "hooks",
        "mq_client",
        "namespace",
        "produce",
        "records",
        "results",
        "routes",
    },
    "remoting.headers": set(),
    "remoting.bodies": {"codes", "headers"},
}
"""For a room in a room, what it may import of the rest of its room; a folder that is not here may import all of it."""
NO_IO_ROOMS = {"errors", "message", "formats"}
IO_MODULES = {"os", "io", "mmap", "socket", "asyncio", "pathlib", "shutil", "tempfile", "subprocess"}


def room_of(parts: Sequence[str]) -> str:
    """The room of a module below mqlake: its first part, or its first two where those are a room of their own."""
    return ".".join(parts[:2]) if ".".join(parts[:2]) in ALLOWED else parts[0]


def offence_within(path: Path, module: str) -> str:
    """Why a module may not import another of its own room; empty if it may."""
    own = path.relative_to(SOURCE).with_suffix("").parts
    sub_room = ".".join(own[:2])
    target = module.split(".")[1:]
    if len(own) < 3 or sub_room not in WITHIN or target[:1] != [own[0]] or target[1:2] in ([], [own[1]]):
        return ""
    return "" if target[1] in WITHIN[sub_room] else f"{sub_room} may not import mqlake.{'.'.join(target[:2])}"


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


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def needs(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Module → the modules that it names in imports."""
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        named = found[module] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names} & trees.keys()
            elif isinstance(node, ast.ImportFrom) and node.module in trees:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & trees.keys()
                named |= inner if len(inner) == len(node.names) else inner | {node.module}
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports the next, and the last is the first again; none when there are no such."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        modules: list[str] = error.args[1]
        return modules[::-1]
    return []


def offences(path: Path, tree: ast.AST) -> list[str]:
    room = room_of(path.relative_to(SOURCE).with_suffix("").parts)
    if room == "__init__":
        return []
    if room not in ALLOWED:
        return [f"{path}: room {room!r} is not in the layers of tools/check_layers.py"]
    allowed = ALLOWED[room] | {room, "__version__"}
    bad = []
    for line, module in imported_modules(tree):
        parts = module.split(".")
        if module == "relative import":
            bad.append(f"{path}:{line}: write imports in full, from mqlake...")
        elif parts[0] == "mqlake" and len(parts) > 1 and room_of(parts[1:]) not in allowed:
            bad.append(f"{path}:{line}: {room} may not import mqlake.{room_of(parts[1:])}")
        elif parts[0] == "mqlake" and (reason := offence_within(path, module)):
            bad.append(f"{path}:{line}: {reason}")
        elif room in NO_IO_ROOMS and parts[0] in IO_MODULES:
            bad.append(f"{path}:{line}: {room} does no I/O, so it may not import {parts[0]}")
    return bad


def main() -> int:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    found = [line for path, tree in trees.items() for line in offences(path, tree)]
    if round_trip := circle(needs({module_of(path): tree for path, tree in trees.items()})):
        found.append(f"imports in a circle: {' → '.join(round_trip)}")
    print("\n".join(found) or f"layers: {len(trees)} modules, imports run one way")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
