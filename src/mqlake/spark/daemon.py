"""The process that Spark forks its Python workers from, with the modules that read logs already imported.

    spark.python.daemon.module=mqlake.spark.daemon         on the driver, or on an own cluster; session() sets it

    JVM ──▶ daemon: imports ──fork──▶ worker: reads            each with the daemon's modules, in the daemon's memory
                          └──fork──▶ worker: reads

PySpark's own daemon imports nothing, so each worker, and each that follows one that stood idle for a minute,
pays for PySpark, pyarrow and the sources. Here they are imported once.

A process with threads must not be forked: numpy's are one for each of OMP_NUM_THREADS, which Spark sets to the cores of
a task; that of pyarrow's allocator, which gives memory back, is configured not to start. Spark uses this setting for
tasks, not for planning on the driver.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def prefer_installed_pyspark() -> None:
    """Takes the archives of PySpark and py4j that Spark puts on the path from it when they lie in an installed
    PySpark: the same modules are there as files, and those of an archive are compiled again in each process."""
    for entry in list(sys.path):
        archive = Path(entry)
        site = Path(*archive.parts[:-4])
        if archive.parts[-4:-1] == ("pyspark", "python", "lib") and str(site) in sys.path:
            package = archive.name.partition("-")[0].removesuffix(".zip")
            if (site / package / "__init__.py").is_file():
                sys.path.remove(entry)


def load() -> None:
    """Imports what workers of all sources need, without starting a thread, and exempts it from garbage collection."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.worker  # noqa: F401

    import mqlake.spark.log.commitlog
    import mqlake.spark.log.counts
    import mqlake.spark.log.queue_and_index
    import mqlake.spark.metaq.source
    import mqlake.spark.rocketmq.source  # noqa: F401
    from mqlake.formats.columns import record_codec

    record_codec()
    gc.collect()
    gc.freeze()  # else each worker's collector would look at all of it after each task, and copy its pages


def main() -> None:
    prefer_installed_pyspark()
    load()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
