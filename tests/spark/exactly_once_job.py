"""A stream into a topic, exactly once, whose driver dies: `python -m tests.spark.exactly_once_job JOB`.

JOB is a `Job` as JSON. Every line of the files in `source` becomes a message, one file an epoch; the number of the line
modulo 3 is its sharding key. While the file `die` is there, the whole session of the driver is killed at `step` (see
`dying`) of an epoch after the first, and the file is removed, so that it happens once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import mqlake.spark
from mqlake.client.produce.transaction_producer import LocalTransactionState
from mqlake.spark.rocketmq.epochs import Decision, Epochs
from mqlake.spark.rocketmq.options import WriteOptions
from mqlake.spark.rocketmq.sink import RocketMQExactlyOnceWriter
from mqlake.spark.rocketmq.source import RocketMQDataSource
from mqlake.spark.session_helper import QUICK_JAVA


def dying(step: str, die: Callable[[], None]) -> type[Epochs]:
    """Epochs of a driver that dies at a step: before the decision, after the decision, after N ends, before it is
    done, after it is done."""

    class Dying(Epochs):
        ended = 0

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            write = self.file.write

            def write_or_die(decision: Decision) -> None:
                if step == ("before it is done" if decision.done else "before the decision"):
                    die()
                write(decision)
                if step == ("after it is done" if decision.done else "after the decision"):
                    die()

            self.file.write = write_or_die  # type: ignore[method-assign]

        async def _end_one(self, sent: Any, state: LocalTransactionState) -> None:
            if step == f"after {self.ended} ends":
                die()
            self.ended += 1
            await super()._end_one(sent, state)

    return Dying


@dataclass(frozen=True)
class Job:
    namesrv: str
    topic: str
    source: str
    checkpoint: str
    scratch: str
    step: str

    @property
    def die(self) -> Path:
        return Path(self.scratch) / "die"

    @property
    def driver(self) -> Path:
        """Holds the driver's process id."""
        return Path(self.scratch) / "driver"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class DyingWriter(RocketMQExactlyOnceWriter):
    def __init__(self, options: WriteOptions, schema: StructType, job: Job) -> None:
        super().__init__(options, schema)
        self._job = job
        self._epoch = 0

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._epoch = batchId
        super().commit(messages, batchId)

    def _epochs(self) -> Epochs:
        assert self._options.checkpoint is not None

        def die() -> None:
            if self._epoch > 0 and self._job.die.exists():
                self._job.die.unlink()
                os.killpg(int(self._job.driver.read_text()), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        return dying(self._job.step, die)(self._options.cluster, self._options.checkpoint)


class DyingDataSource(RocketMQDataSource):
    """With one option more: `job`."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        given = dict(self.options)
        job = Job(**json.loads(given.pop("job")))
        return DyingWriter(WriteOptions.parse(given, stream=True), schema, job)


def main(job: Job) -> None:
    job.driver.write_text(str(os.getpid()))
    java = f"{QUICK_JAVA} -Djava.io.tmpdir={job.scratch}"
    config = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java}
    spark = mqlake.spark.session("exactly once", master="local[2]", short=True, config=config)
    spark.dataSource.register(DyingDataSource)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(job.source)
    messages = lines.select(
        F.col("value").alias("body"), (F.col("value").cast("int") % 3).cast("string").alias("shardingKey")
    )
    query = (
        messages.writeStream.format("dying")
        .options(namesrvAddr=job.namesrv, topic=job.topic, delivery="exactlyOnce", job=job.to_json())
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
