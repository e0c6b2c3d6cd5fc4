"""Reads what each commit of a Delta table says of itself, by its version: the `commitInfo` in that version's own file.

    _delta_log/00000000000000000007.json    {"commitInfo": {"operation": …, "mqlake.position": …}}    one action a line

deltalake's history() lists what is there when it is called, and counts the numbers down from the version that was
loaded before: with a commit in between, every entry has the number of its neighbour.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.fs

from mqlake.lake.tables.files import file_system_of

READERS = 8
"""Commits that are read at the same time: on an object store each takes a round trip."""


class DeltaLog:
    """The log of the table at `location`, a path or URI. Raises OSError."""

    def __init__(self, location: str) -> None:
        self._files, inside = file_system_of(location)
        self._folder = f"{inside.rstrip('/')}/_delta_log"

    def commit(self, version: int) -> dict[str, Any] | None:
        """Returns the commitInfo of a version, empty if it has none; None if its file is gone (cleaned up) or was
        never there."""
        try:
            with self._files.open_input_stream(f"{self._folder}/{version:020d}.json") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return None
        for line in lines:
            if b'"commitInfo"' in line:  # maybe as a text in another action
                found = json.loads(line).get("commitInfo")
                if found is not None:
                    return dict(found)
        return {}

    def versions(self) -> list[int]:
        """Returns the versions whose commits are still there, newest first."""
        selector = pyarrow.fs.FileSelector(self._folder, allow_not_found=True)
        names = (each.base_name for each in self._files.get_file_info(selector))
        return sorted((int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name)), reverse=True)

    def commits(self) -> list[tuple[int, dict[str, Any]]]:
        """Each version whose commit is still there, newest first, and what that says."""
        versions = self.versions()
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(self.commit, versions)
            return [
                (version, each) for version, each in zip(versions, found, strict=True) if each is not None
            ]
