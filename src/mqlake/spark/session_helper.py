"""A local Spark session for mqlake's jobs: quiet, on the loopback address, leaving no files.

The standard error of the JVM and the Python workers goes to a log file. `job_progress` shows the progress of a job,
as Spark reports it, on one line.

Spark puts the archives of PySpark first on the path of each Python process that it starts. Python compiles the modules
of an archive again in every process, half a second of processor time. Where the archives lie in an installed PySpark,
Spark gets a script that takes them off the path: queries plan faster, and the process of a stream, which Spark gives
10 s to start, is ready earlier. The workers have this from `mqlake.spark.daemon`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mqlake.base.work_directory import work_directory
from mqlake.spark.requirements import QUICK_PYTHON, is_this_python
from mqlake.spark.sources import register

SOCKETS = "spark.python.unix.domain.socket.enabled"
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    SOCKETS: "true",
    "spark.python.daemon.module": "mqlake.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.parquet.compression.codec": "zstd",
}

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For jobs of a minute or less: the full compiler would not pay for itself."""

PROGRESS_INTERVAL_S = 0.2

WORK_PREFIX = "mqlake-spark-session-"
SOCKET_PATH_MAX = 100
"""Length of a Unix socket's path, which may have 103 bytes on some systems."""
SOCKET_NAME_LENGTH = len("/.00000000-0000-0000-0000-000000000000.sock")


def session(
    app_name: str = "mqlake",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    log_path: str | None = None,
    short: bool = False,
) -> SparkSession:
    """A session with CONFIG, overridden by `config`, and mqlake's sources registered; `short`: for a minute's work.

    Spark's log is appended to the file `log_path`, by default one among its working files. Those are deleted when this
    process ends, or, if it is killed, when the next one starts. A process has one session: a second call returns the
    first one, with `config` applied to it.
    """
    if SparkSession.getActiveSession() is not None:
        running: SparkSession = _configured(SparkSession.builder, config or {}).getOrCreate()
        register(running)
        return running
    work = work_directory(tempfile.gettempdir(), WORK_PREFIX)
    java = f'"-Djava.io.tmpdir={work}" {QUICK_JAVA if short else ""}'
    settings = {
        **CONFIG,
        "spark.local.dir": os.path.join(work, "local"),
        "spark.sql.warehouse.dir": os.path.join(work, "warehouse"),
        "spark.driver.extraJavaOptions": java.strip(),
        **({} if len(work) + SOCKET_NAME_LENGTH <= SOCKET_PATH_MAX else {SOCKETS: "false"}),
        **(config or {}),
    }
    # it logs what the error itself says
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 on the PATH
    builder = _configured(SparkSession.builder.master(master).appName(app_name), settings)
    with _stderr_to(log_path or os.path.join(work, "spark.log")):
        spark: SparkSession = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    if is_this_python(spark.sparkContext.pythonExec):
        spark.sparkContext.pythonExec = quick_python(work)
    register(spark)
    return spark


def quick_python(directory: str) -> str:
    """A script in `directory` that runs this Python without Spark's archives of PySpark first on its path.

    This Python itself where the directory's file system lets nothing be executed.
    """
    library = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [*library.glob("pyspark.zip"), *library.glob("py4j-*.zip")]  # in Spark's order
    path = os.path.join(directory, QUICK_PYTHON)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")
        for archive in archives:
            file.write(f"PYTHONPATH=${{PYTHONPATH#{shlex.quote(f'{archive}:')}}}\n")
        file.write(f'exec {shlex.quote(sys.executable)} "$@"\n')
    os.chmod(path, 0o700)
    return path if os.access(path, os.X_OK) else sys.executable


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Redirects standard error while the JVM starts: it and its children inherit that. A failure quotes the file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(path, "ab") as log:
        began = log.tell()
        os.dup2(log.fileno(), 2)
    try:
        yield
    except Exception as error:
        with open(path, "rb") as log:
            log.seek(began)
            error.add_note(log.read().decode(errors="replace")[-2000:])
        raise
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def job_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """A line on a terminal while the body runs jobs: tasks done, of those known so far."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    tracker = spark.sparkContext.statusTracker()
    stopped = threading.Event()
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task(what, total=None)

        def watch() -> None:
            stages: dict[int, tuple[int, int]] = {}
            while not stopped.wait(PROGRESS_INTERVAL_S):
                active = set(tracker.getActiveStageIds())
                for stage_id in active:
                    stage = tracker.getStageInfo(stage_id)
                    if stage is not None:
                        stages[stage_id] = (stage.numCompletedTasks, stage.numTasks)
                for stage_id in stages.keys() - active:
                    stages[stage_id] = (stages[stage_id][1],) * 2
                if stages:
                    done, total = (sum(column) for column in zip(*stages.values(), strict=True))
                    bar.update(line, completed=done, total=total)

        watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stopped.set()
            watcher.join()
