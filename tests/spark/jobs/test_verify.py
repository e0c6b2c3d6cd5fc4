"""The parallel verification beside the one of the store: reports are equal, on sound stores and on damaged ones."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqlake.errors import NotAStoreError
from mqlake.spark.jobs import verify as job
from mqlake.spark.jobs.verify import StoresReport, verify_stores
from mqlake.store.check.verify import VerifyReport, verify_store
from tests.golden import Golden
from tests.spark.stores import body_position, copy_store, decoded, flip_bit, log_files, overwrite

SETTINGS: dict[str, object] = {"maxHashSlotNum": 100, "maxIndexNum": 400}


def alike(report: VerifyReport) -> VerifyReport:
    return dataclasses.replace(report, seconds=0.0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces one after the other in this process, without a JVM."""

    def per_piece(_spark: object, items: Any, work: Any, _columns: object) -> SimpleNamespace:
        rows = [SimpleNamespace(**row) for item in items for batch in work(item) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)

    monkeypatch.setattr(job, "per_piece", per_piece)
    monkeypatch.setattr(job, "parallelism", lambda _spark: 3)


def verified(*roots: Path, settings: dict[str, object] | None = None) -> StoresReport:
    return verify_stores(None, *map(str, roots), settings=settings, split_size=3000)  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
def test_stores_of_java(golden: Golden) -> None:
    settings = {name: golden.config[name] for name in ("maxHashSlotNum", "maxIndexNum")}
    found = verified(golden.root, settings=settings)
    assert [alike(report) for report in found.stores] == [alike(verify_store(golden.root, settings))]
    assert not found.in_doubt
    assert sum(topic.records for topic in found.topics) == found.stores[0].records


def flip_body(root: Path) -> None:
    message = next(m for m in decoded(root) if len(m.body) > 50)
    flip_bit(log_files(root)[0], message.physical_offset + body_position(message))


def zeros_in_the_log(root: Path) -> None:
    overwrite(log_files(root)[0], 6000, bytes(3000))


def torn_tail(root: Path) -> None:
    last = decoded(root)[-1]
    file = log_files(root)[-1]
    overwrite(file, last.physical_offset - int(file.name) + 40, bytes(last.store_size - 40))


def another_queue_offset(root: Path) -> None:
    message = decoded(root)[60]
    overwrite(log_files(root)[0], message.physical_offset + 20, (77).to_bytes(8, "big"))


def another_queue(root: Path) -> None:
    message = decoded(root)[60]
    overwrite(log_files(root)[0], message.physical_offset + 12, (message.queue_id ^ 1).to_bytes(4, "big"))


def a_unit(root: Path) -> None:
    overwrite(next((root / "consumequeue" / "Topic-1" / "1").iterdir()), 40, b"\x01")


def a_queue_gone(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Topic-2" / "2")


def a_unit_too_many(root: Path) -> None:
    file = max((root / "consumequeue" / "Topic-1" / "1").iterdir())
    units = -(-len(file.read_bytes().rstrip(b"\0")) // 20)
    overwrite(file, units * 20, (1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))


def an_index_entry(root: Path) -> None:
    overwrite(min((root / "index").iterdir()), 40 + 400 + 20 * 9 + 4, b"\1\2")


def an_index_chain(root: Path) -> None:
    overwrite(min((root / "index").iterdir()), 40 + 4 * 7, (3).to_bytes(4, "big"))


def checkpoint_of_the_future(root: Path) -> None:
    overwrite(root / "checkpoint", 0, (1 << 50).to_bytes(8, "big"))


def not_closed(root: Path) -> None:
    (root / "abort").touch()
    torn_tail(root)


DAMAGES = [
    flip_body,
    zeros_in_the_log,
    torn_tail,
    another_queue_offset,
    another_queue,
    a_unit,
    a_queue_gone,
    a_unit_too_many,
    an_index_entry,
    an_index_chain,
    checkpoint_of_the_future,
    not_closed,
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(damage: Callable[[Path], None], every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    damage(root)
    found = verified(root, settings=SETTINGS)
    expected = verify_store(root, SETTINGS)
    assert [alike(report) for report in found.stores] == [alike(expected)]
    assert expected.findings
    assert found.in_doubt


@pytest.mark.spark
def test_in_spark(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    damaged = copy_store(every_kind, tmp_path / "store")
    flip_body(damaged)
    found = verify_stores(spark, str(every_kind), str(damaged), settings=SETTINGS, split_size=20000)
    assert [alike(report) for report in found.stores] == [
        alike(verify_store(root, SETTINGS)) for root in (every_kind, damaged)
    ]
    assert [report.ok for report in found.stores] == [True, False]
    assert not found.ok
    with pytest.raises(NotAStoreError):
        verify_stores(spark, str(tmp_path / "nowhere"))
