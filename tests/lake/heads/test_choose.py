"""Queries planned by heads: the rows of the log alone, without reading it."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import mqlake.lake
from mqlake.errors import OffsetOutOfRangeError, StoreCorruptError
from mqlake.lake.arrow.expressions import conditions_of
from mqlake.lake.arrow.filters import RowFilter
from mqlake.lake.heads import choose, valid
from mqlake.lake.heads import rows as heads_rows
from mqlake.lake.heads.choose import expression_of
from mqlake.lake.heads.schema import SCHEMA
from mqlake.lake.log.storage import Storage
from mqlake.lake.options import LogOptions
from mqlake.lake.plan import ReadPlan, plan_read
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.options import log_options, option_texts
from mqlake.store import open_store
from tests.lake.heads.logs import heads_of, random_records, write_all, write_log
from tests.lake.test_dataset import expression, rows_of
from tests.spark.stores import flip_bit, overwrite

FILE = 256 << 10
HOST = ("127.0.0.1", 1)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 messages of 1,000 bytes over many files of the log: one topic of 20, one message of another every 500."""
    root = tmp_path_factory.mktemp("shop") / "store"
    with open_store(
        root, {"mappedFileSizeCommitLog": FILE, "maxHashSlotNum": 100, "maxIndexNum": 4000}
    ) as store:
        for number in range(2000):
            topic = "Rare" if number % 500 == 7 else f"Topic-{number % 20}"
            message = MessageExtBrokerInner(topic, b"%1000d" % number, born_host=HOST, store_host=HOST)
            message.keys, message.tags, message.queue_id = (
                f"key-{number} shared",
                f"tag-{number % 3}",
                number % 4,
            )
            assert store.put_message(message).is_ok
    write_all(root)
    return root


def planned(root: Path, filter: pc.Expression | None = None, **options: object) -> ReadPlan:
    return plan_read(log_options(option_texts([str(root)], options)), conditions_of(filter))


def without_queues(root: Path, to: Path) -> Path:
    """A store of a log and its heads: nothing else says what is where."""
    to.mkdir()
    for name in ("commitlog", "heads"):
        os.symlink(root / name, to / name)
    return to


NARROW: list[tuple[str, dict[str, Any], pc.Expression | None, int]] = [
    ("topic", {"topics": "Rare"}, None, 4),
    ("topics", {}, pc.field("topic") == "Rare", 4),
    ("key", {"keys": "key-1234"}, None, 1),
    ("keys", {}, pc.field("keys") == "key-1234 shared", 1),
    ("no key", {"keys": "key-2000"}, None, 0),
    ("tag", {"topics": "Topic-3"}, (pc.field("tags") == "tag-1") & (pc.field("queueId") == 3), 33),
    ("offset", {"topics": "Topic-3"}, pc.field("queueOffset") == 17, 1),
    ("offsets", {"topics": "Topic-3", "start": {"Topic-3": {"3": 95}}}, None, 5),
]


@pytest.mark.parametrize(
    ("options", "filter", "count"), [each[1:] for each in NARROW], ids=[n[0] for n in NARROW]
)
def test_narrow_questions_read_little(
    shop: Path, tmp_path: Path, options: dict[str, Any], filter: pc.Expression | None, count: int
) -> None:
    root = without_queues(shop, tmp_path / "bare")
    rows = mqlake.lake.scan(root, **options).to_table(filter=filter)
    expected = mqlake.lake.scan(root, **options, skipping=False).to_table(filter=filter)
    assert rows_of(rows) == rows_of(expected) and rows.num_rows == count
    given: dict[str, object] = {key: value for key, value in options.items() if key != "start"}
    if "start" in options:
        given["startingOffsets"] = options["start"]
    found = planned(root, filter, **given)
    # what is read, and the last file, which has no heads
    assert found.bytes_to_read <= (count + 1) * 1400 + FILE, found.bytes_to_read


def test_a_time_is_found_without_a_walk(shop: Path, tmp_path: Path) -> None:
    root = without_queues(shop, tmp_path / "bare")
    times = mqlake.lake.scan(root, columns=["storeTimestamp"]).to_table()["storeTimestamp"].to_pylist()
    middle = times[1000]
    log = mqlake.lake.scan(root, start=middle, end=middle + timedelta(milliseconds=5))
    expected = [each for each in times if middle <= each < middle + timedelta(milliseconds=5)]
    assert log.count_rows() == len(expected) > 0
    field, until = pc.field("storeTimestamp"), middle + timedelta(milliseconds=5)
    assert mqlake.lake.scan(root).count_rows((field >= middle) & (field < until)) == len(expected)


def test_heads_that_a_query_cannot_need_are_not_opened(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is kept up to date asks for the end of the log each second, however long that is."""
    opened: list[str] = []
    open_heads = valid.open_heads
    monkeypatch.setattr(valid, "open_heads", lambda *given: opened.append(given[1]) or open_heads(*given))
    assert mqlake.lake.scan(shop, "Topic-3", start=3 * FILE, end=5 * FILE - 1).count_rows() > 0
    assert opened == [f"{number * FILE:020}.parquet" for number in (3, 4)]
    opened.clear()
    assert mqlake.lake.scan(shop, "Topic-3").count_rows() == 100 and len(opened) > 5


def test_row_groups_without_a_key_are_not_read(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys have no order, so that statistics do not say where one is."""
    read: list[int] = []
    rows_of_heads = choose.rows_of

    def counted(files: Any, columns: Any, filter: Any, groups: Any) -> Any:
        read.append(sum(map(len, groups)))
        return rows_of_heads(files, columns, filter, groups)

    monkeypatch.setattr(choose, "rows_of", counted)
    keys, log = pc.field("keys"), mqlake.lake.scan(shop)
    assert log.count_rows(keys == "key-10 shared") == 1
    assert log.count_rows(keys.isin(["key-10 shared", "key-1000 shared"])) == 2
    assert log.count_rows(pc.field("tags") == "tag-1") > 600
    assert read[0] < 3 and read[1] < 4 and read[2] > 5, read


@pytest.fixture(params=["all", "gaps"])
def store(request: pytest.FixtureRequest, store: Path) -> Path:
    """All kinds of records; with gaps, the first file has no heads."""
    if request.param == "gaps":
        min((store / "heads").iterdir()).unlink()
    return store


@pytest.mark.parametrize("unpack", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_random_questions_to_all_kinds_of_records(store: Path, unpack: bool, seed: int) -> None:
    log, rng = mqlake.lake.scan(store, unpack=unpack), random.Random(seed)
    whole = mqlake.lake.scan(store, unpack=unpack, skipping=False).to_table()
    rows, told = whole.to_pylist(), 0
    for _ in range(30):
        wanted = expression(rows, rng)
        given = RowFilter(LogOptions(stores=(Storage(str(store)),), unpack=unpack), conditions_of(wanted))
        told += expression_of(given) is not None
        assert rows_of(log.to_table(filter=wanted)) == rows_of(whole.filter(wanted)), str(wanted)
    assert told > 5


@pytest.mark.parametrize("seed", range(4))
def test_random_questions_to_random_records(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks that jump, times beyond the calendar, texts that are no UTF-8; some files have no heads, the others some
    row groups."""
    monkeypatch.setattr(heads_rows, "GROUP_BYTES", 2_000)
    root = write_log(tmp_path / "s", random_records(seed, 300), 9_000)
    draw = random.Random(seed)
    for path in write_all(root):
        if draw.random() < 0.3:
            os.unlink(path)
    whole = mqlake.lake.scan(root, unpack=False, skipping=False).to_table()
    rows = whole.to_pylist()
    for options in some_options(rows, draw):
        wanted = expression(rows, draw) if draw.random() < 0.5 else None
        try:
            expected = mqlake.lake.scan(root, unpack=False, skipping=False, **options).to_table(filter=wanted)
        except OffsetOutOfRangeError:
            continue
        found = mqlake.lake.scan(root, unpack=False, **options).to_table(filter=wanted)
        assert rows_of(found) == rows_of(expected), (options, str(wanted))


def some_options(rows: list[dict[str, Any]], draw: random.Random) -> Iterator[dict[str, Any]]:
    texts = [word for row in rows for word in (row["keys"] or "").split()] + [row["uniqKey"] for row in rows]
    for _ in range(20):
        options: dict[str, Any] = {}
        if draw.random() < 0.4:
            options["topics"] = [row["topic"] for row in draw.sample(rows, 2)]
        if draw.random() < 0.3:
            options["keys"] = [text for text in draw.sample(texts, 3) if text] or ["none"]
        for name in ("start", "end"):
            row = draw.choice(rows)
            kind = draw.random()
            if kind < 0.2:
                options[name] = row["physicalOffset"]
            elif kind < 0.4 and row["storeTimestamp"] is not None:
                options[name] = row["storeTimestamp"]
            elif kind < 0.6 and name == "start":
                options[name] = {row["topic"]: {str(row["queueId"]): row["queueOffset"]}}
        yield options


def test_heads_that_turn_out_damaged_are_left(
    shop: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ends of the file are sound, and a page of it is not."""
    root = tmp_path / "store"
    (root / "heads").mkdir(parents=True)
    os.symlink(shop / "commitlog", root / "commitlog")
    for path in (shop / "heads").iterdir():
        (root / "heads" / path.name).write_bytes(path.read_bytes())
    (row,) = mqlake.lake.scan(root, keys="key-507", columns=["physicalOffset"]).to_table().to_pylist()
    damaged = root / "heads" / f"{row['physicalOffset'] // FILE * FILE:020}.parquet"
    topics = pq.read_metadata(damaged).row_group(0).column(SCHEMA.names.index("topic"))
    flip_bit(damaged, topics.data_page_offset + topics.total_compressed_size // 2)
    with caplog.at_level(logging.WARNING):
        assert mqlake.lake.scan(root, topics="Rare", keys="key-507").count_rows() == 1
    assert "the log is read in their place" in caplog.text


def test_damage_of_a_record_that_is_wanted_is_said(shop: Path, tmp_path: Path) -> None:
    """And that of another one is not met."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    os.symlink(shop / "heads", root / "heads")
    for path in (shop / "commitlog").iterdir():
        (root / "commitlog" / path.name).write_bytes(path.read_bytes())
    rows = mqlake.lake.scan(root, keys="key-507", columns=["physicalOffset", "size"]).to_table().to_pylist()
    at = rows[0]["physicalOffset"] + rows[0]["size"] // 2
    log = root / "commitlog" / f"{at // FILE * FILE:020}"
    flip_bit(log, at % FILE)
    assert mqlake.lake.scan(root, keys="key-506").count_rows() == 1
    with pytest.raises(StoreCorruptError, match=str(log)):
        mqlake.lake.scan(root, keys="key-507").to_table()


def test_the_mode_that_shows_damage_reads_the_log(shop: Path, tmp_path: Path) -> None:
    root = without_queues(shop, tmp_path / "bare")
    size = sum(path.stat().st_size for path in (shop / "commitlog").iterdir())
    for mode in ("failFast", "dropMalformed"):
        assert planned(root, topics="Rare", mode=mode).bytes_to_read < size / 5
    assert planned(root, topics="Rare", mode="permissive").bytes_to_read > size / 2
    assert planned(root, topics="Rare", skipping=False).bytes_to_read > size / 2
    assert isinstance(mqlake.lake.scan(root, topics="Rare", mode="permissive").to_table(), pa.Table)


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_left_out_as_if_all_of_the_log_were_read(tmp_path: Path, seed: int) -> None:
    """Bodies and sizes that changed, stretches of zeros, and a file that was cut short, all after the heads."""
    draw = random.Random(seed)
    root = write_log(tmp_path / "store", random_records(seed, 600), 40_000)
    write_all(root)
    records = heads_of(root)
    paths = sorted((root / "commitlog").iterdir())
    for record in draw.sample([each for each in records if each["bodySize"] == 900], 30):
        at = record["physicalOffset"]
        flip_bit(paths[at // 40_000], at % 40_000 + draw.choice((3, 500)))
    at = draw.choice(records)["physicalOffset"]
    overwrite(paths[at // 40_000], at % 40_000, bytes(min(3000, 40_000 - at % 40_000)))
    if seed % 2:
        os.truncate(draw.choice(paths[:-1]), 30_000)
    topics = [record["topic"] for record in draw.sample(records, 2)]
    moment = draw.choice([record["storeTimestamp"] for record in records if record["storeTimestamp"]])
    wanted: list[tuple[dict[str, Any], pc.Expression | None]] = [
        ({"topics": topics}, None),
        ({"keys": "plain"}, None),
        ({}, pc.field("storeTimestamp") < moment),
        ({"topics": topics, "unpack": False}, pc.field("queueId") == 7),
    ]
    for options, filter in wanted:
        options |= {"mode": "dropMalformed"}
        found = mqlake.lake.scan(root, **options).to_table(filter=filter)
        log = mqlake.lake.scan(root, **options, skipping=False).to_table(filter=filter)
        assert rows_of(found) == rows_of(log), (seed, options)
