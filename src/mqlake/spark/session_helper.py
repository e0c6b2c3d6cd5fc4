"""A local Spark session as mqlake's jobs want it: quiet, on the loopback address, leaving nothing behind.

What the JVM and the Python workers write to their standard error goes to a log file; how far a job has come
is asked of Spark and shown by `job_progress` as one line.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import glob
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mqlake.spark.sources import register

SOCKETS = "spark.python.unix.domain.socket.enabled"
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    SOCKETS: "true",
    "spark.python.daemon.module": "mqlake.spark.daemon",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.parquet.compression.codec": "zstd",
}

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For jobs of a minute or less, most of which a JVM would spend on compiling what is about to end."""

PROGRESS_INTERVAL_S = 0.2

WORK_PREFIX = "mqlake-spark-session-"
SOCKET_PATH_MAX = 100
"""Of a Unix socket's path, which may have 103 bytes on some systems."""
SOCKET_NAME_LENGTH = len("/.00000000-0000-0000-0000-000000000000.sock")


def session(
    app_name: str = "mqlake",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    log_path: str | None = None,
    short: bool = False,
) -> SparkSession:
    """A session with CONFIG (and `config` over it) and mqlake's sources registered; `short` for a minute's work.

    What Spark has to say goes to the end of the file `log_path`, by default one among its working files, which
    are deleted when this process ends, or if it is killed when the next one begins. One session lives in a process:
    a second call gives the first again, with `config` over what it has.
    """
    if SparkSession.getActiveSession() is not None:
        running: SparkSession = _configured(SparkSession.builder, config or {}).getOrCreate()
        register(running)
        return running
    work = work_directory(tempfile.gettempdir())
    java = f'"-Djava.io.tmpdir={work}" {QUICK_JAVA if short else ""}'
    settings = {
        **CONFIG,
        "spark.local.dir": os.path.join(work, "local"),
        "spark.sql.warehouse.dir": os.path.join(work, "warehouse"),
        "spark.driver.extraJavaOptions": java.strip(),
        **({} if len(work) + SOCKET_NAME_LENGTH <= SOCKET_PATH_MAX else {SOCKETS: "false"}),
        **(config or {}),
    }
    # what it says of an error is in the error
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 on the PATH
    builder = _configured(SparkSession.builder.master(master).appName(app_name), settings)
    with _stderr_to(log_path or os.path.join(work, "spark.log")):
        spark: SparkSession = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def work_directory(parent: str) -> str:
    """A new directory that goes when this process ends, as do those of processes that were killed.

    Whoever lives has its directory locked.
    """
    for left in glob.glob(os.path.join(glob.escape(parent), f"{WORK_PREFIX}*")):
        with contextlib.suppress(OSError):  # another user's
            if (fd := _locked(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(fd)
    while True:
        path = tempfile.mkdtemp(prefix=WORK_PREFIX, dir=parent)
        fd = _locked(path)
        if fd is not None and os.path.isdir(path):  # else another process took it for one that was left
            atexit.register(shutil.rmtree, path, ignore_errors=True)
            return path


def _locked(directory: str) -> int | None:
    """A descriptor that holds the lock of a directory until it is closed; None when another has it, or it is gone."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """While the JVM is started: it and its children keep what they inherit. A failure quotes what was written."""
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
    """One line on a terminal while the body runs jobs: tasks done, of those known so far."""
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
