from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mqlake.errors import StoreFencedError
from mqlake.metaq.broker.journal import JournalStore
from mqlake.metaq.formats.checkpoint import JournalLocation, encode_checkpoint
from mqlake.metaq.formats.journal import (
    AppendMessage,
    JournalRecord,
    MessageLocation,
    OperationType,
    TransactionOperation,
)


def put(n: int, size: int = 10) -> AppendMessage:
    return AppendMessage(n, bytes(size))


def rollback(n: int) -> TransactionOperation:
    return TransactionOperation(OperationType.LOCAL_ROLLBACK, f"TX:s:{n}")


def opened(
    path: Path, size_max: int = 1000
) -> tuple[JournalStore, list[tuple[JournalLocation, JournalRecord]]]:
    journal = JournalStore(str(path), file_size_max=size_max, checkpoints_max=2)
    found: list[tuple[JournalLocation, JournalRecord]] = []
    journal.recover(lambda at, decoded: found.append((at, decoded.record)))
    return journal, found


def redo(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith("redo"))


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal, found = opened(tmp_path)
    assert found == [] and redo(tmp_path) == ["redo.1"]
    first = journal.write(put(1))
    second = journal.write(put(2), first)
    third = journal.write(rollback(1), first)
    journal.close()
    _, found = opened(tmp_path)
    assert found == [(first, put(1)), (second, put(2)), (third, rollback(1))]


def test_a_transaction_stays_in_its_file_and_files_go_when_nothing_is_open(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    one = journal.write(put(1, 600))
    two = journal.write(put(2, 600))
    three = journal.write(put(3, 600))
    assert [one.number, two.number, three.number] == [1, 1, 2]
    assert journal.write(rollback(1), one).number == 1
    journal.ended(one)
    assert redo(tmp_path) == ["redo.1", "redo.2"]
    journal.write(rollback(2), two)
    journal.ended(two)
    assert redo(tmp_path) == ["redo.2"]
    four = journal.write(put(4, 900), three)
    journal.ended(three)
    assert redo(tmp_path) == ["redo.3"] and four.number == 2
    journal.close()
    journal, found = opened(tmp_path)
    assert found == [] and redo(tmp_path) == ["redo.3"]


def test_what_is_cut_off_is_kept_beside(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    first = journal.write(put(1))
    end = journal.end.offset
    journal.write(put(2), first)
    journal.close()
    path = tmp_path / "redo.1"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    journal, found = opened(tmp_path)
    assert [record for _, record in found] == [put(1)] and path.read_bytes() == whole[:end]
    journal.close()
    assert (tmp_path / f"cut-redo.1-{end}").read_bytes() == whole[end:-3]
    path.write_bytes(whole[: end + 4] + b"\xff" * 20)
    journal, found = opened(tmp_path)
    assert len(found) == 1 and path.read_bytes() == whole[:end]
    assert (tmp_path / f"cut-redo.1-{end}").read_bytes().endswith(b"\xff" * 20)


def test_checkpoints_go_forward_and_few_are_kept(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    locations = [journal.write(put(n)) for n in range(6)]
    for location in (*locations[1:5], locations[4], locations[2]):
        journal.make_checkpoint(location)
    assert sorted(name for name in os.listdir(tmp_path) if "check" in name) == [
        "checkpoint.3",
        "checkpoint.4",
    ]
    journal.close()
    journal, found = opened(tmp_path)
    assert [record for _, record in found] == [put(4), put(5)]
    journal.close()
    (tmp_path / "checkpoint.4").write_bytes(b"{")
    (tmp_path / "checkpoint.5").write_bytes(b"")
    assert [record for _, record in opened(tmp_path)[1]] == [put(3), put(4), put(5)]


def test_files_before_the_checkpoint_are_not_read(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.make_checkpoint(JournalLocation(2, 0))
    journal.close()
    (tmp_path / "redo.1").write_bytes(b"rubbish")
    (tmp_path / "redo.2").write_bytes(b"")
    journal, found = opened(tmp_path)
    assert found == [] and journal.end == JournalLocation(2, 0)
    assert (tmp_path / "redo.1").read_bytes() == b"rubbish"


@pytest.mark.parametrize("wrong", [JournalLocation(2, 0), JournalLocation(1, 1), JournalLocation(1, 9999)])
def test_a_checkpoint_that_leads_nowhere_does_not_count(tmp_path: Path, wrong: JournalLocation) -> None:
    journal, _ = opened(tmp_path)
    journal.write(put(1))
    second = journal.write(put(2))
    journal.make_checkpoint(second)
    journal.make_checkpoint(journal.end)
    journal.close()
    (tmp_path / "checkpoint.2").write_bytes(encode_checkpoint(wrong))
    journal, found = opened(tmp_path)
    assert [record for _, record in found] == [put(2)]
    third = journal.write(put(3))
    journal.close()
    journal, found = opened(tmp_path)
    assert [record for _, record in found] == [put(2), put(3)] and third.number == 1
    journal.close()


def test_a_torn_record_behind_the_checkpoint(tmp_path: Path) -> None:
    """The bytes there are no record; those before lead to it."""
    journal, _ = opened(tmp_path)
    journal.write(put(1))
    journal.make_checkpoint(journal.end)
    end = journal.write(put(2)).offset
    journal.close()
    path = tmp_path / "redo.1"
    path.write_bytes(path.read_bytes()[:-1])
    journal, found = opened(tmp_path)
    assert found == [] and journal.end.offset == end
    journal.close()


def test_locations_are_put_right(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    commit = TransactionOperation(
        OperationType.LOCAL_COMMIT, "TX:s:1", False, (MessageLocation("t-0", 5, 10, 77),)
    )
    journal.write(commit)
    journal.write_locations(JournalLocation(1, journal.end.offset - 23), (MessageLocation("t-0", 9, 10, 77),))
    journal.close()
    (_, record) = opened(tmp_path)[1][0]
    assert isinstance(record, TransactionOperation) and record.locations[0].offset == 9


def test_one_sync_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    syncs: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (syncs.append(fd), real(fd)))

    async def many() -> None:
        async def one(n: int) -> None:
            journal.write(put(n))
            await journal.sync(1)

        await asyncio.gather(*(one(n) for n in range(50)))

    asyncio.run(many())
    assert 1 <= len(syncs) <= 3
    journal.close()


def test_after_a_failed_sync_nothing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    first = journal.write(put(1))

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(StoreFencedError, match="Input/output"):
        asyncio.run(journal.sync(1))
    monkeypatch.undo()
    with pytest.raises(StoreFencedError):
        journal.write(put(2), first)
    journal.close()
