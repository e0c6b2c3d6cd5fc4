"""Programs that Go installs from their source."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.parts import needed


def installed(program: str, place: Path) -> Path:
    """Installs a program, named as package@version, into `place`; skips the test where that is not possible."""
    name = program.partition("@")[0].rpartition("/")[2]
    done = subprocess.run(
        [needed("go"), "install", program],
        cwd=place,
        env=os.environ | {"GOBIN": str(place), "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{name} cannot be installed: {done.stderr[-300:]}")
    return place / name
