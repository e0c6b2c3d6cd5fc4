"""Progress: the callback that long work reports to.

Recovery, verify, rebuild, dumps, uploads and tables call it while they work; the command line draws a bar of it
(`cli.output`), and a library caller that gives none gets `no_progress`.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called now and then with (done, total), in bytes unless the docstring says messages; a total of 0 is unknown."""


def no_progress(done: int, total: int) -> None:
    """Drops the report."""
