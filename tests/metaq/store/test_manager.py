from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.errors import IllegalTopicError, StoreCorruptError, StoreLockedError, WrongPartitionError
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.store.manager import MessageStoreManager
from tests.metaq.records import record
from tests.store.small_store import contents
from tests.waiting import until

TOPICS: dict[str, dict[str, str]] = {"a": {"numPartitions": "3"}, "log-*": {"numPartitions": "2"}}


def manager_of(
    path: Path, topics: dict[str, dict[str, str]] = TOPICS, *, fast_boot: bool = False, **system: object
) -> MessageStoreManager:
    config = MetaConfig(SystemConfig(data_path=str(path), unflush_threshold=0, **system), topics=topics)  # type: ignore[arg-type]
    return MessageStoreManager(config, fast_boot=fast_boot)


def test_partitions_are_made_on_demand(tmp_path: Path) -> None:
    manager = manager_of(tmp_path / "deep" / "data")
    assert manager.load().stores == 0
    store = manager.get_or_create("a", 2)
    assert manager.get_or_create("a", 2) is store is manager.get("a", 2)
    assert manager.get_or_create("log-x", 1).name == "log-x-1"
    assert manager.get("a", 0) is None and manager.get("b", 0) is None
    for topic in ("b", "logs", "a2"):
        with pytest.raises(IllegalTopicError, match=f"The server do not accept topic {topic}"):
            manager.get_or_create(topic, 0)
    for partition in (-1, 3):
        with pytest.raises(WrongPartitionError, match=f"wrong partition {partition}"):
            manager.get_or_create("a", partition)
    assert {manager.choose_random_partition("a") for _ in range(100)} == {0, 1, 2}
    assert manager.all_topics() == ["a", "log-*", "log-x"]
    manager.close()


@pytest.mark.parametrize("in_parallel", [False, True])
def test_all_that_is_there_is_loaded(tmp_path: Path, in_parallel: bool) -> None:
    manager = manager_of(tmp_path)
    manager.load()
    for partition in range(3):
        manager.get_or_create("a", partition).append(record(b"x" * partition))
    manager.close()
    (tmp_path / "transactions").mkdir()
    (tmp_path / "zzz").mkdir()
    (tmp_path / "file-1").write_bytes(b"")
    (tmp_path / "gone-0").mkdir()
    segment = tmp_path / "a-1" / f"{0:020d}.meta"
    segment.write_bytes(segment.read_bytes() + b"torn")
    manager = manager_of(tmp_path, load_message_stores_in_parallel=in_parallel)
    report = manager.load()
    assert (report.stores, report.truncated) == (4, {"a-1": 4})
    assert report.ignored == [str(tmp_path / "file-1"), str(tmp_path / "zzz")]
    assert [(store.name, store.max_offset) for store in manager.stores()] == [
        ("a-0", 20),
        ("a-1", 21),
        ("a-2", 22),
        ("gone-0", 0),
    ]
    assert manager.total_messages_count == 3
    manager.close()


def test_fast_boot(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.load()
    manager.get_or_create("a", 0).append(record(b"x"))
    manager.close()
    manager = manager_of(tmp_path, fast_boot=True)
    manager.load()
    assert manager.total_messages_count == 0 and manager.stores()[0].max_offset == 21
    manager.close()


def test_damage_in_one_partition_is_said_and_everything_is_closed(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, max_segment_size=10)
    manager.load()
    manager.get_or_create("a", 0)
    for _ in range(3):
        manager.get_or_create("a", 1).append(record(b"x"))
    manager.close()
    with (tmp_path / "a-0" / f"{0:020d}.meta").open("ab") as torn:
        torn.write(b"torn")
    (tmp_path / "a-1" / f"{21:020d}.meta").unlink()
    before = contents(tmp_path)
    with pytest.raises(StoreCorruptError, match="next one begins at 42"):
        manager_of(tmp_path).load()
    assert contents(tmp_path) == before
    os.rename(tmp_path / "a-1" / f"{42:020d}.meta", tmp_path / "a-1" / "42")
    os.rename(tmp_path / "a-1" / f"{63:020d}.meta", tmp_path / "a-1" / "63")
    manager = manager_of(tmp_path)
    manager.load()
    with pytest.raises(StoreLockedError):
        manager_of(tmp_path).load()
    manager.close()


def test_a_topic_with_a_data_path_of_its_own(tmp_path: Path) -> None:
    topics = {"a": {}, "b": {"dataPath": str(tmp_path / "other")}}
    manager = manager_of(tmp_path / "data", topics)
    manager.load()
    assert manager.get_or_create("b", 0).directory == str(tmp_path / "other" / "b-0")
    manager.close()
    (tmp_path / "data" / "b-0").mkdir()
    manager = manager_of(tmp_path / "data", topics)
    report = manager.load()
    assert [store.directory for store in manager.stores()] == [str(tmp_path / "other" / "b-0")]
    assert report.ignored == [str(tmp_path / "data" / "b-0")]
    manager.close()


def test_the_clock_runs_the_delete_policies(tmp_path: Path) -> None:
    topics = {"a": {"deletePolicy": "archive,1s", "deleteWhen": "* * * * * ?"}}
    manager = manager_of(tmp_path, topics, max_segment_size=10)
    manager.load()
    store = manager.get_or_create("a", 0)
    for i in range(3):
        store.append(record(b"x"))
        os.utime(tmp_path / "a-0" / f"{21 * i:020d}.meta", (0, 0))
    manager.start()
    until(lambda: store.min_offset == 63)
    assert sum(name.endswith(".arc") for name in os.listdir(tmp_path / "a-0")) == 3
    manager.close()


def test_timers_follow_the_topics(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, {"a": {"unflushInterval": "500"}, "b": {"deleteWhen": "0 0 1 * * ?"}})
    manager.load()
    manager.start()
    assert manager.schedule.names == [
        "delete at 0 0 1 * * ?",
        "delete at 0 0 6,18 * * ?",
        "flush every 10000 ms",
        "flush every 500 ms",
    ]
    manager.config.add_topic("a", {"deleteWhen": "0 0 2 * * ?", "unflushInterval": "700"})
    manager._schedule_flushes()
    assert manager.schedule.names == [
        "delete at 0 0 1 * * ?",
        "delete at 0 0 2 * * ?",
        "flush every 10000 ms",
        "flush every 700 ms",
    ]
    manager.close()


def test_what_lies_around_is_flushed_by_the_timer(tmp_path: Path) -> None:
    config = MetaConfig(
        SystemConfig(data_path=str(tmp_path), unflush_interval=20),
        topics={"a": {}, "b": {"unflushInterval": "60000"}},
    )
    manager = MessageStoreManager(config)
    manager.load()
    quick, slow = manager.get_or_create("a", 0), manager.get_or_create("b", 0)
    quick.append(record(b"x"))
    slow.append(record(b"x"))
    manager._flusher(20)()
    assert (quick.max_offset, slow.max_offset) == (21, 0)
    manager.close()


def test_delete_policies_run_for_their_topics(tmp_path: Path) -> None:
    topics = {
        "a": {"deletePolicy": "delete,1h"},
        "b": {"deletePolicy": "delete,1h", "deleteWhen": "0 0 1 * * ?"},
    }
    manager = manager_of(tmp_path, topics, max_segment_size=10)
    manager.load()
    for topic in "ab":
        for _ in range(2):
            manager.get_or_create(topic, 0).append(record(b"x"))
        for name in os.listdir(tmp_path / f"{topic}-0"):
            os.utime(tmp_path / f"{topic}-0" / name, (0, 0))
    manager._deleter("0 0 1 * * ?")()
    assert [store.min_offset for store in manager.stores()] == [0, 42]
    assert len(manager.run_delete_policies()) == 2
    assert [store.min_offset for store in manager.stores()] == [42, 42]
    manager.close()
