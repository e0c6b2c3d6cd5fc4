"""Every message once in the table, whichever process of Spark is killed at which point of a run; on demand."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mqlake.lake.tables.config import LakeFile, Topic
from mqlake.lake.tables.topic import RunOptions, TopicTable
from tests.interop.brokers import JavaBroker, MqlakeBroker
from tests.lake.tables.lakes import FORMATS, ORDERS, STORE, expected, lake_of, put, rows_in
from tests.lake.tables.spark_victim import WORKER_POINTS, driver_points
from tests.spark.rocketmq.test_source import SETTINGS, Broker, fill

CASES_A_SOURCE = 9
HANGS_S = 600
FIRST = 120


@dataclass
class Source:
    """What a table is made of, which grows."""

    topic: Topic
    store: Path
    broker_name: str = STORE
    broker: Broker | None = None
    count: int = 0

    def grow(self, count: int) -> None:
        if self.broker is None:
            put(self.store, 2 * count, 2 * self.count)
        else:
            fill(self.broker, ORDERS, count, self.count)
        self.count += count

    def rows(self) -> list[dict[str, Any]]:
        """By the plain decoder, of the broker's files."""
        return [{**row, "brokerName": self.broker_name} for row in expected(self.store)]


@contextlib.contextmanager
def source_of(kind: str, directory: Path) -> Iterator[Source]:
    if kind == "store":
        store = directory / "store"
        yield Source(Topic(ORDERS, {STORE: str(store)}), store)
        return
    made, store, name = {
        "mqlake": (MqlakeBroker, "store/broker-0", "broker-0"),
        "java": (JavaBroker, "store", "java-broker"),
    }[kind]
    with made(directory / kind, SETTINGS) as broker:
        yield Source(Topic(ORDERS, namesrv=broker.namesrv), directory / kind / store, name, broker)


def run(case: dict[str, Any], directory: Path) -> tuple[int, str]:
    """The exit status, and what was said."""
    log = directory / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.lake.tables.spark_victim", json.dumps(case)],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        try:
            status = process.wait(HANGS_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return status, log.read_text()


def cases(format: str, kind: str) -> list[dict[str, Any]]:
    rng = random.Random(f"{format} {kind}")
    of_driver = [
        {"victim": victim, "point": point, "when": when}
        for victim in ("driver", "jvm", "all")
        for point in driver_points(format)
        for when in ("before", "after")
    ]
    of_workers = [
        {"victim": "worker", "point": point, "when": when}
        for point in WORKER_POINTS
        for when in ("before", "after")
    ]
    chosen = [*rng.sample(of_driver, CASES_A_SOURCE - 3), *rng.sample(of_workers, 3)]
    return [{**case, "nth": 1} for case in chosen]


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("kind", ["store", "mqlake", pytest.param("java", marks=pytest.mark.java)])
@pytest.mark.parametrize("format", FORMATS)
def test_processes_killed_at_named_points(tmp_path: Path, format: str, kind: str) -> None:
    with source_of(kind, tmp_path) as source:
        lake = lake_of(tmp_path, format)
        file = tmp_path / "lake.toml"
        LakeFile(lake, {ORDERS: source.topic}).save(str(file))
        source.grow(FIRST)
        killed = 0
        for case in cases(format, kind):
            marker = tmp_path / "killed"
            marker.unlink(missing_ok=True)
            status, said = run({"file": str(file), "marker": str(marker), **case}, tmp_path)
            killed += marker.exists()
            assert status in (0, 1, -signal.SIGKILL), (case, said[-4000:])
            rows = source.rows()
            found = rows_in(TopicTable.open(lake, source.topic).table)
            assert found == rows[: len(found)], case
            source.grow(20)
        assert killed == CASES_A_SOURCE
        status, said = run({"file": str(file)}, tmp_path)
        assert status == 0, said[-4000:]
        table = TopicTable.open(lake, source.topic, RunOptions())
        assert rows_in(table.table) == source.rows()
        assert table.verify(sample=50).is_sound
        print(f"{format}, {kind}: {killed} of {CASES_A_SOURCE} runs were killed")
