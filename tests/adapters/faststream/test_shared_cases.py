"""FastStream's own cases for brokers against RocketBroker, on demand.

    MQLAKE_FASTSTREAM_SOURCE=DIR pytest tests/adapters/faststream/test_shared_cases.py

DIR is a checkout of FastStream at the locked version (git clone --branch 0.7.8 …): its cases are in its repository
alone. They use packages that the environment of the development does not have; these are installed beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.check_size import uv

from tests.interop.brokers import Broker

SOURCE = os.environ.get("MQLAKE_FASTSTREAM_SOURCE", "")
CASES = Path(__file__).with_name("shared_cases.py")
PACKAGES = ("pytest-asyncio", "pytest-rerunfailures", "dirty-equals", "typer", "freezegun", "httpx")


@pytest.mark.skipif(not SOURCE, reason="on demand: MQLAKE_FASTSTREAM_SOURCE names a checkout of FastStream")
def test_all_of_them(broker: Broker, tmp_path: Path) -> None:
    shutil.copytree(Path(SOURCE) / "tests", tmp_path / "tests")
    shutil.copy(Path(SOURCE) / "pyproject.toml", tmp_path)
    package = tmp_path / "tests" / "brokers" / "rocketmq"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(CASES, package / "test_rocketmq.py")
    beside = tmp_path / "beside"
    install = [uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(beside)]
    subprocess.run([*install, *PACKAGES], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=300", str(package)],
        cwd=tmp_path,
        env={**os.environ, "MQLAKE_NAMESRV": broker.namesrv, "PYTHONPATH": str(beside)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
