"""Nothing stays: neither of a process that ends, nor of one that is killed, once the next one starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DIRECTORY = """
from mqlake.base.work_directory import work_directory
print(work_directory({!r}, "own-"), flush=True)
input()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a work directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", DIRECTORY.format(str(parent))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_work_directories(tmp_path: Path) -> None:
    foreign = tmp_path / "of-another-kind"
    foreign.mkdir()
    killed, left = holder(tmp_path)
    (left / "file").write_text("x")
    alive, used = holder(tmp_path)
    assert left.exists() and used.exists()
    killed.kill()
    killed.communicate()
    last, directory = holder(tmp_path)
    assert set(tmp_path.iterdir()) == {foreign, used, directory}
    for process in (alive, last):
        process.communicate("\n")
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == [foreign]
