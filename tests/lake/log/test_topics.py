"""A topic that no store has is a mistake, and is said to be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mqlake.errors import ConfigError
from mqlake.lake.log.topics import check_topics
from mqlake.lake.options import LogOptions
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.log.commitlog_stream import CommitLogStreamReader
from mqlake.spark.log.queue_and_index import ConsumeQueueDataSource
from mqlake.spark.options import log_options
from mqlake.store import open_store
from tests.spark.stores import SETTINGS, copy_store, decoded

UNKNOWN = r"^there is no topic 'Topik-1'; did you mean 'Topic-1'\?$"


def options(*roots: Path, topics: str = "Topic-1,Topik-1", **more: str) -> LogOptions:
    return log_options({"path": json.dumps([str(root) for root in roots]), "topics": topics, **more})


def test_an_unknown_topic(every_kind: Path) -> None:
    given = options(every_kind)
    queues = ConsumeQueueDataSource({"path": str(every_kind), "topics": "Topik-1"})
    for read in (
        lambda: check_topics(given),
        lambda: CommitLogReader(given, ["topic"]).partitions(),
        lambda: CommitLogStreamReader(given, ["topic"]).initialOffset(),
        lambda: queues.reader(queues.schema()).partitions(),
    ):
        with pytest.raises(ConfigError, match=UNKNOWN):
            read()


def test_topics_that_are_known(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    check_topics(options(root, topics="Batch,Topic-4"))
    check_topics(options(root, topics="%RETRY%group,%DLQ%group,SCHEDULE_TOPIC_XXXX,TBW102"))
    check_topics(options(root, unpack="false"))  # raw records need not be in a queue
    config = root / "config" / "topics.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text('{"topicConfigTable":{"Topik-1":{"topicName":"Topik-1"}}}')
    check_topics(options(root))  # it was made, and has no message yet
    check_topics(options(every_kind, root))  # one of two will do
    for text in ('{"topicConfigTable":', '{"topicConfigTable": 5}', "[]"):
        config.write_text(text)
        with pytest.raises(ConfigError, match=UNKNOWN):
            check_topics(options(root))


def test_where_nobody_knows(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    shutil.rmtree(root / "consumequeue" / "Topic-2")  # as deleting a topic leaves the log
    with pytest.raises(ConfigError, match="there is no topic 'Topic-2'"):
        check_topics(options(root, topics="Topic-2"))
    reader = CommitLogReader(options(root, topics="Topic-2", skipping="false"), ["topic"])
    rows = [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]
    assert rows and {row["topic"] for row in rows} == {"Topic-2"}
    shutil.rmtree(root / "consumequeue")
    check_topics(options(root))
    open_store(tmp_path / "empty", SETTINGS).shutdown()
    check_topics(options(tmp_path / "empty"))
    assert any(message.topic == "Topic-2" for message in decoded(root))
