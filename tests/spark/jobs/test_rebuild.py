"""The parallel rebuild: the bytes are those of the store's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.errors import StoreCorruptError
from mqlake.spark.jobs.rebuild import rebuild
from mqlake.store.check.rebuild import DERIVED, rebuild_store
from mqlake.store.check.verify import verify_store
from tests.golden import unpack
from tests.spark.stores import copy_store, decoded, log_files, overwrite

SETTINGS: dict[str, object] = {"maxHashSlotNum": 100, "maxIndexNum": 400, "mappedFileSizeConsumeQueue": 2000}


def derived(root: Path) -> dict[str, bytes]:
    """Names of index files are times; their order counts."""
    found: dict[str, bytes] = {}
    for name in DERIVED:
        for n, path in enumerate(sorted(p for p in (root / name).rglob("*") if p.is_file())):
            place = f"index/{n}" if name == "index" else str(path.relative_to(root))
            found[place] = path.read_bytes()
    return found


@pytest.mark.spark
def test_bytes_are_the_same(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    one, other = copy_store(every_kind, tmp_path / "one"), copy_store(every_kind, tmp_path / "other")
    settings = {**SETTINGS, "maxIndexNum": 50}
    expected = rebuild_store(one, settings)
    for name in ("consumequeue", "index"):
        shutil.rmtree(other / name)
    report = rebuild(spark, str(other), settings)
    assert derived(other) == derived(one)
    assert len([name for name in derived(other) if name.startswith("index/")]) > 2
    for name in ("records", "queues", "topics", "index_files", "index_entries", "start_offset", "end_offset"):
        assert getattr(report, name) == getattr(expected, name), name
    assert verify_store(other, settings).findings == []


@pytest.mark.spark
def test_batch_queues_of_java(spark: SparkSession, tmp_path: Path) -> None:
    golden = unpack("innerbatch", tmp_path)
    queues = {name: data for name, data in derived(golden.root).items() if not name.startswith("index/")}
    shutil.rmtree(golden.root / "batchconsumequeue")
    rebuild(spark, str(golden.root), golden.config)
    assert {
        name: data for name, data in derived(golden.root).items() if not name.startswith("index/")
    } == queues


@pytest.mark.spark
def test_a_damaged_log_is_refused(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    overwrite(log_files(root)[0], 6000, bytes(3000))
    before = derived(root)
    with pytest.raises(StoreCorruptError, match="of the log are lost"):
        rebuild(spark, str(root), SETTINGS)
    assert derived(root) == before


@pytest.mark.spark
def test_queues_that_know_better_are_not_overwritten(
    spark: SparkSession, every_kind: Path, tmp_path: Path
) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    message = decoded(root)[60]
    overwrite(log_files(root)[0], message.physical_offset + 12, (message.queue_id ^ 1).to_bytes(4, "big"))
    before = derived(root)
    with pytest.raises(StoreCorruptError, match="QUEUEID is wrong"):
        rebuild(spark, str(root), SETTINGS)
    assert derived(root) == before
    assert rebuild(spark, str(root), SETTINGS, trust_log=True).contradictions == 1
