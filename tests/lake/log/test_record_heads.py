"""A record is found by its physical offset, in a log of however many files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.lake.log import record_heads
from mqlake.lake.log.record_heads import RecordHeads
from mqlake.lake.log.splits import LogFile, log_files
from mqlake.lake.log.storage import Storage
from tests.spark.stores import decoded, overwrite


class NeverWalked(list[LogFile]):
    """Files of a log of which nobody may look at all to find one."""

    def __iter__(self) -> Iterator[LogFile]:
        raise AssertionError("somebody looks at every file")


def test_a_record_of_many_files(every_kind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at all files for each record, and few files mapped at a time: a log may have 10,000."""
    monkeypatch.setattr(record_heads, "MAPPED_MAX", 2)
    storage = Storage(str(every_kind))
    heads = RecordHeads(storage, log_files(storage))
    heads.files = NeverWalked(heads.files)
    assert len(heads.files) > 2
    for message in decoded(every_kind):
        offset = message.physical_offset
        assert heads.store_time_at(offset) == message.store_timestamp
        assert heads.message_at(offset) == (message.topic, message.queue_id, message.queue_offset)
        assert heads.store_time_at(offset + 1) is heads.message_at(offset + 1) is None
    end = heads.files[-1].end_offset
    assert heads.store_time_at(-1) is heads.store_time_at(end) is heads.store_time_at(end + (1 << 20)) is None
    assert len(heads._mapped) == 2


def test_what_is_no_record_is_none(every_kind: Path, tmp_path: Path) -> None:
    """Of bytes that say another offset or are none of a record nothing is believed."""
    (tmp_path / "commitlog").mkdir()
    source = next(iter(sorted((every_kind / "commitlog").iterdir())))
    copy = tmp_path / "commitlog" / source.name
    copy.write_bytes(source.read_bytes())
    storage = Storage(str(tmp_path))
    assert RecordHeads(storage, log_files(storage)).store_time_at(0) is not None
    overwrite(copy, 28, b"\x00\x00\x00\x01")  # its physical offset
    assert RecordHeads(storage, log_files(storage)).store_time_at(0) is None
