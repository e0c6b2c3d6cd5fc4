"""Bytes of a small data directory are flipped, zeroed and cut off, one place after the other; then all look at it.

Nobody may end by anything but an error of ours that names a file, and what was good before is there afterwards: where
it was, or in what a start or a repair has kept beside. `MQLAKE_CAMPAIGN=1` takes every byte, in several ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.formats.checkpoint import decode_checkpoint
from mqlake.metaq.formats.command import PutCommand
from mqlake.metaq.formats.record import checksum
from mqlake.metaq.formats.transaction_id import LocalTransactionId, XATransactionId
from mqlake.metaq.store.inspect import open_data_directory, read_records, verify_data_directory
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.repair import repair_data_directory
from tests.metaq.records import record

CAMPAIGN = "MQLAKE_CAMPAIGN" in os.environ
EACH = 4
"""Places of a file and a way that are damaged when there is no campaign."""
XID = XATransactionId(100, b"\n\x0b", b"\x0c\r", "uq1")


class Started:
    """What a broker's start does to a directory."""

    def __init__(self, root: Path) -> None:
        config = SystemConfig(data_path=str(root), unflush_threshold=0, max_segment_size=150)
        self.manager = MessageStoreManager(MetaConfig(config, topics={"t": {"numPartitions": "2"}}))
        self.manager.load()
        try:
            self.transactions = JournalTransactionStore(str(root), self.manager)
            self.prepared = self.transactions.recover()
        except BaseException:
            self.manager.close()
            raise

    def put(self, partition: int, body: bytes, xid: LocalTransactionId | XATransactionId) -> None:
        store = self.manager.get_or_create("t", partition)
        put = PutCommand("t", partition, body, 0, checksum(body), xid, 0)
        self.transactions.add_message(store, len(body), put)

    def close(self) -> None:
        self.transactions.close()
        self.manager.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions, one of several segments; a committed transaction, a prepared one, and a checkpoint between."""
    root = tmp_path_factory.mktemp("whole")
    local = LocalTransactionId("s", 1)

    async def fill() -> None:
        started = Started(root)
        for i in range(8):
            body = b"%d:" % i + b"x" * (30 + i)
            started.manager.get_or_create("t", i // 6).append(record(body, i + 1))
        for partition in range(2):
            started.put(partition, b"committed %d" % partition, local)
        await started.transactions.commit(local, False)
        started.put(0, b"prepared, one", XID)
        started.put(1, b"prepared, two", XID)
        await started.transactions.prepare(XID)
        started.transactions.make_checkpoint()
        started.close()

    asyncio.run(fill())
    return root


def bodies(root: Path) -> set[bytes]:
    found = open_data_directory(str(root)).partitions
    return {each.message.data for files in found for each in read_records(files)}


def everything(root: Path) -> bytes:
    """All bytes there are."""
    return b"|".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


def damages(raw: bytes, dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """What was done, and what it left."""
    places = range(len(raw))
    for place in places if CAMPAIGN else sorted(dice.sample(places, min(EACH, len(raw)))):
        for bit in (0, 7) if CAMPAIGN else (dice.randrange(8),):
            flipped = bytearray(raw)
            flipped[place] ^= 1 << bit
            yield f"flip {place}.{bit}", bytes(flipped)
        size = dice.choice((1, 20, 45))
        yield (
            f"zeros {place}+{size}",
            raw[:place] + bytes(len(raw[place : place + size])) + raw[place + size :],
        )
        yield f"cut {place}", raw[:place]
    yield "cut 0", b""
    yield "rubbish", dice.randbytes(len(raw))


def check(root: Path, name: str, how: str, good: set[bytes]) -> None:
    """`root` is damaged in the file `name`."""
    in_segment = name.endswith(".meta")
    in_place = how.startswith(("flip", "zeros"))
    left = {body for body in good if body in everything(root)}
    started, repaired = root.with_name("started"), root.with_name("repaired")
    for each in (started, repaired):
        shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(root, each)

    report = verify_data_directory(str(root))
    try:
        if in_place and not report.findings:
            assert bodies(root) == good
    except StoreCorruptError as error:
        raise AssertionError("verify has not seen it") from error
    if not report.ok and in_segment:
        with contextlib.suppress(StoreCorruptError):
            bodies(root)

    prepared: object = None
    try:
        broker = Started(started)
        prepared = set(broker.prepared)
        broker.close()
    except StoreCorruptError as error:
        assert error.path.startswith(str(started)) and not report.ok
    assert {body for body in good if body in everything(started)} >= left
    if in_segment or name.endswith("checkpoint.1"):
        assert prepared in (None, {XID})
    elif name.endswith("redo.1"):
        assert prepared is not None
        before, after = (root / name).read_bytes(), (started / name).read_bytes()
        for kept in (started / "transactions").glob("cut-redo.1-*"):
            assert kept.read_bytes() == before[int(kept.name.rpartition("-")[2]) :]
            break
        else:
            assert len(after) >= len(before)

    repair_data_directory(str(repaired))
    assert {body for body in good if body in everything(repaired)} >= left
    again = verify_data_directory(str(repaired))
    assert again.ok, again.findings
    readable = bodies(repaired)
    if in_place:
        assert len(good - readable) <= (2 if how.startswith("flip") else 4)
    Started(repaired).close()


FILES = [
    f"t-0/{0:020d}.meta",
    f"t-0/{159:020d}.meta",
    f"t-0/{327:020d}.meta",
    f"t-1/{0:020d}.meta",
    "transactions/checkpoint.1",
    "transactions/redo.1",
]


@pytest.mark.parametrize("name", FILES)
def test_damage(whole: Path, tmp_path: Path, name: str) -> None:
    assert sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()) == FILES
    good = bodies(whole)
    assert len(good) == 10
    root = tmp_path / "damaged"
    shutil.copytree(whole, root)
    raw = (whole / name).read_bytes()
    for how, damaged in damages(raw, random.Random(name)):
        (root / name).write_bytes(damaged)
        try:
            check(root, name, how, good)
        except Exception as error:
            raise AssertionError(f"{name}: {how}: {error}") from error


def test_segments_that_changed_places(whole: Path, tmp_path: Path) -> None:
    """Of other sizes than they should be: a gap, which is named and repaired, and nothing is thrown away."""
    root = tmp_path / "damaged"
    shutil.copytree(whole, root)
    one, other = (root / name for name in FILES[:2])
    raw = one.read_bytes(), other.read_bytes()
    one.write_bytes(raw[1])
    other.write_bytes(raw[0])
    with pytest.raises(StoreCorruptError, match="the next one begins at"):
        Started(root)
    repair_data_directory(str(root))
    Started(root).close()
    assert all(each in everything(root) for each in raw)


def test_a_damaged_journal_is_named_and_mended(whole: Path, tmp_path: Path) -> None:
    """From the checkpoint on: what is before it nobody reads."""
    root = tmp_path / "damaged"
    shutil.copytree(whole, root)
    redo = root / "transactions" / "redo.1"
    raw = bytearray(redo.read_bytes())
    at = decode_checkpoint((root / "transactions" / "checkpoint.1").read_bytes())
    assert at is not None and at.offset > 0
    raw[4] ^= 0xFF
    redo.write_bytes(raw)
    assert verify_data_directory(str(root)).ok and repair_data_directory(str(root)).actions == []
    raw[4] ^= 0xFF
    raw[at.offset + 4] ^= 0xFF
    redo.write_bytes(raw)
    (finding,) = verify_data_directory(str(root)).findings
    assert (finding.path, finding.offset) == (str(redo), at.offset)
    (action,) = (plan := repair_data_directory(str(root))).actions
    assert (action.kind, action.offset, redo.read_bytes()) == ("cut", at.offset, raw[: at.offset])
    kept = Path(plan.backup) / "transactions" / f"redo.1.{at.offset}"
    assert kept.read_bytes() == raw[at.offset :]
    (root / "transactions" / "checkpoint.1").write_bytes(b"{")
    report = verify_data_directory(str(root))
    assert report.ok and [finding.kind for finding in report.findings] == ["checkpoint"]
