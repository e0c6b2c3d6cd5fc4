"""Checks for what Spark jobs need besides mqlake itself; errors have the command that installs it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqlake.errors import MissingPartError
from mqlake.lake.requirements import require_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
WORKER_IMPORT_S = 60.0
INSTALL_JAVA = "apt-get install openjdk-21-jdk-headless (where there is none, openjdk-17-jdk-headless)"
INSTALL_SPARK = "pip install 'mqlake[spark]'"
INSTALL_CONNECT = "pip install 'mqlake[connect]'"
NOT_FOUND = "[DATA_SOURCE_NOT_FOUND]"
QUICK_PYTHON = "mqlake-python"
"""Name of the script through which session() runs this Python."""
INSTALL_DEMO = "pip install 'mqlake[demo]'"


def require_pyspark() -> None:
    """Raises MissingPartError unless PySpark and pyarrow can be imported."""
    require_modules("pyspark", "pyarrow", command=INSTALL_SPARK)


def require_stream_readers() -> None:
    """Raises MissingPartError unless this PySpark lets a Python source limit a batch (4.2 and newer)."""
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise MissingPartError("PySpark 4.2 or newer", "pip install 'pyspark>=4.2'", why="streams need it")


def is_this_python(command: str) -> bool:
    """True if a command runs the Python that this process runs."""
    path = shutil.which(command) or command
    return os.path.abspath(path) == os.path.abspath(sys.executable) or os.path.basename(path) == QUICK_PYTHON


def require_in_workers(spark: SparkSession) -> None:
    """Raises MissingPartError when the Python that runs a session's sources and workers cannot import mqlake.

    Checks only a Python other than this one, and only on this machine: executors elsewhere, and the server of Spark
    Connect, report it when they are used.
    """
    context = getattr(spark, "_sc", None)
    if context is None or getattr(
        context, "_python_includes", None
    ):  # Connect; or mqlake may be one of the shipped files
        return
    python = shutil.which(context.pythonExec) or context.pythonExec
    if is_this_python(python):
        return
    command = [python, "-c", "import mqlake.spark.sources"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WORKER_IMPORT_S)
    except subprocess.TimeoutExpired:  # a busy machine does not show what is installed
        return
    except OSError as error:
        why = str(error)
    else:
        if asked.returncode == 0:
            return
        why = (asked.stderr.strip().splitlines() or ["it does not run"])[-1]
    raise MissingPartError(
        f"mqlake for Spark's workers, which run on {python},",
        f"{python} -m pip install 'mqlake[spark]' (or set PYSPARK_PYTHON={sys.executable} before Spark starts)",
        why=why,
    )


@contextlib.contextmanager
def found_in_workers(spark: SparkSession) -> Iterator[None]:
    """MissingPartError where Spark does not find a source since the Python that it looks with has no mqlake."""
    try:
        yield
    except Exception as error:
        if NOT_FOUND in str(error):
            require_in_workers(spark)
        raise


def require_java() -> None:
    """Raises MissingPartError unless a Java that Spark runs on is in JAVA_HOME or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, without bin/java" if home else "no java on the PATH"
        raise MissingPartError(f"Java {JAVA_VERSION_MIN} or newer", INSTALL_JAVA, why=where)
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    if found is None or int(found.group(1)) < JAVA_VERSION_MIN:
        first_line = shown.splitlines()[0] if shown else "it does not run"
        raise MissingPartError(f"Java {JAVA_VERSION_MIN} or newer", INSTALL_JAVA, why=f"{java}: {first_line}")
