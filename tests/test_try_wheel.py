"""The wheel in a clean environment, as a newcomer gets it: of this Python always, of the others on demand.

MQLAKE_PYTHONS="/opt/python3.12 /opt/python3.14" pytest tests/test_try_wheel.py tries these interpreters, each with the
extras of the console, access control and gRPC; MQLAKE_UVX=1 tries uvx where there is nothing but Python.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tools.check_size import build_wheels, uv

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = os.environ.get("MQLAKE_PYTHONS", "").split()
STEPS = [
    "install",
    "mqlake --help",
    "man page and completions",
    "completion",
    "serve, produce, consume",
    "pytest plugin",
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    build_wheels(place)
    [found] = place.glob("mqlake-*.whl")
    return found


@pytest.fixture(scope="module")
def constraint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions, without their hashes: with these pip would want one for the wheel too."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    kept = [line.removesuffix(" \\") for line in lines if not line.startswith((" ", "#"))]
    found = tmp_path_factory.mktemp("lock") / "constraints.txt"
    found.write_text("\n".join(kept) + "\n")
    return found


def tried(python: str, wheel: Path, constraint: Path, *options: str) -> list[str]:
    """The steps that passed."""
    command = [python, str(ROOT / "tools" / "try_wheel.py"), str(wheel), "--constraint", str(constraint)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^ok    (.*?): ", done.stdout, re.MULTILINE)


@pytest.mark.nightly
def test_a_clean_environment_has_all_that_the_documents_begin_with(wheel: Path, constraint: Path) -> None:
    assert tried(sys.executable, wheel, constraint, "--uv", uv()) == STEPS


@pytest.mark.skipif(not PYTHONS, reason="on demand: MQLAKE_PYTHONS names the interpreters")
@pytest.mark.parametrize("python", PYTHONS)
def test_so_has_that_of_each_python(python: str, wheel: Path, constraint: Path) -> None:
    assert tried(python, wheel, constraint, "--extras", "console,auth,grpc") == [*STEPS, "console"]


@pytest.mark.skipif(not os.environ.get("MQLAKE_UVX"), reason="on demand: MQLAKE_UVX=1")
def test_uvx_serves_where_there_is_nothing_but_python(wheel: Path, tmp_path: Path) -> None:
    """No Java, no compiler, no cache: what it downloads, installs and starts takes less than ten seconds of CPU."""
    path, home = tmp_path / "bin", tmp_path / "home"
    path.mkdir(), home.mkdir()
    commands = [shutil.which(name) for name in ("sh", "realpath", "dirname")]  # the scripts of uv need these
    for command in [*commands, uv(), str(Path(uv()).with_name("uvx"))]:
        assert command
        (path / Path(command).name).symlink_to(command)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("SSL_", "UV_"))}
    environment = kept | {"PATH": str(path), "HOME": str(home), "UV_CACHE_DIR": str(home / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["uvx", "--python", os.path.realpath(sys.executable), "--find-links", str(wheel.parent)]
    command += ["--from", str(wheel), "mqlake", "serve"]
    with subprocess.Popen(
        [*command, "--ephemeral", "--json"], cwd=home, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        server.send_signal(signal.SIGINT)
    assert server.returncode == 0 and json.loads(said)["brokers"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_what_fails_is_said_with_what_the_program_said(tmp_path: Path) -> None:
    broken = tmp_path / "mqlake-0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    command = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), str(broken), "--uv", uv()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "failed with" in done.stderr and broken.name in done.stderr


def test_an_older_build_of_the_same_version_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    """Of mqlake-client, which uv finds beside the wheel: its files did not fit those of the wheel that was tried."""
    asked, uv_like = tmp_path / "asked", tmp_path / "uv"
    uv_like.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ "$1" != pip ]\n')
    uv_like.chmod(0o755)
    command = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), "mqlake-1-py3-none-any.whl"]
    done = subprocess.run([*command, "--uv", str(uv_like)], capture_output=True, check=False)
    assert done.returncode
    assert "--refresh-package mqlake-client" in asked.read_text().splitlines()[-1]
