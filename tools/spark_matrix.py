"""Which PySpark reads a store with which Python: `python tools/spark_matrix.py [--wheel FILE] [--only 3.12:4.2]`.

    for each Python that is there, and each PySpark of the registry:
    uv venv ─▶ the wheel and that PySpark ─▶ a store ─▶ a batch, a stream, a table ─▶ a row of docs/spark.md

Each environment is made below --dir and deleted afterwards; uv keeps the packages. What does not work is shown with
the reason that the user gets. Exit status 1 unless all that mqlake[spark] allows works.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYSPARKS = ("4.0", "4.1", "4.2", "4.3")
OLDEST = (4, 2)
"""PySpark that mqlake[spark] takes."""
STEPS = ("batch", "stream", "table")
LIMIT_S = 280

TRIAL = """
import json, sys, tempfile
from pathlib import Path

root = Path(tempfile.mkdtemp())
found = {}

def tried(name, work):
    try:
        rows = work()
        found[name] = "yes" if rows == 60 else f"{rows} of 60 rows"
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        found[name] = lines[-1 if "Traceback" in str(error) else 0][:160]

def log():
    return spark.read.format("commitlog").option("topics", "T").load(str(root / "store"))

def batch():
    assert log().where("queueId = 1").count() == 15
    return len({(row.queueId, row.queueOffset, bytes(row.body)) for row in log().collect()})

def stream():
    frame = spark.readStream.format("commitlog").option("topics", "T").load(str(root / "store"))
    options = {"path": str(root / "out"), "checkpointLocation": str(root / "checkpoint")}
    query = frame.writeStream.format("parquet").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.parquet(str(root / "out")).count()

def table():
    import mqlake.lake.tables.config as config
    from mqlake.lake.tables.topic import TopicTable
    from mqlake.spark.jobs.tables import SparkEngine

    lake, topic = config.Lake(str(root / "lake")), config.Topic("T", {"a": str(root / "store")})
    return TopicTable.open(lake, topic).append_new(engine=SparkEngine(spark)).rows

if __name__ == "__main__":
    from mqlake.message import MessageExtBrokerInner
    from mqlake.store import open_store

    with open_store(root / "store", {"mappedFileSizeCommitLog": 1 << 20}) as store:
        for number in range(60):
            message = MessageExtBrokerInner("T", b"body %d" % number, queue_id=number % 4)
            message.born_host = message.store_host = ("127.0.0.1", 1)
            assert store.put_message(message).is_ok
    try:
        import pyspark
        import mqlake.spark

        found["version"] = pyspark.__version__
        spark = mqlake.spark.session(master="local[1]")
    except BaseException as error:
        found["batch"] = found["stream"] = found["table"] = (str(error).splitlines() or [repr(error)])[0][:160]
    else:
        for name, work in (("batch", batch), ("stream", stream), ("table", table)):
            tried(name, work)
        spark.stop()
    Path(sys.argv[1]).write_text(json.dumps(found))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="default: the newest in dist (make wheel)")
    parser.add_argument(
        "--only", action="append", metavar="PYTHON:PYSPARK", help="such as 3.12:4.2; repeatable"
    )
    parser.add_argument("--uv", default=str(ROOT / ".uv" / "bin" / "uv"), help="default: .uv/bin/uv")
    parser.add_argument(
        "--dir", type=Path, help="where environments are made; default: the temporary directory"
    )
    given = parser.parse_args()
    wheel = given.wheel or max((ROOT / "dist").glob("mqlake-*.whl"), key=os.path.getmtime, default=None)
    if wheel is None:
        parser.error("there is no wheel in dist: make wheel")
    pairs = [pair.split(":") for pair in given.only or [f"{a}:{b}" for a in PYTHONS for b in PYSPARKS]]
    missing = {python for python, _ in pairs if interpreter(given.uv, python) is None}
    print(f"| Python | PySpark | {' | '.join(STEPS)} |\n|---|---|{'---|' * len(STEPS)}", flush=True)
    failed = False
    for python, pyspark in pairs:
        if python not in missing:
            found = tried(given.uv, wheel.resolve(), python, pyspark, given.dir)
            row = (python, found.get("version", pyspark), *(found.get(step, "?") for step in STEPS))
            print(f"| {' | '.join(row)} |", flush=True)
            is_promised = tuple(map(int, pyspark.split(".")[:2])) >= OLDEST
            failed |= is_promised and any(found.get(step) != "yes" for step in STEPS)
    for python in sorted(missing):
        print(f"Python {python} is not on this machine: uv python install {python}", file=sys.stderr)
    return int(failed)


def interpreter(uv: str, version: str) -> str | None:
    command = [uv, "python", "find", "--no-project", "--offline", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def tried(uv: str, wheel: Path, python: str, pyspark: str, place: Path | None) -> dict[str, str]:
    """What works in an environment of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))
    }
    with tempfile.TemporaryDirectory(prefix="spark-matrix-", dir=place) as directory:
        venv = Path(directory) / "venv"
        environment |= {
            "VIRTUAL_ENV": str(venv),
            "PATH": f"{venv}/bin:{os.environ['PATH']}",
            "TMPDIR": directory,
        }
        promised = tuple(map(int, pyspark.split(".")[:2])) >= OLDEST
        extras = "spark,iceberg" if promised else "iceberg"
        exact = f"pyspark=={pyspark}" if pyspark.count(".") > 1 else f"pyspark=={pyspark}.*"
        wanted = [f"mqlake[{extras}] @ {wheel.as_uri()}", exact, "pandas>=2.2.3,<3"]
        for command in (
            [uv, "venv", "-q", "--no-project", "--offline", "--python", python, str(venv)],
            [uv, "pip", "install", "-q", "--find-links", str(wheel.parent), *wanted],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["?"])[-1].strip()
                return dict.fromkeys(STEPS, f"not installed: {reason[:120]}")
        result, script = Path(directory) / "found.json", Path(directory) / "trial.py"
        script.write_text(TRIAL)
        with (Path(directory) / "log").open("w+") as log:
            command = [str(venv / "bin" / "python"), str(script), str(result)]
            try:
                subprocess.run(
                    command,
                    env=environment,
                    cwd=directory,
                    stdout=log,
                    stderr=log,
                    timeout=LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return dict.fromkeys(STEPS, f"no answer in {LIMIT_S} s")
        found: dict[str, str] = json.loads(result.read_text()) if result.exists() else {}
        shutil.rmtree(venv)
        return found


if __name__ == "__main__":
    sys.exit(main())
