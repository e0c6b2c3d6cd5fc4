"""Runs Spark tests with other versions of PySpark than the locked one: `python tools/spark_versions.py 4.2.0 4.3.0`.

    .venv                        all else, as locked
    .venv-spark/4.2.0            an environment with that PySpark, which takes the rest from .venv

Each version is installed once and kept; `--all` runs every test that starts Spark, otherwise those of SMOKE. Exit
status 1 when tests fail with any version.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".venv-spark"
VERSIONS = ("4.2.0", "4.3.0")
"""The oldest that mqlake[spark] takes, which is the newest that Delta for Spark takes; and the newest."""
SMOKE = (
    "tests/lake",
    "tests/spark/log",
    "tests/spark/test_session.py",
    "tests/spark/test_daemon.py",
    "tests/spark/test_error_messages.py",
    "tests/spark/jobs/test_export.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--all", action="store_true", help="all tests that start Spark")
    given = parser.parse_args()
    failed = []
    for version in given.versions:
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            parser.error(f"{version!r}: a version such as {VERSIONS[0]} is needed")
        python = environment(version)
        print(f"PySpark {version}: testing", flush=True)
        paths = ["tests/spark"] if given.all else list(SMOKE)
        command = [str(python), "-m", "pytest", "-q", "-m", "spark", "-p", "no:cacheprovider", *paths]
        if subprocess.run(command, cwd=ROOT, env=cleaned(), check=False).returncode:
            failed.append(version)
    for version in given.versions:
        print(f"PySpark {version}: {'tests failed' if version in failed else 'passed'}")
    return 1 if failed else 0


def environment(version: str) -> Path:
    """The Python of an environment that has this PySpark, made when it is not there."""
    place = ENVIRONMENTS / version
    python = place / "bin" / "python"
    ready = place / ".ready"
    if not ready.exists():
        print(f"PySpark {version}: installing into {place.relative_to(ROOT)}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", f"pyspark=={version}"], check=True, env=cleaned()
        )
        sites = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        # after its own packages, so that its PySpark comes first; with the .pth files that lie there
        rest = sysconfig.get_path("purelib")
        (sites / "rest.pth").write_text(f"import site; site.addsitedir({rest!r})\n")
        found = subprocess.run(
            [python, "-c", "import pyspark; print(pyspark.__version__)"],
            check=True,
            capture_output=True,
            text=True,
            env=cleaned(),
        ).stdout.strip()
        if found != version:
            raise SystemExit(f"{place} has PySpark {found}, not {version}")
        ready.touch()
    return python


def cleaned() -> dict[str, str]:
    """Without what would lead to another Python or Spark."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "PYTHONPATH", "VIRTUAL_ENV")
    }


if __name__ == "__main__":
    sys.exit(main())
