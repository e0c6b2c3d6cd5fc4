"""hatchling's hook: the files of the client, out of the tree that this is a part of, or of the sdist."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Client(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        tree = root.parent.parent
        tool = tree / "tools" / "client_files.py"
        if tool.exists():
            source, names = tree / "src", runpy.run_path(str(tool))["files"](tree)
        else:  # the sdist has these files and no others
            source = root / "src"
            names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
        below = "src/" if self.target_name == "sdist" else ""
        build_data["force_include"].update({str(source / name): f"{below}{name}" for name in names})


def get_build_hook() -> type[BuildHookInterface]:  # type: ignore[type-arg]
    return Client
