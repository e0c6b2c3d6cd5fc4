"""The sink with delivery=exactlyOnce: whoever dies wherever, every row is in its queue once, and in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

import mqlake.spark.rocketmq.epochs as epochs_module
from mqlake.client.blocking import Admin, PullConsumer
from mqlake.errors import ConfigError, FormatError, StoreCorruptError
from mqlake.lake.live.cluster import Queue
from mqlake.spark.rocketmq.epochs import Decision, DecisionFile, Half, QueueHalves, together
from mqlake.spark.rocketmq.sink import RocketMQExactlyOnceWriter, SentHalves
from mqlake.spark.rocketmq.source import RocketMQDataSource
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.spark.exactly_once_job import Job, dying
from tests.waiting import until

HALVES = st.builds(Half, st.integers(0, 2**62), st.integers(0, 2**62), st.text(max_size=20))
QUEUES = st.builds(Queue, st.text(min_size=1), st.text(min_size=1), st.integers(0, 100))
EPOCH = st.lists(
    st.builds(QueueHalves, QUEUES, st.integers(0, 2**62), st.lists(HALVES, max_size=5)), max_size=5
)
SCHEMA = StructType([StructField("body", StringType()), StructField("shardingKey", StringType())])


class Death(BaseException):
    """The driver's process is gone."""


def die() -> None:
    raise Death


@pytest.fixture(scope="module", params=["mqlake", pytest.param("java", marks=pytest.mark.java)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    kind = {"mqlake": MqlakeBroker, "java": JavaBroker}[request.param]
    with kind(
        tmp_path_factory.mktemp("broker") / request.param, {"waitTimeMillsInSendQueue": 30_000}
    ) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"T-{uuid.uuid4().hex[:8]}"
    with Admin(broker.namesrv) as admin:
        admin.create_topic(name, queues=3)
    return name


@pytest.fixture(autouse=True)
def no_request_is_under_way_when_these_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs_module, "SETTLE_S", 0.0)


def options(broker: Broker, topic: str, checkpoint: Path) -> dict[str, str]:
    return {
        "namesrvAddr": broker.namesrv,
        "topic": topic,
        "delivery": "exactlyOnce",
        "checkpointLocation": str(checkpoint),
    }


def writer(broker: Broker, topic: str, checkpoint: Path) -> RocketMQExactlyOnceWriter:
    found = RocketMQDataSource(options(broker, topic, checkpoint)).streamWriter(SCHEMA, overwrite=False)
    assert isinstance(found, RocketMQExactlyOnceWriter)
    return found


def attempt(sink: RocketMQExactlyOnceWriter, epoch: int) -> list[SentHalves]:
    """What two tasks send of an epoch: rows `epoch.number` of three sharding keys."""
    sent = []
    for task in range(2):
        rows = [
            {"body": f"{epoch}.{number}", "shardingKey": f"key-{number % 3}"}
            for number in range(6 * task, 6 * task + 6)
        ]
        done = sink.write(iter([pa.RecordBatch.from_pylist(rows[:2]), pa.RecordBatch.from_pylist(rows[2:])]))
        assert isinstance(done, SentHalves)
        sent.append(done)
    return sent


def rows_of(broker: Broker, topic: str) -> dict[str, list[str]]:
    """Bodies by sharding key, in the order of their queue; what was committed is dispatched a little later."""
    found: dict[str, list[str]] = defaultdict(list)
    with PullConsumer(f"all-{uuid.uuid4().hex[:8]}", broker.namesrv) as consumer:
        for queue in consumer.fetch_message_queues(topic):
            offset, end = consumer.begin_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset)
                for message in pulled.messages():
                    found[message.properties["__SHARDINGKEY"]].append(message.body.decode())
                offset = pulled.next_begin_offset
    return dict(found)


def comes_to(broker: Broker, topic: str, expected: dict[str, list[str]]) -> None:
    """The topic has these rows, and no others."""
    until(lambda: sum(map(len, rows_of(broker, topic).values())) >= sum(map(len, expected.values())))
    assert rows_of(broker, topic) == expected


def expected(*epochs: int) -> dict[str, list[str]]:
    return {
        f"key-{key}": [f"{epoch}.{number}" for epoch in epochs for number in range(key, 12, 3)]
        for key in range(3)
    }


# ---------------------------------------------------------------------- deaths


STEPS = (
    "before the decision",
    "after the decision",
    "after 1 ends",
    "after 7 ends",
    "before it is done",
    "after it is done",
)


@pytest.mark.parametrize("step", STEPS)
def test_an_epoch_whose_driver_died_is_there_once_when_it_comes_again(
    broker: Broker, topic: str, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(broker, topic, tmp_path)
    sink.commit(list(attempt(sink, 0)), 0)
    comes_to(broker, topic, expected(0))
    with monkeypatch.context() as patch:
        patch.setattr("mqlake.spark.rocketmq.sink.Epochs", dying(step, die))
        with pytest.raises(Death):
            sink.commit(list(attempt(sink, 1)), 1)
    # Spark runs the epoch again, with the same rows; and once more, for good measure
    for _ in range(2):
        sink = writer(broker, topic, tmp_path)
        sink.commit(list(attempt(sink, 1)), 1)
        comes_to(broker, topic, expected(0, 1))
    sink.commit(list(attempt(sink, 2)), 2)
    comes_to(broker, topic, expected(0, 1, 2))


def test_it_may_die_again_while_it_finishes(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(broker, topic, tmp_path)
    for step in ("after 2 ends", "after 3 ends", "after 4 ends", "before it is done"):
        with monkeypatch.context() as patch:
            patch.setattr("mqlake.spark.rocketmq.sink.Epochs", dying(step, die))
            with pytest.raises(Death):
                sink.commit(list(attempt(sink, 0)), 0)
    sink.commit(list(attempt(sink, 0)), 0)
    comes_to(broker, topic, expected(0))


def test_what_is_aborted_or_sent_by_failed_tasks_never_comes(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    sink = writer(broker, topic, tmp_path)
    attempt(sink, 0)  # tasks whose messages nobody heard of
    sink.abort([*attempt(sink, 0), None], 0)
    assert rows_of(broker, topic) == {}
    decided = attempt(sink, 0)
    sink.commit(list(decided), 0)
    sink.abort(list(decided), 0)  # Spark may, when the commit's answer got lost
    sink.commit([], 1)
    comes_to(broker, topic, expected(0))


def test_a_commit_that_fails_is_finished_by_the_next(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(broker, topic, tmp_path)
    first = attempt(sink, 0)
    with monkeypatch.context() as patch:
        patch.setattr("mqlake.spark.rocketmq.sink.Epochs", dying("after 5 ends", die))
        with pytest.raises(Death):
            sink.commit(list(first), 0)
    sink.abort(list(first), 0)  # nothing that was decided is rolled back
    sink.commit(list(attempt(sink, 1)), 1)
    comes_to(broker, topic, expected(0, 1))


def killed_at(broker: Broker, topic: str, directory: Path, step: str) -> None:
    """A whole session of Spark is killed at a step of an epoch; another one goes on from its checkpoint."""
    source = directory / "source"
    source.mkdir()
    for epoch in range(2):
        file = source / f"{epoch}.txt"
        file.write_text("".join(f"{100 * epoch + n}\n" for n in range(30)))
        os.utime(file, (1_700_000_000 + epoch, 1_700_000_000 + epoch))  # Spark takes the oldest first
    job = Job(broker.namesrv, topic, str(source), str(directory / "checkpoint"), str(directory), step)
    job.die.touch()
    statuses = []
    for _ in range(2):
        log = (directory / "output").open("ab")
        with (
            log,
            subprocess.Popen(
                [sys.executable, "-m", "tests.spark.exactly_once_job", job.to_json()],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(directory)},
            ) as process,
        ):
            try:
                statuses.append(process.wait(300))
            finally:
                with contextlib.suppress(ProcessLookupError):  # its JVM outlives a driver that is killed
                    os.killpg(process.pid, signal.SIGKILL)
    assert statuses == [-signal.SIGKILL, 0], (directory / "output").read_text()[-4000:]
    numbers = [100 * epoch + n for epoch in range(2) for n in range(30)]
    lines = {str(key): [str(n) for n in numbers if n % 3 == key] for key in range(3)}
    comes_to(broker, topic, lines)


@pytest.mark.spark
@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("step", STEPS)
def test_campaign(broker: Broker, topic: str, tmp_path: Path, step: str) -> None:
    killed_at(broker, topic, tmp_path, step)


# ---------------------------------------------------------------------- decisions


@given(st.integers(0, 2**62), EPOCH, st.booleans())
def test_decisions_are_read_as_they_were_written(
    batch_id: int, queues: list[QueueHalves], done: bool
) -> None:
    decision = Decision(batch_id, queues, done)
    assert Decision.from_json(decision.to_json()) == decision


@given(
    st.one_of(
        st.binary(),
        st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
            lambda value: json.dumps({"batchId": value, "done": value, "queues": value}).encode()
        ),
    )
)
def test_what_is_no_decision_is_a_format_error(text: bytes) -> None:
    try:
        Decision.from_json(text)
    except FormatError:
        pass


@pytest.mark.parametrize("place", ["{}", "file:{}", "file://{}", "memory://{}"])
def test_decisions_lie_where_the_checkpoint_does(tmp_path: Path, place: str) -> None:
    checkpoint = place.format(tmp_path / "checkpoint")
    assert DecisionFile(checkpoint).read() is None
    decision = Decision(3, [QueueHalves(Queue("T", "b", 0), 7, [Half(1, 2, "K")])])
    for each in (decision, Decision(3, [], done=True)):
        DecisionFile(checkpoint).write(each)
        assert DecisionFile(checkpoint).read() == each


def test_a_damaged_decision_is_named(tmp_path: Path) -> None:
    file = DecisionFile(str(tmp_path))
    file.write(Decision(1, []))
    Path(file.path).write_bytes(b"{")
    with pytest.raises(StoreCorruptError, match="rocketmq-sink/decision"):
        file.read()


@given(st.lists(EPOCH, max_size=3))
def test_tasks_keep_their_order(tasks: list[list[QueueHalves]]) -> None:
    halves = defaultdict(list)
    for each in (each for task in tasks for each in task):
        halves[each.queue] += each.halves
    found = together(each for task in tasks for each in task)
    assert {each.queue: each.halves for each in found} == halves


@pytest.mark.parametrize(
    ("more", "schema", "words"),
    [
        ({"checkpointLocation": ""}, SCHEMA, "'checkpointLocation' is missing"),
        ({"delivery": "exactly-once"}, SCHEMA, "delivery"),
        ({}, StructType([*SCHEMA, StructField("delayLevel", StringType())]), "delayLevel"),
    ],
)
def test_what_cannot_be_asked_for(more: dict[str, str], schema: StructType, words: str) -> None:
    given = {
        "namesrvAddr": "a:1",
        "topic": "T",
        "delivery": "exactlyOnce",
        "checkpointLocation": "/c",
        **more,
    }
    with pytest.raises(ConfigError, match=words):
        RocketMQDataSource(given).streamWriter(schema, overwrite=False)


def test_a_batch_is_at_least_once_only() -> None:
    given = {"namesrvAddr": "a:1", "topic": "T", "delivery": "exactlyOnce"}
    with pytest.raises(ConfigError, match="for streams"):
        RocketMQDataSource(given).writer(SCHEMA, overwrite=False)
