"""What mqlake uses of the inside of pyiceberg and deltalake: in one module, and for a version that is named."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pyiceberg.io.pyarrow
import pyiceberg.table

from mqlake.lake.tables import iceberg_inside

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ("pyiceberg", "deltalake")
INSIDE = "lake/tables/iceberg_inside.py"


def users() -> Iterator[tuple[str, ast.Module]]:
    """The modules that import one of the libraries."""
    source = ROOT / "src" / "mqlake"
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        if re.search(rf"^\s*(from|import) ({'|'.join(LIBRARIES)})\b", text, re.MULTILINE):
            yield str(path.relative_to(source)), ast.parse(text)


def private(tree: ast.Module) -> Iterator[str]:
    """Names with an underscore that are imported from a library, or asked of anything but self and cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from (each.name for each in node.names if each.name.startswith("_"))
            yield from (part for part in (node.module or "").split(".") if part.startswith("_"))
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            asked = node.value
            if not (isinstance(asked, ast.Name) and asked.id in ("self", "cls")):
                yield node.attr


def test_private_names_are_used_in_one_module_alone() -> None:
    found = {name: set(private(tree)) for name, tree in users()}
    assert {"lake/tables/iceberg.py", "lake/tables/delta.py", INSIDE} <= found.keys()
    inside = found.pop(INSIDE)
    assert {name: each for name, each in found.items() if each} == {}
    assert inside == {
        "_append_snapshot_producer",
        "_clean_all_uncommitted",
        "_do_commit",
        "_pyarrow_to_schema_without_ids",
        "_requirements",
        "_updates",
    }


def test_the_inside_is_that_of_the_version_that_is_named() -> None:
    """A newer pyiceberg is looked through, and then named in VERSIONS and in pyproject.toml, both."""
    installed = version("pyiceberg")
    assert ".".join(installed.split(".")[:2]) in iceberg_inside.VERSIONS, (
        f"pyiceberg {installed}: look through iceberg_inside.py, then name it in VERSIONS"
    )
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [oldest], [newest] = (
        re.findall(rf"pyiceberg\S*{sign}(\d+\.\d+)", " ".join(declared["iceberg"])) for sign in (">=", ",<")
    )
    minor = int(iceberg_inside.VERSIONS[-1].split(".")[1])
    assert (oldest, newest) == (iceberg_inside.VERSIONS[0], f"0.{minor + 1}")


def test_what_is_used_of_the_inside_is_there_and_takes_what_it_is_given() -> None:
    """Else the first commit would tell."""
    transaction, table = pyiceberg.table.Transaction, pyiceberg.table.Table
    assert list(inspect.signature(transaction._append_snapshot_producer).parameters)[:2] == [
        "self",
        "snapshot_properties",
    ]
    assert list(inspect.signature(table._do_commit).parameters) == ["self", "updates", "requirements"]
    assert isinstance(transaction.table_metadata, property)
    assert callable(pyiceberg.io.pyarrow._pyarrow_to_schema_without_ids)
