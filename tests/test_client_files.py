"""mqlake-client has the files that `mqlake.client` needs, and brings what they import. Without it a module that reads
logs, or a package that is large, could come into the client unseen, or a file be in neither wheel or in both.

MQLAKE_CLIENT=1 installs the wheel into an environment of its own, measures it and sends a message with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tools.check_size import uv
from tools.client_files import closure, faults, files

from tests.interop.brokers import MqlakeBroker

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "packaging" / "client"
SIZE_MAX = 5_000_000
IMPORT_S_MAX = 0.15
PROGRAM = """
import sys, time
begun = time.process_time()
import mqlake.client
taken = time.process_time() - begun
from mqlake.client import Message
from mqlake.client.blocking import Producer
with Producer("small", sys.argv[1]) as producer:
    assert producer.send(Message("Small", b"x")).queue_offset >= 0
print(taken)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(place)], cwd=CLIENT, check=True)
    assert len(list(place.glob("*.tar.gz"))) == 1
    [found] = place.glob("*.whl")
    return found


def project(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((path / "pyproject.toml").read_text())["project"]
    return found


def test_nothing_that_it_does_not_bring_is_imported() -> None:
    assert faults(ROOT) == []
    rooms = {name.split(".")[1] for name in closure(ROOT / "src") if "." in name}
    assert rooms == {"adapters", "auth", "base", "client", "errors", "formats", "message", "remoting"}


def test_the_wheel_has_these_files_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(names) == files(ROOT)


def test_both_projects_agree() -> None:
    client, whole = project(CLIENT), project(ROOT)
    for name in ("version", "requires-python", "license"):
        assert client[name] == whole[name]
    extras, others = client["optional-dependencies"], whole["optional-dependencies"]
    assert set(client["dependencies"]) <= set(whole["dependencies"])
    assert set(extras.pop("compression")) <= set(whole["dependencies"])
    extras.pop("airflow")  # it pins what it needs, so tests/adapters/airflow has an environment of its own
    assert {name: others.get(name) for name in extras} == extras
    for name in ("LICENSE", "NOTICE"):
        assert (CLIENT / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.skipif(not os.environ.get("MQLAKE_CLIENT"), reason="on demand: MQLAKE_CLIENT=1")
def test_it_is_small_and_works_alone(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, str(place)], check=True)
    install = [uv(), "pip", "install", "--quiet", "--link-mode=copy", "--python", str(place), str(wheel)]
    subprocess.run(install, check=True)
    size = sum(path.stat().st_size for path in (place / "lib").rglob("*") if path.is_file())
    assert size <= SIZE_MAX
    with MqlakeBroker(tmp_path / "serve") as broker:
        command = [str(place / "bin" / "python"), "-c", PROGRAM, broker.namesrv]
        taken = [
            float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout)
            for _ in range(3)
        ]
    assert min(taken) <= IMPORT_S_MAX
