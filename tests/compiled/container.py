"""A place like a container's: every file system read-only but for given directories, no home, no TMPDIR."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import mqlake

SOURCE = Path(mqlake.__file__).parent
NO_HOME = "/nonexistent"


@contextmanager
def installation() -> Iterator[Path]:
    """A copy of the package to put on the path, without machine code. Not below pytest's directory, which only its
    owner may enter."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(
            SOURCE, Path(directory, "mqlake"), ignore=shutil.ignore_patterns("__pycache__", "*.nb?")
        )
        yield Path(directory)


def _environment(site: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Without what the caller's environment says of homes, temporary directories and caches."""
    gone = ("HOME", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return {**kept, "HOME": NO_HOME, "PYTHONPATH": str(site), "MQLAKE_NO_JIT": "0", **more}


def read_only(
    site: Path, code: str, *, writable: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `site` on the path, where nothing but `writable` can be written."""
    command = [sys.executable, "-c", code]
    env = _environment(site, environment)
    if os.getuid() == 0:
        keep = f"mount --bind '{writable}' '{writable}'; " if writable else ""
        mounts = f"set -e; mount --make-rprivate /; {keep}for d in / /dev/shm; do mount -o remount,bind,ro $d; done; "
        command = ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh", *command]
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
    # others cannot mount: the site is made read-only, and Python is given no temporary directory
    temporary = environment.get("TMPDIR", NO_HOME)
    command[2] = f"import tempfile; tempfile.tempdir = {temporary!r}\n{code}"
    with _unwritable(site):
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)


@contextmanager
def _unwritable(site: Path) -> Iterator[None]:
    directories = [site, *(path for path in site.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        yield
    finally:
        for directory in directories:
            directory.chmod(stat.S_IRWXU)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    if done.returncode:
        pytest.fail(done.stderr)
    return done.stdout.splitlines()
