"""What the Spark room needs besides mqlake itself, and the line that installs it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess

from mqlake.errors import MissingPartError

JAVA_VERSION_MIN = 17
INSTALL_JAVA = "apt-get install openjdk-17-jdk-headless"
INSTALL_SPARK = "pip install 'mqlake[spark]'"
INSTALL_CONNECT = "pip install 'mqlake[connect]'"
INSTALL_DEMO = "pip install 'mqlake[demo]'"


def require_pyspark() -> None:
    """Raises MissingPartError unless PySpark and pyarrow can be imported."""
    require_modules("pyspark", "pyarrow", command=INSTALL_SPARK)


def require_stream_readers() -> None:
    """Raises MissingPartError unless this PySpark lets a Python source limit a batch (4.2 and newer)."""
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise MissingPartError("PySpark 4.2 or newer", "pip install 'pyspark>=4.2'", why="streams need it")


def require_modules(*names: str, command: str) -> None:
    """Raises MissingPartError for the first of these packages that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingPartError(f"the Python package {name}", command)


def require_java() -> None:
    """Raises MissingPartError unless a Java that Spark runs on is in JAVA_HOME or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, without bin/java" if home else "no java on the PATH"
        raise MissingPartError(f"Java {JAVA_VERSION_MIN}", INSTALL_JAVA, why=where)
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    if found is None or int(found.group(1)) < JAVA_VERSION_MIN:
        first_line = shown.splitlines()[0] if shown else "it does not run"
        raise MissingPartError(f"Java {JAVA_VERSION_MIN} or newer", INSTALL_JAVA, why=f"{java}: {first_line}")
