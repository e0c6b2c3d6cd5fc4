"""What is skipped: never a row, and as much as the derived files tell."""

from __future__ import annotations

import json
import math
import operator
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from mqlake.errors import ConfigError, OffsetOutOfRangeError, StoreCorruptError
from mqlake.formats.batch import encode_messages
from mqlake.lake.log import reading, skipping
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import read_task
from mqlake.lake.plan import ReadPlan, plan_read
from mqlake.message import PROPERTY_INNER_NUM, Message, MessageExt, MessageExtBrokerInner, MessageSysFlag
from mqlake.spark.filters import conditions
from mqlake.spark.options import log_options
from mqlake.store import DefaultMessageStore, MessageStoreConfig, open_store
from tests.lake.log.test_reading import covered
from tests.spark.stores import SETTINGS, copy_store, log_files, overwrite, seen
from tests.waiting import PATIENCE_S

HOUR = 3_600_000


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty records an hour, each hour in its own topic, tag and key, over some files; times of 2023."""
    root = tmp_path_factory.mktemp("hours") / "store"
    clock = 1_700_000_000_000
    config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(root)})
    with DefaultMessageStore(config, clock_ms=lambda: clock) as store:
        store.load()
        store.start()
        for n in range(400):
            clock = 1_700_000_000_000 + n // 40 * HOUR
            message = MessageExtBrokerInner(
                f"Hour-{n // 40}", bytes(100), tags=f"tag-{n // 40}", keys=[f"key-{n}"], queue_id=n % 2
            )
            assert store.put_message(message).is_ok
    return root


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 1024)
    monkeypatch.setattr(reading, "PLACE_COST", 64)


def read(root: Path, *filters: ds.Filter, **options: str) -> tuple[list[int], ReadPlan]:
    """Physical offsets of the rows that come, and the plan."""
    given, known = log_options({"path": str(root), **options}), tuple(conditions(filters))
    planned = plan_read(given, known)
    batches = [batch for task in planned.tasks for batch in read_task(task, given, known, ["physicalOffset"])]
    return sorted(row["physicalOffset"] for batch in batches for row in batch.to_pylist()), planned


def moment(hour: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + hour * 3600, UTC)


CASES: dict[str, tuple[list[ds.Filter], dict[str, str], Callable[[MessageExt], Any]]] = {
    "topic": ([ds.EqualTo(("topic",), "Hour-4")], {}, lambda m: m.topic == "Hour-4"),
    "topics": ([], {"topics": "Hour-1,Hour-8"}, lambda m: m.topic in ("Hour-1", "Hour-8")),
    "queue": (
        [ds.EqualTo(("topic",), "Hour-4"), ds.EqualTo(("queueId",), 1), ds.LessThan(("queueOffset",), 3)],
        {},
        lambda m: m.topic == "Hour-4" and m.queue_id == 1 and m.queue_offset < 3,
    ),
    "tag": (
        [ds.In(("topic",), ["Hour-2", "Hour-3"]), ds.EqualTo(("tags",), "tag-3")],
        {},
        lambda m: m.topic == "Hour-3",
    ),
    "key": ([ds.EqualTo(("keys",), "key-77")], {}, lambda m: m.keys == "key-77"),
    "keys": ([], {"keys": "key-77,key-300"}, lambda m: m.keys in ("key-77", "key-300")),
    "offset": (
        [ds.GreaterThan(("physicalOffset",), 30_000), ds.LessThanOrEqual(("physicalOffset",), 40_000)],
        {},
        lambda m: 30_000 < m.physical_offset <= 40_000,
    ),
    "end": ([], {"endingOffsets": "20000"}, lambda m: m.physical_offset < 20_000),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split_size", ["64m", "3000"])
def test_rows_and_bytes(hours: Path, case: str, split_size: str) -> None:
    """Before and after its own hour a topic may have messages of which its queues, made anew, do not know."""
    filters, options, holds = CASES[case]
    found, plan = read(hours, *filters, splitSize=split_size, skipping="known", **options)
    wanted = [m for m in seen(hours) if holds(m)]
    assert set(found) >= {m.physical_offset for m in wanted} != set()
    assert len(found) == len(wanted)
    assert plan.bytes_to_read < plan.bytes_of_log / 2
    assert read(hours, *filters, splitSize=split_size, **options)[0] == found
    everything, whole = read(hours, *filters, skipping="false", splitSize=split_size, **options)
    assert everything == found
    if case not in ("offset", "end"):
        assert whole.bytes_to_read == whole.bytes_of_log


def test_what_the_queues_do_not_know_is_read(hours: Path, tmp_path: Path) -> None:
    root = copy_store(hours, tmp_path / "store")
    wanted = [m.physical_offset for m in seen(hours) if m.topic == "Hour-4"]
    filters = [ds.EqualTo(("topic",), "Hour-4")]
    shutil.rmtree(root / "consumequeue" / "Hour-4" / "0")
    shutil.rmtree(root / "consumequeue" / "Hour-4" / "1")
    for skip in ("true", "known"):
        found, plan = read(root, *filters, skipping=skip)
        assert (found, plan.bytes_to_read) == (wanted, plan.bytes_of_log)
    key = seen(hours)[int(wanted[0] == 0) + 200].keys  # of a topic without queues, without naming it
    assert (
        read(root, ds.EqualTo(("keys",), key))[0]
        == read(root, ds.EqualTo(("keys",), key), skipping="false")[0]
        != []
    )
    assert read(root, ds.EqualTo(("topic",), "none"))[0] == []
    shutil.rmtree(root / "consumequeue")
    found, plan = read(root, *filters)
    assert (found, plan.bytes_to_read) == (wanted, plan.bytes_of_log)


def test_what_is_not_dispatched_yet_is_read(hours: Path, tmp_path: Path) -> None:
    """Units of a store that was killed, as the disk may have them: those of a whole page are zeros."""
    root = copy_store(hours, tmp_path / "store")
    (root / "abort").touch()
    wanted = [m.physical_offset for m in seen(hours) if m.topic == "Hour-9"]
    for queue in (root / "consumequeue" / "Hour-9").iterdir():
        overwrite(next(queue.iterdir()), 10 * 20, bytes(20 * 10))
    for skip in ("true", "known"):
        assert read(root, ds.EqualTo(("topic",), "Hour-9"), skipping=skip)[0] == wanted
    found, plan = read(root, topics="Hour-9", keys="key-399")
    assert len(found) == 1 and plan.bytes_to_read < plan.bytes_of_log / 2
    (root / "checkpoint").unlink()
    found, plan = read(root, topics="Hour-9", keys="key-399")
    assert len(found) == 1
    assert plan.bytes_to_read == plan.bytes_of_log, "nobody knows whether the index was flushed"


def test_units_of_another_queue_are_not_believed(hours: Path, tmp_path: Path) -> None:
    root = copy_store(hours, tmp_path / "store")
    first, second = (next((root / "consumequeue" / "Hour-4" / str(n)).iterdir()) for n in range(2))
    units = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(units)
    found, _ = read(root, ds.EqualTo(("topic",), "Hour-4"), ds.EqualTo(("queueId",), 1))
    assert found == [m.physical_offset for m in seen(hours) if m.topic == "Hour-4" and m.queue_id == 1]


def test_a_queue_file_that_was_only_begun(long_queue: Path, tmp_path: Path) -> None:
    """It says nothing, and those before it count."""
    root = copy_store(long_queue, tmp_path / "store")
    files = sorted((root / "consumequeue" / "A" / "0").iterdir())
    (files[0].parent / f"{200 * len(files):020}").write_bytes(bytes(200))
    found, plan = read(root, ds.EqualTo(("topic",), "A"))
    assert found == [m.physical_offset for m in seen(long_queue) if m.topic == "A"]
    assert plan.bytes_to_read < plan.bytes_of_log / 2


@pytest.fixture(scope="module")
def inner_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty records of a topic of inner batches, three messages in each, between those of another topic, which the
    index knows."""
    root = tmp_path_factory.mktemp("inner") / "store"
    config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(root)})
    with DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Inner") as store:
        store.load()
        store.start()
        for n in range(60):
            for k in range(10):
                other = MessageExtBrokerInner("Other", bytes(100), keys=f"o{n}-{k}")
                assert store.put_message(other).is_ok
            items = encode_messages([Message("", b"%d/%d" % (n, k), keys=f"i{n}") for k in range(3)])
            batch = MessageExtBrokerInner("Inner", items, properties={PROPERTY_INNER_NUM: "3"})
            batch.sys_flag = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
            assert store.put_message(batch).is_ok
    return root


@pytest.mark.parametrize("unpack", ["true", "false"])
def test_inner_batches(inner_batches: Path, unpack: str) -> None:
    """The index knows nothing of the keys of their messages, and a queue has a unit for each batch."""
    wanted = sorted({m.physical_offset for m in seen(inner_batches) if m.topic == "Inner"})
    found, plan = read(inner_batches, ds.EqualTo(("topic",), "Inner"), unpack=unpack)
    assert sorted(set(found)) == wanted
    assert unpack == "false" or plan.bytes_to_read < plan.bytes_of_log / 2
    for key in ("i30", "i59"):
        for filters in (
            [ds.EqualTo(("keys",), key)],
            [ds.EqualTo(("topic",), "Inner"), ds.EqualTo(("keys",), key)],
        ):
            found, plan = read(inner_batches, *filters, unpack=unpack)
            assert found == read(inner_batches, *filters, unpack=unpack, skipping="false")[0]
            assert (len(found) == 3) == (unpack == "true")
        assert unpack == "false" or plan.bytes_to_read < plan.bytes_of_log / 2


@pytest.mark.parametrize("skip", ["true", "false"])
@pytest.mark.parametrize("column", ["physicalOffset", "queueOffset", "storeTimestamp"])
def test_bounds_that_a_record_lies_on(hours: Path, column: str, skip: str) -> None:
    """The record at the bound itself comes if the comparison says so, whatever is skipped beyond it."""
    messages = [m for m in seen(hours) if m.topic == "Hour-4"]
    value_of: dict[str, Callable[[MessageExt], Any]] = {
        "physicalOffset": lambda m: m.physical_offset,
        "queueOffset": lambda m: m.queue_offset,
        "storeTimestamp": lambda m: datetime.fromtimestamp(m.store_timestamp / 1000, UTC),
    }
    value = value_of[column]
    topic = ds.EqualTo(("topic",), "Hour-4")
    for message in (messages[0], messages[17], messages[-1]):
        bound = value(message)
        for compare, holds in {
            ds.EqualTo: operator.eq,
            ds.LessThan: operator.lt,
            ds.LessThanOrEqual: operator.le,
            ds.GreaterThan: operator.gt,
            ds.GreaterThanOrEqual: operator.ge,
        }.items():
            wanted = [m.physical_offset for m in messages if holds(value(m), bound)]
            found, _ = read(hours, topic, compare((column,), bound), skipping=skip)
            assert found == wanted, (compare, bound)
    last = messages[-1]
    everything = [m.physical_offset for m in seen(hours)]
    for option, holds in (("startingOffsets", operator.ge), ("endingOffsets", operator.lt)):
        found, _ = read(hours, skipping=skip, **{option: str(last.physical_offset)})
        assert found == [offset for offset in everything if holds(offset, last.physical_offset)]


def test_a_queue_proves_what_lies_between_its_ends(long_queue: Path) -> None:
    """From its first unit to its last nothing but its messages is read."""
    mine = [m for m in seen(long_queue) if m.topic == "A"]
    found, plan = read(long_queue, ds.EqualTo(("topic",), "A"), mode="failFast")
    assert found == [m.physical_offset for m in mine]
    behind = seen(long_queue)[-1].store_size
    assert plan.bytes_to_read <= sum(m.store_size for m in mine) + behind


def test_without_an_index(hours: Path, tmp_path: Path) -> None:
    root = copy_store(hours, tmp_path / "store")
    for path in (root / "index").iterdir():
        path.unlink()
    found, plan = read(root, keys="key-77")
    assert len(found) == 1
    assert plan.bytes_to_read == plan.bytes_of_log


def test_many_ranges_become_fewer(hours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 64)
    monkeypatch.setattr(reading, "RANGES_MAX", 3)
    filters = [ds.In(("topic",), [f"Hour-{n}" for n in range(0, 10, 2)]), ds.EqualTo(("queueId",), 0)]
    found, plan = read(hours, *filters)
    assert found == [m.physical_offset for m in seen(hours) if int(m.topic[5:]) % 2 == 0 and m.queue_id == 0]
    assert len(plan.tasks[0].splits) <= len(log_files(hours)) + 3


@pytest.mark.parametrize("skip", ["true", "known"])
def test_queue_offsets_skip_the_log_before_them(hours: Path, skip: str) -> None:
    """Where an earlier read has ended, in all queues: what it read is not read again."""
    ends = {f"Hour-{n}": {"0": 20 if n < 9 else 15, "1": 20 if n < 9 else 17} for n in range(10)}
    wanted = [
        m.physical_offset
        for m in seen(hours)
        if m.topic == "Hour-9" and m.queue_offset >= 15 + 2 * m.queue_id
    ]
    assert read(hours, startingOffsets=json.dumps(ends), skipping=skip)[0] == wanted
    found, planned = read(hours, startingOffsets=json.dumps(ends), topics="Hour-8,Hour-9", skipping=skip)
    assert found == wanted
    assert skip == "true" or planned.bytes_to_read < planned.bytes_of_log / 10
    found, planned = read(hours, endingOffsets='{"Hour-9": {"0": 1, "1": 0}}', topics="Hour-9", skipping=skip)
    assert len(found) == 1
    assert skip == "true" or planned.bytes_to_read < planned.bytes_of_log / 10


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_that_are_not_in_the_log(hours: Path, option: str) -> None:
    with pytest.raises(
        OffsetOutOfRangeError, match=f"option '{option}' is 99999999, but the log of {hours} holds 0"
    ):
        read(hours, **{option: "99999999"})


@pytest.mark.parametrize(
    ("topic", "queue", "offset", "said"),
    [
        ("Hour-3", 1, 21, "topic Hour-3, queue 1 has offsets 0 to 20, not 21"),
        ("Hour-3", 2, 0, "topic Hour-3, queue 2 is not there"),
        ("none", 0, 0, "topic none is not there"),
    ],
)
def test_queue_offsets_that_are_not_there(
    hours: Path, tmp_path: Path, topic: str, queue: int, offset: int, said: str
) -> None:
    positions = {"startingOffsets": json.dumps({topic: {str(queue): offset}})}
    with pytest.raises(OffsetOutOfRangeError, match=f"option 'startingOffsets': {said}"):
        read(hours, **positions)
    if topic == "none":
        with pytest.raises(OffsetOutOfRangeError, match=f"option 'endingOffsetsByTimestamp': {said}"):
            read(hours, endingOffsetsByTimestamp='{"none": {"0": 5}}')
    root = copy_store(hours, tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    assert read(root, **positions)[1].bytes_to_read  # nobody knows
    assert read(hours, startingOffsets='{"Hour-3": {"1": 20}}', topics="Hour-3")[0] == [
        m.physical_offset for m in seen(hours) if m.topic == "Hour-3" and m.queue_id == 0
    ]


@pytest.mark.parametrize(
    ("topics", "can"),
    [(None, False), ([], True), (["a", "b.c", "..."], True)]
    + [([topic, "a"], False) for topic in ("/", "a/b", "a\0", "", ".", "..", "a\ufffd")],
)
def test_topics_that_can_be_directories(topics: list[str] | None, can: bool) -> None:
    assert skipping._can_be_directories(None if topics is None else frozenset(topics)) is can


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ('{"topicConfigTable": {"A": {"readQueueNums": 3, "writeQueueNums": 5}, "B": {}}}', {"A": 5, "B": 0}),
        ('{"topicConfigTable": {"A": {"readQueueNums": 3}, "B": {"writeQueueNums": 2}}}', {"A": 3, "B": 2}),
        ("[1]", {}),
        ('{"topicConfigTable": 5}', {}),
        ('{"topicConfigTable": {"A": 5}}', {}),
        ('{"topicConfigTable": {"A": {"readQueueNums": null}}}', {}),
        ('{"topicConfigTable": {"A": {"readQueueNums": "many"}}}', {}),
        ("{", {}),
    ],
)
def test_how_many_queues_a_topic_has(tmp_path: Path, text: str | None, numbers: dict[str, int]) -> None:
    if text is not None:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "topics.json").write_text(text)
    assert skipping._queue_numbers(Storage(str(tmp_path))) == numbers


# ---------------------------------------------------------------------------------------- damaged queues


@pytest.fixture(scope="module")
def long_queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty messages of topic A in six queue files, of all sizes, between others; a broker knows of one queue."""
    root = tmp_path_factory.mktemp("long") / "store"
    settings = {**SETTINGS, "mappedFileSizeConsumeQueue": 200, "storePathRootDir": str(root)}
    with DefaultMessageStore(MessageStoreConfig.from_mapping(settings)) as store:
        store.load()
        store.start()
        for n in range(60):
            for topic, body in (("A", bytes(50 + n * 7 % 90)), ("B", bytes(600))):
                assert store.put_message(MessageExtBrokerInner(topic, body)).is_ok
    (root / "config").mkdir(exist_ok=True)
    numbers = {topic: {"readQueueNums": 1, "writeQueueNums": 1} for topic in "AB"}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": numbers}))
    return root


def test_queues_of_a_store_that_no_broker_has(tmp_path: Path) -> None:
    """Without topics.json, what the store noted at its clean end says whether a topic's queues are all there."""
    root = tmp_path / "store"
    with open_store(root, SETTINGS) as store:
        for n in range(90):
            for topic, body in (("A", bytes(50)), ("B", bytes(600))):
                assert store.put_message(MessageExtBrokerInner(topic, body, queue_id=n % 3)).is_ok
    topic, wanted = ds.EqualTo(("topic",), "A"), [m for m in seen(root) if m.topic == "A"]

    def bytes_for(store: Path) -> int:
        found, planned = read(store, topic, mode="failFast")
        assert found == [m.physical_offset for m in wanted]
        return planned.bytes_to_read

    everything = read(root)[1].bytes_of_log
    assert bytes_for(root) <= sum(m.store_size for m in wanted) + 2 * 3 * 1000  # around each queue's ends
    ends = json.loads((root / "queue-ends.json").read_text())

    def noted(store: Path, text: str) -> None:
        (store / "queue-ends.json").write_text(text)

    of_a = ends["queues"]["A"]
    for number, change in enumerate(
        [
            lambda store: (store / "queue-ends.json").unlink(),
            lambda store: noted(store, "{"),
            lambda store: noted(store, "[]"),
            lambda store: noted(store, '{"queues": {}}'),
            lambda store: (store / "abort").touch(),  # opened since
            lambda store: shutil.rmtree(store / "consumequeue" / "A" / "1"),
            lambda store: noted(store, json.dumps({"queues": {"A": {**of_a, "0": 29}}})),
            lambda store: noted(store, json.dumps({"queues": {"A": {"0": 30, "1": 30}}})),
            lambda store: noted(store, json.dumps({"queues": {"A": {**of_a, "3": 1}}})),
        ]
    ):
        copy = copy_store(root, tmp_path / str(number))
        change(copy)
        assert bytes_for(copy) == everything, number


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "gone": lambda file, other: file.unlink(),
    "zeros": lambda file, other: file.write_bytes(bytes(200)),
    "of another file": lambda file, other: shutil.copy(other, file),
    "first unit": lambda file, other: overwrite(file, 0, b"\0\0\0\0\0\0\x12\x34"),
    "last unit": lambda file, other: overwrite(file, 180, b"\0\0\0\0\0\0\x12\x34"),
    "cut short": lambda file, other: file.write_bytes(file.read_bytes()[:150]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_row_is_lost_with_a_file_of_a_queue(long_queue: Path, tmp_path: Path, damage: str) -> None:
    wanted = [m.physical_offset for m in seen(long_queue) if m.topic == "A"]
    found, plan = read(long_queue, ds.EqualTo(("topic",), "A"), mode="failFast")
    assert found == wanted and plan.bytes_to_read < plan.bytes_of_log / 2
    for number in range(6):
        root = copy_store(long_queue, tmp_path / str(number))
        files = sorted((root / "consumequeue" / "A" / "0").iterdir())
        DAMAGE[damage](files[number], files[number - 1])
        assert read(root, ds.EqualTo(("topic",), "A"), mode="failFast")[0] == wanted, number


def test_units_of_records_that_the_log_does_not_have(long_queue: Path, tmp_path: Path) -> None:
    """The last one of a writer that died was never finished: the log ends where the unit points to."""
    root = copy_store(long_queue, tmp_path / "store")
    messages = seen(long_queue)
    for message in (messages[-1], messages[-2]):
        path = log_files(root)[message.physical_offset >> 14]
        overwrite(path, message.physical_offset & (16 << 10) - 1, bytes(message.store_size))
        (root / "abort").touch()
        wanted = [
            m.physical_offset
            for m in messages
            if m.topic == message.topic and m.physical_offset < message.physical_offset
        ]
        for mode in ("failFast", "permissive"):
            assert read(root, ds.EqualTo(("topic",), message.topic), mode=mode)[0] == wanted


def test_a_topic_that_is_most_of_the_log_is_looked_for_in_its_queue_if_little_is_asked(
    long_queue: Path,
) -> None:
    most = ds.EqualTo(("topic",), "B")
    wanted = [m.physical_offset for m in seen(long_queue) if m.topic == "B"]
    found, plan = read(long_queue, most)
    assert found == wanted and plan.bytes_to_read == plan.bytes_of_log
    found, plan = read(long_queue, most, ds.LessThan(("queueOffset",), 3))
    assert found == wanted[:3] and plan.bytes_to_read < plan.bytes_of_log / 2
    found, plan = read(long_queue, most, ds.GreaterThan(("queueOffset",), 55))
    assert found == wanted[56:] and plan.bytes_to_read < plan.bytes_of_log / 2


@pytest.mark.parametrize(
    "error",
    [StoreCorruptError("f", 0, "damaged"), ConfigError("?"), OSError(5, "?"), ValueError("?")],
    ids=repr,
)
def test_what_cannot_be_read_is_not_skipped(
    hours: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(skipping, "queue_files", fail)
    found, plan = read(hours, ds.EqualTo(("topic",), "Hour-4"))
    assert found == [m.physical_offset for m in seen(hours) if m.topic == "Hour-4"]
    assert plan.bytes_to_read == plan.bytes_of_log


def test_filters_that_exclude_each_other_read_nothing(hours: Path) -> None:
    for filters in (
        [ds.EqualTo(("topic",), "Hour-4"), ds.EqualTo(("topic",), "Hour-5")],
        [ds.GreaterThan(("physicalOffset",), 40_000), ds.LessThan(("physicalOffset",), 30_000)],
        [ds.GreaterThan(("physicalOffset",), 1 << 40)],
    ):
        found, plan = read(hours, *filters)
        assert (found, plan.bytes_to_read) == ([], 0)


def planner_of(root: Path, monkeypatch: pytest.MonkeyPatch, *filters: ds.Filter) -> skipping._Planner:
    planners: list[skipping._Planner] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            skipping._Planner, "narrowed", lambda planner, reading: planners.append(planner) or reading
        )
        read(root, *filters)
    return planners[0]


def test_batches_of_all_sizes_follow_each_other_over_the_files_of_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file goes on where the last batch of the one before ends: else the queue would prove nothing."""
    root, count = tmp_path / "store", 0
    settings = {**SETTINGS, "mapperFileSizeBatchConsumeQueue": 4 * 46, "storePathRootDir": str(root)}
    config = MessageStoreConfig.from_mapping(settings)
    with DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Inner") as store:
        store.load()
        store.start()
        for n in range(30):
            size = 1 + n % 7
            items = encode_messages([Message("", b"%d/%d" % (n, k)) for k in range(size)])
            batch = MessageExtBrokerInner("Inner", items, properties={PROPERTY_INNER_NUM: str(size)})
            batch.sys_flag = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
            assert store.put_message(batch).is_ok
            count += size
    planner = planner_of(root, monkeypatch, ds.EqualTo(("topic",), "Inner"))
    files = skipping.queue_files(planner._storage, ["Inner"])
    assert len(files) > 3
    proven = planner._proven_by(files, reading.Gathered(), math.inf)
    assert proven is not None
    [(name, queue)] = proven.items()
    assert name == ("Inner", 0) and queue.is_whole and queue.following == count
    missing = planner._proven_by([*files[:1], *files[2:]], reading.Gathered(), math.inf)
    assert missing is not None and not missing[name].is_whole


def test_queues_are_left_alone_once_they_are_most_of_the_log(
    long_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the records that are asked for: they end where a file of the queue ends."""
    asked = ds.LessThanOrEqual(("queueOffset",), 9)
    planner = planner_of(long_queue, monkeypatch, ds.EqualTo(("topic",), "B"), asked)
    files = skipping.queue_files(planner._storage, ["B"])
    assert len(files) == 6
    size = sum(m.store_size for m in seen(long_queue) if m.topic == "B" and m.queue_offset < 10)
    assert planner._proven_by(files, reading.Gathered(), size) is not None
    assert planner._proven_by(files, reading.Gathered(), size - 1) is None


def test_a_queue_of_many_is_found_without_a_look_at_the_others(
    hours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    run = skipping.QueueFile.run
    monkeypatch.setattr(skipping.QueueFile, "run", lambda file: opened.append(file.path) or run(file))
    rows, _ = read(hours, ds.EqualTo(("topic",), "Hour-4"), ds.EqualTo(("queueId",), 0))
    assert rows == [m.physical_offset for m in seen(hours) if (m.topic, m.queue_id) == ("Hour-4", 0)]
    assert opened and all(path.split("/")[-2] == "0" for path in opened)


def test_files_of_queues_that_cost_more_than_the_log_are_left_alone(
    hours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bytes_read() -> tuple[list[int], int, int]:
        found, plan = read(hours, ds.EqualTo(("topic",), "Hour-4"), skipping="known")
        return found, plan.bytes_to_read, plan.bytes_of_log

    found, some, whole = bytes_read()
    assert some < whole / 2
    monkeypatch.setattr(skipping, "LOCAL_FILES_MIN", 1)
    monkeypatch.setattr(skipping, "LOCAL_FILE", whole // 2)
    assert bytes_read() == (found, some, whole), "the topic has two files"
    monkeypatch.setattr(skipping, "LOCAL_FILE", whole)
    assert bytes_read() == (found, whole, whole)


def test_a_key_in_the_topics_that_are_there(
    hours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without a topic is a scan, unless deleted topics do not count."""
    root = copy_store(hours, tmp_path / "store")
    of_key = {key: [m.physical_offset for m in seen(root) if key in m.keys] for key in ("key-77", "key-390")}
    for key, expected in of_key.items():
        rows, planned = read(root, keys=key)
        assert rows == expected and planned.bytes_to_read == planned.bytes_of_log
        rows, planned = read(root, keys=key, skipping="known")
        assert rows == expected and planned.bytes_to_read < planned.bytes_of_log / 4
    shutil.rmtree(root / "consumequeue" / "Hour-1")
    assert read(root, keys="key-77")[0] == of_key["key-77"]
    assert read(root, keys="key-77", skipping="known")[0] == []
    assert read(root, keys="key-390", skipping="known")[0] == of_key["key-390"]
    monkeypatch.setattr(skipping, "LOOKUPS_MAX", 8)
    assert read(root, keys="key-77", skipping="known")[0] == of_key["key-77"]


def test_a_topic_whose_queues_are_believed(hours: Path, tmp_path: Path) -> None:
    """Its messages alone are read, not what lies before and after them, unless the store was not closed."""
    root = copy_store(hours, tmp_path / "store")
    topic = ds.EqualTo(("topic",), "Hour-2")
    wanted = [m.physical_offset for m in seen(root) if m.topic == "Hour-2"]
    size = sum(m.store_size for m in seen(root) if m.topic == "Hour-2")
    rows, planned = read(root, topic)
    assert rows == wanted and planned.bytes_to_read > 4 * size
    rows, planned = read(root, topic, skipping="known")
    assert rows == wanted and planned.bytes_to_read < 2 * size
    assert read(root, topic, skipping="known", mode="permissive")[1].bytes_to_read > 4 * size
    both = [ds.In(("topic",), ("Hour-2", "Hour-3"))]
    shutil.rmtree(root / "consumequeue" / "Hour-3")
    assert len(read(root, *both, skipping="known")[0]) == 2 * len(wanted), "without queues nothing is known"
    (root / "abort").write_text("1")
    rows, planned = read(root, topic, skipping="known")
    assert rows == wanted and planned.bytes_to_read > 4 * size


def test_what_a_writer_has_not_dispatched_is_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root, SETTINGS) as store:

        def put(topic: str, count: int) -> None:
            for n in range(count):
                assert store.put_message(
                    MessageExtBrokerInner(topic, bytes(100), keys=[f"{topic}-{n}"])
                ).is_ok

        put("A", 20), put("B", 100)
        assert store.wait_until_dispatched(PATIENCE_S)
        store._reput_service.shutdown(timeout_s=PATIENCE_S)
        put("A", 3)
        rows, planned = read(root, ds.EqualTo(("topic",), "A"), skipping="known")
        assert len(rows) == 23
        assert planned.bytes_to_read < planned.bytes_of_log / 2


def test_the_index_alone_finds_a_key_of_a_topic_without_inner_batches(
    hours: Path, inner_batches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no message of those."""
    message = next(m for m in seen(hours) if m.keys == "key-170")
    key = ds.EqualTo(("keys",), "key-170")
    planner = planner_of(hours, monkeypatch, ds.EqualTo(("topic",), message.topic), key)
    found = planner._by_index(1 << 30)
    assert found is not None and message.physical_offset in covered(found)
    assert found.cost < planner._high / 10
    for root, topic in ((hours, "Nobody"), (inner_batches, "Inner")):
        planner = planner_of(root, monkeypatch, ds.EqualTo(("topic",), topic), key)
        assert planner._by_index(1 << 30) is None
    with monkeypatch.context() as patch:
        patch.setattr(skipping.key_index, "hits", lambda *_: None)
        assert planner_of(hours, patch, ds.EqualTo(("topic",), message.topic), key)._by_index(1) is None
