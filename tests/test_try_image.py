"""The image that deploy/Dockerfile makes, in a real container, on demand: it needs docker or podman, and a base image.

MQLAKE_CONTAINER_ENGINE=podman pytest tests/test_try_image.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "try_image.py"
ENGINE = os.environ.get("MQLAKE_CONTAINER_ENGINE", "")


@pytest.mark.skipif(not ENGINE, reason="on demand: MQLAKE_CONTAINER_ENGINE is docker or podman")
def test_the_image_runs_as_the_documents_say() -> None:
    command = [sys.executable, str(TOOL), "--engine", ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^ok    (.*?):", done.stdout, re.MULTILINE)
    assert passed[:5] == ["build", "size", "start", "user", "writes to"] and passed[-1] == "after the kill"


def test_an_engine_that_fails_is_said_with_what_it_said(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho no such base image >&2\nexit 3\n")
    engine.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(TOOL), "--engine", str(engine)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "build" in done.stderr and "no such base image" in done.stderr
