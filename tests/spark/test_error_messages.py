"""What Spark says of an error of a source: the reason, and no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from mqlake.errors import ConfigError
from mqlake.spark.error_messages import (
    HIDE_TRACEBACK,
    WORKER_LATE,
    reason,
    short_errors,
    when_workers_start,
)
from tests.spark.stores import copy_store, log_files, overwrite
from tests.spark.streams import catch_up


@short_errors
class Source:
    def rows(self, error: Exception | None) -> Iterator[int]:
        yield 1
        if error is not None:
            raise error

    def schema(self, error: Exception) -> None:
        raise error

    def _own(self, error: Exception) -> None:
        raise error


def call(method: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        list(getattr(Source(), method)(error))


def test_what_is_hidden_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_TRACEBACK, "")
    expected, unforeseen = ConfigError("no"), KeyError("a bug")
    call("schema", expected)  # not in a worker
    monkeypatch.setitem(sys.modules, "pyspark.worker_util", sys)
    call("schema", unforeseen)
    call("_own", expected)
    assert list(Source().rows(None)) == [1]
    monkeypatch.setenv("MQLAKE_DEBUG", "1")
    call("schema", expected)
    assert not os.environ[HIDE_TRACEBACK]
    monkeypatch.delenv("MQLAKE_DEBUG")
    for method in ("schema", "rows"):
        monkeypatch.setenv(HIDE_TRACEBACK, "")
        call(method, FileNotFoundError("gone"))
        assert os.environ[HIDE_TRACEBACK]


def test_workers_that_do_not_start_are_asked_for_again() -> None:
    late = PySparkException(
        "Caused by: org.apache.spark.SparkException: Python worker failed to connect back."
    )
    answers: list[Exception | int] = [late, late, 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert when_workers_start(ask) == 7
    answers[:] = [late] * 4
    with pytest.raises(PySparkException):
        when_workers_start(ask)
    assert len(answers) == 1
    answers[:] = [PySparkException("another"), 7]
    with pytest.raises(PySparkException, match="another"):
        when_workers_start(ask)
    assert "machine is too busy" in reason(str(late))
    assert "pip install 'mqlake[spark]' there" in reason("E: ModuleNotFoundError: No module named 'mqlake'")


@pytest.mark.spark
def test_a_task_whose_worker_is_late_is_run_again(spark: SparkSession) -> None:
    """The error of a task of a batch is not one that PySpark converts."""
    asked: list[int] = []

    def late(_: int) -> int:
        raise RuntimeError(WORKER_LATE)

    def ask() -> list[int]:
        asked.append(1)
        found = spark.sparkContext.parallelize([len(asked)], 1)
        return (found if len(asked) > 1 else found.map(late)).collect()

    assert when_workers_start(ask) == [2]


@pytest.mark.spark
def test_in_spark(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    begins = r"^\[PYTHON_DATA_SOURCE_ERROR\] Failed to [a-zA-Z ]+: mqlake\.errors\.\w+: "
    with pytest.raises(AnalysisException, match=begins + "/nowhere: there is no such directory"):
        spark.read.format("commitlog").load("/nowhere")
    with pytest.raises(AnalysisException, match=begins + "unknown option 'topic'; did you mean 'topics'?"):
        spark.read.format("consumequeue").option("topic", "T").load(str(every_kind))
    with pytest.raises(AnalysisException, match=begins + "option 'endingOffsets' is 99999999, but the log"):
        spark.read.format("commitlog").option("endingOffsets", "99999999").load(str(every_kind)).count()
    root = copy_store(every_kind, tmp_path / "damaged")
    overwrite(log_files(root)[0], 4, b"\0\0\0\7")
    with pytest.raises(PySparkException, match=r"corrupt at byte 0: magic 0x00000007") as failed:
        spark.read.format("commitlog").load(str(root)).count()
    assert "Traceback" not in str(failed.value)


@pytest.mark.spark
def test_a_stream_that_cannot_be(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    """Spark shows no error of making a reader of a stream, but one of asking it."""
    reader = spark.readStream.format("commitlog").option("endingOffsets", "5")
    with pytest.raises(StreamingQueryException, match="'endingOffsets' is for a batch; a stream has no end"):
        catch_up(
            lambda: (
                reader.load(str(every_kind))
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path))
            )
        )
