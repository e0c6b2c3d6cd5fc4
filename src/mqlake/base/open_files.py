"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_open_files_limit() -> None:
    """Raises the limit of open files to the hard limit, as JVMs do: the soft limit is often 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # then it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
