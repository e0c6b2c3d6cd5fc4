"""The files of mqlake-client: what `mqlake.client` and the adapters import, and nothing that reads a log.

    python tools/client_files.py          lists them
    python tools/client_files.py --check  says what they import from outside that the client does not bring

packaging/client builds its distribution from them (hatch_build.py), and mqlake's wheel leaves them out and depends on
it (build_native.py). An import for types alone, or inside of a function, counts as any other; what is imported from
outside may be missing inside of a function, or in a module of OPTIONAL.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("mqlake.client", "mqlake.adapters")
BROUGHT = {"orjson"}
"""The distributions that the client needs."""
OPTIONAL = {
    "mqlake.base.zstd": {"backports", "compression"},
    "mqlake.client.tracing": {"opentelemetry"},
    "mqlake.message.hashes": {"isal"},
}
"""What a module takes when it is there; an adapter's framework is another such thing."""


def modules(source: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((source / "mqlake").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(what is imported, whether in a function); of `from a import b` both a and a.b."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield child.module, inside
                yield from ((f"{child.module}.{alias.name}", inside) for alias in child.names)
            yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return walk(ast.parse(path.read_text(encoding="utf-8")), False)


def closure(source: Path) -> dict[str, Path]:
    """Module → its file."""
    known = modules(source)
    found: dict[str, Path] = {}
    waiting = [name for name in known if name.startswith(ROOTS)]
    while waiting:
        parts = waiting.pop().split(".")
        for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if name in known and name not in found:
                found[name] = known[name]
                waiting += [each for each, _ in imports(known[name]) if each in known]
    return found


def files(root: Path) -> list[str]:
    """Of the distribution, relative to `src`."""
    source = root / "src"
    own = [str(path.relative_to(source)) for path in closure(source).values()]
    return sorted([*own, "mqlake/py.typed"])


def faults(root: Path) -> list[str]:
    found = []
    for name, path in sorted(closure(root / "src").items()):
        if name.startswith("mqlake.adapters."):
            continue
        for imported, inside in imports(path):
            top = imported.partition(".")[0]
            if inside or top == "mqlake" or top in sys.stdlib_module_names:
                continue
            if top not in BROUGHT | OPTIONAL.get(name, set()):
                found.append(f"{name} imports {top}, which mqlake-client does not bring")
    return sorted(set(found))


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    said = faults(root) if "--check" in sys.argv[1:] else files(root)
    print("\n".join(said), end="\n" if said else "")
    return 1 if "--check" in sys.argv[1:] and said else 0


if __name__ == "__main__":
    sys.exit(main())
