from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import shutil
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import StoreError, WrongFileSizeError
from mqlake.formats.batch_consume_queue import encode_unit as encode_batch_unit
from mqlake.formats.consume_queue import encode_unit
from mqlake.message import MessageSysFlag, tags_code
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import FEW, ConsumeQueueStore
from tests.store.log_of import DELAY_LEVELS, LogOf, Record

PREPARED = MessageSysFlag.TRANSACTION_PREPARED_TYPE
COMMIT = MessageSysFlag.TRANSACTION_COMMIT_TYPE
ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE


def config_of(directory, **changes):
    config = MessageStoreConfig(
        store_path_root_dir=str(directory),
        mapped_file_size_consume_queue=200,
        mapper_file_size_batch_consume_queue=460,
        mapped_file_size_consume_queue_ext=1024,
    )
    return dataclasses.replace(config, **changes)


def make(directory, **options):
    changes = options.pop("config", {})
    return ConsumeQueueStore(config_of(directory, **changes), **options)


def reopened(directory, **options):
    thorough = options.pop("thorough", True)
    store = make(directory, **options)
    store.load()
    store.recover(thorough=thorough)
    return store


def records_of(spec, sys_flag=0):
    """`spec` names a queue for each record, like "a0 a1 b0 a0"; offsets are given out in order."""
    following = {}
    records = []
    for name in spec.split():
        topic, queue_id = name[0], int(name[1:])
        offset = following.get((topic, queue_id), 0)
        following[topic, queue_id] = offset + 1
        properties = {"TAGS": name} if offset % 2 else {}
        records.append(
            Record(
                topic=topic, queue_id=queue_id, queue_offset=offset, sys_flag=sys_flag, properties=properties
            )
        )
    return records


def expected_files(records):
    """(topic, queue id) → the bytes of its units, one record after the other."""
    found = {}
    for record in records:
        if record.sys_flag & 0xC not in (PREPARED, ROLLBACK):
            code = tags_code(record.properties.get("TAGS"))
            unit = encode_unit(record.physical_offset, record.size, code)
            found[record.topic, record.queue_id] = found.get((record.topic, record.queue_id), b"") + unit
    return found


def files_of(directory, kind="consumequeue"):
    """(topic, queue id) → the bytes of all its files together, without the zeros at the end."""
    found = {}
    for topic in os.listdir(f"{directory}/{kind}"):
        for queue_id in os.listdir(f"{directory}/{kind}/{topic}"):
            place = f"{directory}/{kind}/{topic}/{queue_id}"
            found[topic, int(queue_id)] = b"".join(
                pathlib.Path(place, name).read_bytes() for name in sorted(os.listdir(place))
            )
    return found


def same_units(directory, records):
    expected, found = expected_files(records), files_of(directory)
    assert found.keys() == expected.keys()
    for key, data in expected.items():
        assert found[key] == data.ljust(len(found[key]), b"\0")


# ---------------------------------------------------------------------------------------- dispatch

SPECS = ["a0", "a0 a0", "a0 a1 b0 a0 b7", "a0 " * 40, "a0 b0 a1 c3 " * 12, "z9 a0 b1 a0 z9 " * 9]


@pytest.mark.parametrize("spec", SPECS)
def test_units_of_a_log(tmp_path, spec):
    log = LogOf(records_of(spec))
    store = make(tmp_path)
    store.dispatch(*log.dispatched())
    same_units(tmp_path, log.records)
    assert store.max_physic_offset == log.end
    assert store.logics_msg_timestamp == log.records[-1].store_timestamp


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from([0, PREPARED, COMMIT, ROLLBACK]))
    ),
    st.lists(st.integers(1, 20), min_size=1),
)
@settings(max_examples=100, deadline=None)
def test_batches_of_any_size_give_the_same_files(tmp_path_factory, choices, sizes):
    directory = tmp_path_factory.mktemp("store")
    following, records = {}, []
    for topic, queue_id, sys_flag in choices:
        offset = following.get((topic, queue_id), 0)
        visible = sys_flag in (0, COMMIT)
        following[topic, queue_id] = offset + visible
        records.append(
            Record(topic=topic, queue_id=queue_id, queue_offset=offset if visible else 0, sys_flag=sys_flag)
        )
    log = LogOf(records)
    store = make(directory)
    start, turn = 0, 0
    while start < len(records):
        stop = start + sizes[turn % len(sizes)]
        turn += 1
        store.dispatch(*log.dispatched(start, stop))
        store.dispatch(*log.dispatched(max(0, start - 5), stop))  # again, with some before it
        start = stop
    if expected_files(records):
        same_units(directory, records)
    store = reopened(directory)
    if records:
        store.dispatch(*log.dispatched())
        store.recover_queue_offsets(0)
        assert store.queue_offsets == {key: number for key, number in following.items() if number}


def test_what_consumers_may_not_see_gets_no_unit(tmp_path):
    store = make(tmp_path)
    for sys_flag in (PREPARED, ROLLBACK):
        store.dispatch(*LogOf(records_of("a0 a1", sys_flag)).dispatched())
        store.dispatch(*LogOf(records_of("a0 a1 " * FEW, sys_flag)).dispatched())
    assert store.topics() == []
    assert not os.path.exists(f"{tmp_path}/consumequeue")


def test_delayed_messages_get_their_time(tmp_path):
    records = [
        Record(
            topic="SCHEDULE_TOPIC_XXXX", queue_id=1, queue_offset=n, properties={"DELAY": "2", "TAGS": "x"}
        )
        for n in range(12)
    ]
    log, store = LogOf(records), make(tmp_path)
    store.dispatch(*log.dispatched(0, 2))
    store.dispatch(*log.dispatched(2))
    queue = store.get("SCHEDULE_TOPIC_XXXX", 1)
    due = records[0].store_timestamp + DELAY_LEVELS[2]
    assert [queue.get(n).tags_code for n in range(12)] == [due] * 12


def test_topics_that_cannot_be_directories_are_left_out(tmp_path):
    store = make(tmp_path / "store")
    for topic in ("../outside", "a/b", ".", "..", "", "n" * 127 + "ü" * 65):
        record = Record(topic=topic)
        if len(topic.encode()) > 127:
            continue  # the first record version has no room for it
        store.dispatch(*LogOf([record]).dispatched())
    assert store.topics() == []
    assert os.listdir(tmp_path) == []


def test_negative_queue_ids_are_queues_of_their_own(tmp_path):
    records = [Record(queue_id=-1, queue_offset=n) for n in range(12)] + [Record(queue_id=1)]
    log, store = LogOf(records), make(tmp_path)
    store.dispatch(*log.dispatched())
    same_units(tmp_path, records)
    assert reopened(tmp_path).get("T", -1).max_offset_in_queue == 12


def test_nothing_to_dispatch(tmp_path):
    store = make(tmp_path)
    scan, columns = LogOf(records_of("a0")).dispatched()
    empty = type(scan)(scan._wide[:, :0], scan._narrow[:, :0], scan._topic_record[:0])
    store.dispatch(empty, columns)
    assert store.topics() == []
    assert store.max_physic_offset == -1


@pytest.mark.parametrize("spec", ["a0 b0 c0", "a0 b0 c0 " * 12])
def test_a_full_disk_stops_dispatch_and_dispatching_again_completes_it(tmp_path, monkeypatch, spec):
    log, store = LogOf(records_of(spec)), make(tmp_path)
    whole, room = os.pwrite, iter([True])

    def full(fd, data, position):
        if not next(room, False):
            raise OSError(28, "No space left on device")
        return whole(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        store.dispatch(*log.dispatched())
    assert store.logics_msg_timestamp == 0
    monkeypatch.undo()
    store.dispatch(*log.dispatched())
    same_units(tmp_path, log.records)


def test_a_lost_file_is_filled_from_the_log(tmp_path):
    log, store = LogOf(records_of("a0 b0 " * 30)), make(tmp_path)
    store.dispatch(*log.dispatched())
    store.close()
    os.unlink(f"{tmp_path}/consumequeue/a/0/{200:020d}")
    os.unlink(f"{tmp_path}/consumequeue/a/0/{400:020d}")
    store = reopened(tmp_path)
    store.dispatch(*log.dispatched(50))  # recovery began in the middle of the log
    assert store.has_gaps
    store.cut_gaps()
    store.dispatch(*log.dispatched())
    assert not store.has_gaps
    same_units(tmp_path, log.records)


def test_before_the_whole_log_comes_nothing_is_written_after_a_gap(tmp_path):
    """A process that is killed between leaves queues that lack their end, and no pre-blanks that nobody fills."""
    log, store = LogOf(records_of("a0 b0 " * 30)), make(tmp_path)
    store.dispatch(*log.dispatched())
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "a")
    for start in (200, 400):
        os.unlink(f"{tmp_path}/consumequeue/b/0/{start:020d}")
    before = {path: path.read_bytes() for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()}
    store = reopened(tmp_path)
    store.stop_at_gaps(True)
    for start in (50, 58):
        store.dispatch(*log.dispatched(start))
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()
    }
    assert store.has_gaps and store.get("a", 0).is_empty
    store.cut_gaps()
    store.stop_at_gaps(False)
    store.dispatch(*log.dispatched())
    same_units(tmp_path, log.records)


# ---------------------------------------------------------------------------------------- inner batches


def batch_records(count):
    records, base = [], 0
    for number in range(count):
        size = number % 3 + 1
        properties = {"INNER_NUM": str(size), "INNER_BASE": str(base), "TAGS": "t"}
        records.append(
            Record(
                topic="B",
                queue_offset=base,
                sys_flag=0xC0,
                properties=properties,
                store_timestamp=5000 + number,
            )
        )
        base += size
    return records


def test_inner_batches_of_a_batch_topic(tmp_path):
    def queue_type_of(topic):
        return "BatchCQ" if topic == "B" else "SimpleCQ"

    log = LogOf([*batch_records(14), *records_of("a0 a0")])
    store = make(tmp_path, queue_type_of=queue_type_of)
    store.dispatch(*log.dispatched(0, 3))
    store.dispatch(*log.dispatched())
    units = b"".join(
        encode_batch_unit(
            record.physical_offset,
            record.size,
            tags_code("t"),
            record.store_timestamp,
            record.queue_offset,
            int(record.properties["INNER_NUM"]),
        )
        for record in log.records[:14]
    )
    found = files_of(tmp_path, "batchconsumequeue")
    assert list(found) == [("B", 0)]
    assert found["B", 0] == units.ljust(920, b"\0")
    assert list(files_of(tmp_path)) == [("a", 0)]
    store = reopened(tmp_path, queue_type_of=queue_type_of)
    store.recover_queue_offsets(0)
    assert store.queue_offsets == {("B", 0): 27, ("a", 0): 2}
    assert store.max_physic_offset == log.end


@pytest.mark.parametrize("base", [None, 100])
def test_messages_alone_in_a_batch_topic(tmp_path, base):
    records = [
        Record(topic="B", queue_offset=number, store_timestamp=5000 + number) for number in range(FEW + 4)
    ]
    if base is not None:
        for number, record in enumerate(records):
            record.properties.update({"INNER_NUM": "1", "INNER_BASE": str(base + number)})
    store = make(tmp_path, queue_type_of=lambda _: "BatchCQ")
    store.dispatch(*LogOf(records).dispatched())
    units = b"".join(
        encode_batch_unit(
            record.physical_offset, record.size, 0, record.store_timestamp, (base or 0) + number, 1
        )
        for number, record in enumerate(records)
    )
    written = b"".join(
        path.read_bytes().rstrip(b"\0").ljust(460, b"\0")
        for path in sorted((tmp_path / "batchconsumequeue/B/0").iterdir())
    )
    assert written.startswith(units)


def test_inner_batches_are_written_together(tmp_path, monkeypatch):
    writes = []
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: writes.append(len(data)) or whole(fd, data, at))
    store = make(tmp_path, queue_type_of=lambda _: "BatchCQ")
    store.dispatch(*LogOf(batch_records(24)).dispatched())
    assert writes == [460, 460, 4 * 46]


@pytest.mark.parametrize("count", [FEW, 30])
def test_inner_batches_of_a_topic_that_is_none(tmp_path, count):
    records = batch_records(count)
    store = make(tmp_path)
    store.dispatch(*LogOf(records).dispatched())
    queue = store.get("B", 0)
    for record in records:
        assert queue.get(record.queue_offset).physical_offset == record.physical_offset


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_impossible_batches_get_no_unit(tmp_path, count):
    records = batch_records(count)
    for record in records:
        record.properties["INNER_NUM"] = "0"
    store = make(tmp_path, queue_type_of=lambda _: "BatchCQ")
    store.dispatch(*LogOf(records).dispatched())
    assert store.get("B", 0).max_offset_in_queue == 0


def test_queues_of_another_type_than_the_topic(tmp_path):
    make(tmp_path).dispatch(*LogOf(records_of("a0")).dispatched())
    with pytest.raises(StoreError, match=r"topic a .* SimpleCQ.* BatchCQ"):
        make(tmp_path, queue_type_of=lambda _: "BatchCQ").load()
    reader = make(tmp_path, queue_type_of=lambda _: "BatchCQ", read_only=True)
    reader.load()
    assert reader.get("a", 0).max_offset_in_queue == 1


# ---------------------------------------------------------------------------------------- opening


def _note(told, done, total):
    told.append((done, total))


def test_reopening_finds_every_queue(tmp_path):
    log = LogOf(records_of("a0 a1 b0 " * 12))
    store = make(tmp_path)
    store.dispatch(*log.dispatched())
    store.close()
    os.makedirs(f"{tmp_path}/consumequeue/a/no number")
    for thorough in (True, False):
        told = []
        store = make(tmp_path)
        store.load()
        end = store.recover(thorough=thorough, progress=functools.partial(_note, told))
        assert end == log.end
        assert told == [(0, 3)]
        assert sorted(store.topics()) == ["a", "b"]
        assert sorted(store.queues("a")) == [0, 1]
        assert store.queues("none") == {}
        assert store.get("a", 5) is None
        assert store.get("none", 0) is None
        assert store.total_size == 3 * 400


def test_offsets_are_filled_in_place(tmp_path):
    log = LogOf(records_of("a0 a0 a1"))
    store = make(tmp_path)
    offsets = store.queue_offsets
    offsets["gone", 0] = 5
    store.dispatch(*log.dispatched())
    store.recover_queue_offsets(log.records[1].physical_offset)
    assert offsets == {("a", 0): 2, ("a", 1): 1}
    assert store.queue_offsets is offsets
    assert store.get("a", 0).min_offset_in_queue == 1


def test_another_file_size_is_refused(tmp_path):
    make(tmp_path).dispatch(*LogOf(records_of("a0")).dispatched())
    with pytest.raises(WrongFileSizeError, match="mappedFileSizeConsumeQueue"):
        make(tmp_path, config={"mapped_file_size_consume_queue": 400}).load()


def test_truncation_reaches_every_queue(tmp_path):
    log, store = LogOf(records_of("a0 b0 c0 " * 12)), make(tmp_path)
    store.dispatch(*log.dispatched())
    end = log.records[10].physical_offset
    store.truncate_dirty(end)
    same_units(tmp_path, log.records[:10])
    assert store.max_physic_offset == end


def test_five_thousand_files_are_open_with_few_descriptors(memory):
    root = f"{memory}/consumequeue"
    os.makedirs(root)
    for topic in range(250):
        os.mkdir(f"{root}/T{topic}")
        for queue_id in range(20):
            os.mkdir(f"{root}/T{topic}/{queue_id}")
            with open(f"{root}/T{topic}/{queue_id}/{0:020d}", "wb") as file:
                file.write(encode_unit(topic * 1000 + queue_id, 100, 0))
                file.truncate(200)
    before = len(os.listdir("/proc/self/fd"))
    store = make(memory)
    store.pool = FilePool(16)
    store.load()
    assert store.recover() == 249 * 1000 + 19 + 100
    store.recover_queue_offsets(0)
    assert len(store.queue_offsets) == 5_000
    assert len(store.pool) <= 16
    assert len(os.listdir("/proc/self/fd")) <= before + 16
    store.close()


# ---------------------------------------------------------------------------------------- flushing, deleting


def test_flush_touches_only_what_changed(tmp_path):
    store = make(tmp_path)
    store.dispatch(*LogOf(records_of("a0 b0")).dispatched())
    synced = []
    store.pool.fdatasync = lambda file: synced.append(file.path)
    assert not store.flush(2)
    assert synced == []
    assert store.flush()
    assert len(synced) == 2
    assert store.flush()
    assert len(synced) == 2


def test_after_a_failed_flush_none_counts(tmp_path):
    store = make(tmp_path)
    store.dispatch(*LogOf(records_of("a0 b0")).dispatched())

    def broken(_file):
        raise OSError(5, "Input/output error")

    store.pool.fdatasync, real = broken, store.pool.fdatasync
    with pytest.raises(OSError, match="Input/output"):
        store.flush()
    store.pool.fdatasync = real
    with pytest.raises(OSError, match="an earlier flush failed: Input/output error"):
        store.flush()
    assert 0 in (store.get("a", 0).files.flushed_where, store.get("b", 0).files.flushed_where)


def test_a_queue_is_to_be_flushed_only_when_it_has_its_units(tmp_path, monkeypatch):
    store = make(tmp_path)
    put = ConsumeQueue.put_unit

    def flushed_meanwhile(queue, *unit):
        assert store.flush()
        put(queue, *unit)

    monkeypatch.setattr(ConsumeQueue, "put_unit", flushed_meanwhile)
    store.dispatch(*LogOf(records_of("a0")).dispatched())
    assert store.get("a", 0).files.flushed_where == 0
    assert store.flush()
    assert store.get("a", 0).files.flushed_where == 20


@pytest.mark.parametrize("age_ms", [0, 60_000])
def test_after_a_crash_what_was_written_lately_is_flushed_again(tmp_path, age_ms):
    store = make(tmp_path)
    store.dispatch(*LogOf(records_of("a0 " * 25)).dispatched())
    again = make(tmp_path)
    again.load()
    queue = again.get("a", 0)
    flushed_until = queue.files.modified_ms + age_ms
    again.recover(flushed_until=flushed_until)
    assert len(queue.files.files) == 3
    assert queue.files.flushed_where == (25 * 20 if age_ms else 0)
    again.flush()
    assert queue.files.flushed_where == 25 * 20


def test_expired_files_and_queues(tmp_path):
    records = [*records_of("a0 b0 " * 25), *records_of("c0")]
    records.insert(0, Record(topic="RMQ_SYS_TRANS_HALF_TOPIC"))
    log, store = LogOf(records), make(tmp_path)
    store.dispatch(*log.dispatched())
    store.recover_queue_offsets(0)
    assert store.delete_expired_file(records[-1].physical_offset) == 4
    assert store.get("a", 0).min_offset_in_queue == 25
    store.queue_offsets["a", 0] += 1  # a message was put and not dispatched yet
    assert store.clean_expired(records[-1].physical_offset) == 1
    store.queue_offsets["a", 0] -= 1
    assert store.clean_expired(records[-1].physical_offset) == 1
    assert sorted(store.topics()) == ["RMQ_SYS_TRANS_HALF_TOPIC", "c"]
    assert sorted(os.listdir(f"{tmp_path}/consumequeue")) == ["RMQ_SYS_TRANS_HALF_TOPIC", "c"]
    assert sorted(store.queue_offsets) == [("RMQ_SYS_TRANS_HALF_TOPIC", 0), ("c", 0)]


def test_a_deleted_topic_begins_anew(tmp_path):
    log, store = LogOf(records_of("a0 a1 b0 a0")), make(tmp_path)
    store.dispatch(*log.dispatched())
    store.recover_queue_offsets(0)
    assert store.delete_topic("a")
    assert not store.delete_topic("a")
    assert store.topics() == ["b"]
    assert store.queue_offsets == {("b", 0): 1}
    assert os.listdir(f"{tmp_path}/consumequeue") == ["b"]
    again = LogOf(records_of("a0"), base=log.end)
    store.dispatch(*again.dispatched())
    assert store.get("a", 0).get(0).physical_offset == log.end
    # what the log still has of the old topic does not come back in a rebuild
    store.destroy()
    store.dispatch(*log.dispatched())
    store.dispatch(*again.dispatched())
    assert store.get("a", 0).max_offset_in_queue == 1
    assert store.get("a", 0).get(0).physical_offset == log.end


def test_destroy(tmp_path):
    store = make(tmp_path, config={"enable_consume_queue_ext": True})
    store.dispatch(*LogOf(records_of("a0 a1 b0")).dispatched())
    assert os.listdir(f"{tmp_path}/consumequeue_ext/b/0") == ["0" * 20]
    store.destroy()
    assert store.topics() == []
    assert os.listdir(f"{tmp_path}/consumequeue") == os.listdir(f"{tmp_path}/consumequeue_ext") == []


# ---------------------------------------------------------------------------------------- beside a writer


def test_a_reader_beside_a_writer(tmp_path):
    log = LogOf(records_of("a0 a1 b0 " * 12))
    writer, reader = make(tmp_path), make(tmp_path, read_only=True)
    reader.load()
    assert reader.topics() == []
    for start in range(0, 36, 9):
        writer.dispatch(*log.dispatched(start, start + 9))
        reader.refresh()
        assert reader.max_physic_offset == writer.max_physic_offset
        for queue in writer:
            read = reader.get(queue.topic, queue.queue_id)
            assert read.max_offset_in_queue == queue.max_offset_in_queue
            assert read.get_range(0, 99).tolist() == queue.get_range(0, 99).tolist()
    reader.close()


def test_cleaning_beside_dispatch(tmp_path):
    records = records_of("a0 a1 " * 1500)
    log, store = LogOf(records), make(tmp_path)
    dispatched = [log.dispatched(start, start + 50) for start in range(0, 3000, 50)]
    failures = []

    def clean():
        try:
            while thread.is_alive():
                store.delete_expired_file(max(0, store.max_physic_offset - 5000))
                store.flush()
        except BaseException as error:
            failures.append(error)

    def dispatch():
        for part in dispatched:
            store.dispatch(*part)

    thread = threading.Thread(target=dispatch)
    cleaner = threading.Thread(target=clean)
    thread.start()
    cleaner.start()
    thread.join()
    cleaner.join()
    assert failures == []
    for queue in store:
        assert queue.max_offset_in_queue == 1500
        assert queue.get(1499).physical_offset == records[2998 + queue.queue_id].physical_offset
