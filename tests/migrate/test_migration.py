"""migrate: what arrives, restarts, positions, refusals. The Java side is in tests/interop/test_metaq_migrate.py."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.config_file import ConfigFile
from mqlake.cli.metaq.migrate import migrate as command
from mqlake.errors import (
    ConfigError,
    IllegalTopicError,
    MessageTooLargeError,
    MqlakeError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreError,
)
from mqlake.formats.batch import decode_messages, encode_messages
from mqlake.message import Message, MessageExt, MessageExtBrokerInner, bytes_to_properties
from mqlake.metaq.formats.record import encode_payload, encode_record
from mqlake.metaq.store.columns import Records, read_partition
from mqlake.metaq.store.inspect import Record, open_data_directory, read_records
from mqlake.metaq.store.message_store import MessageStore
from mqlake.migrate import append
from mqlake.migrate.append import encode, properties_of
from mqlake.migrate.migration import migrate
from mqlake.migrate.positions import GroupPosition, PositionCounter
from mqlake.store import ReadOnlyStore, open_store
from tests.metaq.records import fill

SMALL = {
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "mappedFileSizeCommitLog": 32 * 1024,
    "mappedFileSizeConsumeQueue": 6000,
}
TOPICS = (("orders", 0), ("orders", 2), ("a-topic", 0))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("migrate") / "data"
    root.mkdir()
    for topic, partition in TOPICS:
        fill(root, topic, partition, 150)
    return root


@pytest.fixture
def own(data: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(data, tmp_path / "own")
    return tmp_path / "own"


def records_of(root: Path, topic: str, partition: int) -> list[Record]:
    return list(read_records(open_data_directory(str(root)).partition(topic, partition)))


def queue(store: Path, topic: str, queue_id: int) -> list[MessageExt]:
    with ReadOnlyStore(store, {"maxMessageSize": 1 << 27}) as view:
        found: list[MessageExt] = []
        while len(found) < view.max_offset_in_queue(topic, queue_id):
            found += view.get_message("g", topic, queue_id, len(found), 32).messages()
        return found


def agrees(source: Path, store: Path, name: str = "TAGS") -> None:
    for topic, partition in TOPICS:
        expected = [
            {
                "body": record.message.data,
                "flag": record.message.flag,
                "properties": {
                    "KEYS": str(record.message.id),
                    "METAQ_OFFSET": str(record.offset),
                    **({name: record.message.attribute} if record.message.attribute else {}),
                },
            }
            for record in records_of(source, topic, partition)
        ]
        found = queue(store, topic, partition)
        assert [{"body": m.body, "flag": m.flag, "properties": m.properties} for m in found] == expected
        assert [m.queue_offset for m in found] == list(range(len(expected)))
        table = pq.read_table(store / "metaq" / "offsets" / f"{topic}-{partition}.parquet").to_pydict()
        assert table["offset"] == [record.offset for record in records_of(source, topic, partition)]
        assert table["queueOffset"] == [m.queue_offset for m in found]
        assert table["id"] == [int(m.properties["KEYS"]) for m in found]


def test_every_message_arrives(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    seen: list[tuple[int, int]] = []
    report = migrate(
        str(data), str(store), settings=SMALL, progress=lambda done, total: seen.append((done, total))
    )
    assert report.ok
    assert [(each.messages, each.stored, each.before) for each in report.partitions] == [(150, 150, 0)] * 3
    agrees(data, store)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    topics = ConfigFile(str(store / "config" / "topics.json")).load()["topicConfigTable"]
    assert {name: each["readQueueNums"] for name, each in topics.items()} == {"orders": 3, "a-topic": 1}


def test_a_partition_without_messages(own: Path, tmp_path: Path) -> None:
    MessageStore(str(own), "orders", 1).close()
    report = migrate(str(own), str(tmp_path / "store"), topics={"orders": "orders"}, settings=SMALL)
    assert report.ok and [each.stored for each in report.partitions] == [150, 0, 150]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"attribute": 1, "topics": {}, "firstOffsets": {}}'])
def test_a_beginning_that_cannot_be_read(own: Path, tmp_path: Path, raw: bytes) -> None:
    store = tmp_path / "store"
    assert migrate(str(own), str(store), settings=SMALL).ok
    (store / "metaq" / "migration.json").write_bytes(raw)
    with pytest.raises(StoreError, match=r"migration\.json: not"):
        migrate(str(own), str(store), settings=SMALL)


def test_a_second_run_takes_what_has_come_since(own: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    migrate(str(own), str(store), settings=SMALL, attribute_as="property")
    fill(own, "orders", 0, 40, seed=1)
    report = migrate(str(own), str(store), attribute_as="property")
    assert report.ok
    assert [(each.name, each.before, each.stored) for each in report.partitions] == [
        ("a-topic-0", 150, 150),
        ("orders-0", 150, 190),
        ("orders-2", 150, 150),
    ]
    agrees(own, store, "METAQ_ATTRIBUTE")


KILLED = """
import os, signal, sys
from mqlake.migrate import append
from mqlake.migrate.migration import migrate
append.BATCH_RECORDS = 7
calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
migrate(sys.argv[1], sys.argv[2], settings={settings}, progress=progress)
"""


@pytest.mark.parametrize("calls", [30, 70])
def test_a_run_that_was_killed_goes_on(data: Path, tmp_path: Path, calls: int) -> None:
    """While it appends to the second partition, and while it compares."""
    store = tmp_path / "store"
    script = KILLED.replace("{settings}", repr(SMALL))
    done = subprocess.run([sys.executable, "-c", script, str(data), str(store), str(calls)], check=False)
    assert done.returncode == -signal.SIGKILL
    report = migrate(str(data), str(store))
    assert sum(each.before for each in report.partitions) > 0
    assert report.ok
    agrees(data, store)


def test_topics_chosen_and_renamed(data: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    report = migrate(str(data), store, topics={"orders": "Orders"}, settings=SMALL)
    assert [(each.to_topic, each.partition) for each in report.partitions] == [("Orders", 0), ("Orders", 2)]
    with pytest.raises(ConfigError, match="began with topic orders as Orders"):
        migrate(str(data), store)
    with pytest.raises(ConfigError, match="attributes as tag"):
        migrate(str(data), store, topics={"orders": "Orders"}, attribute_as="property")
    with pytest.raises(ConfigError, match=r"unknown topic of .* 'other'"):
        migrate(str(data), store, topics={"other": "x"})
    with pytest.raises(ConfigError, match="would both become queue 0 of x"):
        migrate(str(data), store, topics={"orders": "x", "a-topic": "x"})
    with pytest.raises(IllegalTopicError, match="--topic orders=NAME"):
        migrate(str(data), store, topics={"orders": "a.b"})


# --- what is refused


def test_a_queue_with_other_messages(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_store(store, SMALL) as opened:
        assert opened.put_message(MessageExtBrokerInner("orders", b"x")).is_ok
    with pytest.raises(ConfigError, match="messages of another origin"):
        migrate(str(data), str(store))


def test_another_directory_than_before(data: Path, own: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    migrate(str(data), store, settings=SMALL)
    for name in ("orders-0", "orders-2"):
        (own / name).rename(own / f"{name}0")
    (own / "orders-00").rename(own / "orders-2")
    (own / "orders-20").rename(own / "orders-0")
    with pytest.raises(ConfigError, match="not the directory that the migration began with"):
        migrate(str(own), store)


def test_segments_that_were_deleted(own: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    fill(own, "orders", 0, 100, seed=1)
    migrate(str(own), store, settings=SMALL)
    Path(open_data_directory(str(own)).partition("orders", 0).segments[0].path).unlink()
    with pytest.raises(OffsetOutOfRangeError, match="MetaQ has deleted"):
        migrate(str(own), store)


def test_damage_is_named_and_can_be_repaired(own: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    record = [each for each in records_of(own, "orders", 0) if len(each.message.data) > 50][20]
    segment = open_data_directory(str(own)).partition("orders", 0).segments[0]
    log = bytearray(Path(segment.path).read_bytes())
    log[record.offset + record.size - 1] ^= 1
    Path(segment.path).write_bytes(log)
    with pytest.raises(StoreCorruptError, match=f"corrupt at byte {record.offset}: .*metaq store repair"):
        migrate(str(own), store, settings=SMALL)
    log[record.offset + record.size - 1] ^= 1
    Path(segment.path).write_bytes(log)
    assert migrate(str(own), store).ok
    agrees(own, Path(store))


@pytest.mark.parametrize(
    ("body", "attribute", "text"),
    [
        (b"x" * 40_000, None, "messages from offset 0 on"),
        (b"", "a" * 32_760, "offset 0 has an attribute of 32760 bytes"),
        (b"", "a" * 70_000, "offset 0 has an attribute of 70000 bytes"),
    ],
)
def test_a_message_that_has_no_room(tmp_path: Path, body: bytes, attribute: str | None, text: str) -> None:
    opened = MessageStore(str(tmp_path / "data"), "t", 0)
    opened.append(encode_record(encode_payload(body, attribute), 1, attribute is not None))
    opened.close()
    with pytest.raises(MqlakeError, match=text) as raised:
        migrate(str(tmp_path / "data"), str(tmp_path / "store"), settings=SMALL)
    assert attribute is None or isinstance(raised.value, MessageTooLargeError)


@pytest.mark.parametrize("field", ["body", "flag", "properties", "count"])
def test_a_store_that_differs_is_found(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """As if something else were written than what is read: every field is looked at."""

    def wrong(records: Records, properties: object) -> bytes:
        items = decode_messages(encode(records, properties))
        n = next(n for n, item in enumerate(items) if item.body)
        body, flag, text = items[n].body, items[n].flag, items[n].properties
        changed = Message(
            "",
            bytes([body[0] ^ 1]) + body[1:] if field == "body" else body,
            flag=flag ^ 2 if field == "flag" else flag,
            properties={**bytes_to_properties(text), **({"KEYS": "1"} if field == "properties" else {})},
        )
        rest = [Message("", i.body, flag=i.flag, properties=bytes_to_properties(i.properties)) for i in items]
        return encode_messages([*rest[:n], *([] if field == "count" else [changed]), *rest[n + 1 :]])

    monkeypatch.setattr(append, "encode", wrong)
    report = migrate(str(data), str(tmp_path / "store"), settings=SMALL)
    assert not report.ok
    assert not any(each.same for each in report.partitions)


# --- pieces


@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.none() | st.text(max_size=9), st.integers(-(2**63), 2**63 - 1))
    )
)
def test_batches_are_rocketmqs(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[bytes, str | None, int]]
) -> None:
    if not messages:
        return
    messages = [(body, text, number or 1) for body, text, number in messages]
    root = tmp_path_factory.mktemp("batch")
    (root / "t-0").mkdir()
    log = b"".join(encode_record(encode_payload(b, a), n, a is not None) for b, a, n in messages)
    (root / "t-0" / "00000000000000000000.meta").write_bytes(log)
    (files,) = open_data_directory(str(root)).partitions
    (records,) = read_partition(files)
    properties, changed = properties_of(records, "tag")
    items = decode_messages(encode(records, properties))
    assert [item.body for item in items] == [body for body, _, _ in messages]
    tags = [bytes_to_properties(item.properties).get("TAGS") for item in items]
    clean = [a and a.replace("\x01", " ").replace("\x02", " ") for _, a, _ in messages]
    assert tags == [a or None for a in clean]
    assert changed == sum(a != b for a, (_, b, _) in zip(clean, messages, strict=True))
    assert [bytes_to_properties(item.properties)["KEYS"] for item in items] == [
        str(n) for _, _, n in messages
    ]


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(-3, 200), st.integers(1, 5))
def test_positions(sizes: list[int], position: int, chunk: int) -> None:
    starts = np.cumsum([0, *sizes])
    counter = PositionCounter(GroupPosition("g", "t", 0, position))
    for first in range(0, len(sizes), chunk):
        counter.count(starts[1:][first : first + chunk])
    ends = [int(end) for end in starts[1:]]
    assert counter.queue_offset == sum(end <= position for end in ends)


def test_the_command(data: Path, tmp_path: Path) -> None:
    arguments = [
        str(data),
        str(tmp_path / "store"),
        "--topic",
        "orders=o",
        "--set",
        "mappedFileSizeCommitLog=64k",
    ]
    done = CliRunner().invoke(command, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["ok"]
    assert Counter(each["toTopic"] for each in report["partitions"]) == {"o": 2}
    done = CliRunner().invoke(command, arguments)
    assert "the same" in done.stdout
    assert "300 messages" in done.stdout
    for text in ("=x", "x="):
        assert CliRunner().invoke(command, [str(data), str(tmp_path / "s"), "--topic", text]).exit_code != 0


def test_a_migration_needs_no_spark(data: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; from mqlake.__main__ import main\n"
        "try: main()\n"
        "finally: print({each for each in sys.modules if each.startswith('mqlake.spark.')}, file=sys.stderr)"
    )
    for group in ("metaq", "spark"):
        arguments = [group, "migrate", str(data), str(tmp_path / group)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--set", "mappedFileSizeCommitLog=64k"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and "450 messages" in done.stdout, done.stderr
        assert "{'mqlake.spark.requirements'}" in done.stderr
