"""Spark's Java classes, parsed once for all the JVMs that the tests start (the JVM's class data sharing).

    make test ─▶ one JVM runs what tests usually run, and writes ARCHIVE as it ends ─▶ ARGUMENTS names it
    a test    ─▶ spark-submit ─▶ java … @ARGUMENTS … (an empty file until then)

A driver then starts with about half the CPU time. Both files stay in the environment, so the next run has them at
once. A JVM that cannot use the archive, because its class path or version differs, ignores it. All drivers get QUICK,
as a session with short=True does: the full compiler and the parallel collector double what a few queries take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
ARGUMENTS = Path(sys.prefix) / "spark-classes.args"
VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark's own; it counts for drivers, and not for the launcher's JVM, whose class path is another."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For JVMs that live a minute or less; session_helper's QUICK_JAVA, whose import takes a second."""
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def use() -> None:
    """For this process and all that it starts."""
    if not ARGUMENTS.exists():
        ARGUMENTS.touch()
    os.environ.setdefault(VARIABLE, f"@{ARGUMENTS} {QUICK}")
    for of_another in ("SPARK_LAUNCHER_OPTS", "MAVEN_OPTS"):
        os.environ.setdefault(of_another, QUICK)


def start_archiving() -> subprocess.Popen[bytes] | None:
    """A process that makes the archive, unless there is one. It leads a session of its own, and ends by itself."""
    if ARCHIVE.exists():
        return None
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark_classes"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _archive() -> None:
    import tempfile

    from mqlake.spark.session_helper import session

    new = ARCHIVE.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as directory:
        java = f"{QUICK} -Djava.io.tmpdir={directory} -XX:ArchiveClassesAtExit={new} {QUIET}"
        spark = session(master="local[2]", config={"spark.driver.extraJavaOptions": java})
        rows = spark.range(1000).selectExpr("id % 7 AS k", "CAST(id AS STRING) AS s")
        rows.groupBy("k").count().write.parquet(f"{directory}/table")
        spark.read.parquet(f"{directory}/table").orderBy("k").toPandas()
        stream = spark.readStream.format("rate").load().writeStream.format("parquet")
        options = {"path": f"{directory}/stream", "checkpointLocation": f"{directory}/checkpoint"}
        stream.options(**options).trigger(availableNow=True).start().awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()  # the JVM ends by itself, which is when it writes the archive
        gateway.proc.stdin.close()
        gateway.proc.wait()
    os.replace(new, ARCHIVE)
    arguments = ARGUMENTS.with_suffix(f".{os.getpid()}")
    arguments.write_text(f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}\n")
    os.replace(arguments, ARGUMENTS)


if __name__ == "__main__":
    _archive()
