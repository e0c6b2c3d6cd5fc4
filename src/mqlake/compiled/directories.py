"""Where machine code is kept between processes, found without numba.

NUMBA_CACHE_DIR   __pycache__ beside the source   ~/.cache/numba   /tmp/mqlake-UID
      └──────────────────┴────── looked at in this order ──┴──────────────┘
             read from each that is there, written to the first that can be written, else to none
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterator

OWNER_ONLY = 0o700
_TEMPORARY = {os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")} | {
    "/tmp",
    "/var/tmp",
    "/usr/tmp",
}


def directories(source: str) -> Iterator[str]:
    """Where the machine code of functions of the file `source` may be, in the order of preference."""
    beside = os.path.dirname(os.path.abspath(source))
    package = f"{os.path.basename(beside)}_{hashlib.sha1(beside.encode()).hexdigest()}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield os.path.join(os.path.abspath(named), package)
    yield os.path.join(beside, "__pycache__")
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(user):  # a user without a home directory has a `~` that stays one
        yield os.path.join(user, "numba", package)
    if temporary := temporary_directory():
        yield os.path.join(temporary, package)


@functools.cache
def temporary_directory() -> str:
    """A directory of this user alone: the entries are code, and anyone may create files in /tmp. Empty without one."""
    import tempfile

    try:
        place = tempfile.gettempdir()
        if (
            place == os.getcwd() and place not in _TEMPORARY
        ):  # Python's last resort: a store's directory, perhaps
            return ""
        path = os.path.join(place, f"mqlake-{os.getuid()}")
        try:
            os.mkdir(path, OWNER_ONLY)
        except FileExistsError:
            pass
        found = os.lstat(path)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return path if is_own and stat.S_IMODE(found.st_mode) == OWNER_ONLY else ""
    except OSError:
        return ""


@functools.cache
def is_writable(directory: str) -> bool:
    """True if files can be made there; it is made itself when it is missing."""
    import tempfile

    try:
        os.makedirs(directory, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def has_any(source: str) -> bool:
    """True if the machine code of `source` can be kept, or some was brought along."""
    return any(is_writable(place) or _has_entries(place) for place in directories(source))


def _has_entries(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.name.endswith(".nbi") for entry in entries)
    except OSError:
        return False
