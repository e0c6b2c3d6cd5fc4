"""The limit of open files, in a process of its own: this one's is everybody's."""

from __future__ import annotations

import subprocess
import sys

SHOWN = """
import resource
from mqlake.base.open_files import raise_open_files_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
raise_open_files_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    assert done.stdout == "(128, 128)\n"
