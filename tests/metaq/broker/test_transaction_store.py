"""What a crash between the decision and the partitions leaves, and how recovery completes it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.formats.command import PutCommand
from mqlake.metaq.formats.transaction_id import LocalTransactionId, TransactionId, XATransactionId
from mqlake.metaq.store.manager import MessageStoreManager
from tests.metaq.records import bodies, record

XID = LocalTransactionId("s", 1)
BATCH = [b"one", b"two", b"three"]


class Opened:
    def __init__(self, root: Path, **journal: int) -> None:
        config = SystemConfig(data_path=str(root), unflush_threshold=0)
        self.manager = MessageStoreManager(MetaConfig(config, topics={"t": {}, "u": {}}))
        self.manager.load()
        self.store = JournalTransactionStore(str(root), self.manager, **journal)
        self.prepared = self.store.recover()

    def put(self, topic: str = "t", xid: TransactionId = XID, batch: Sequence[bytes] = BATCH) -> None:
        for i, body in enumerate(batch):
            put = PutCommand(topic, 0, body, 0, -1, xid, 0)
            self.store.add_message(self.manager.get_or_create(topic, 0), i + 1, put)

    def bodies(self, topic: str = "t") -> list[bytes]:
        store = self.manager.get_or_create(topic, 0)
        return bodies(store.read(store.min_offset, 1 << 20))

    def close(self) -> None:
        self.store.close()
        self.manager.close()


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A plain message, a committed transaction."""
    opened = Opened(tmp_path)
    opened.manager.get_or_create("t", 0).append(record(b"before", 99))
    opened.put()
    asyncio.run(opened.store.commit(XID, False))
    assert opened.bodies() == [b"before", *BATCH]
    opened.close()
    return tmp_path


def segment(root: Path) -> Path:
    return root / "t-0" / f"{0:020d}.meta"


CUT = {
    "nothing of it": 26,
    "a part of a record": 30,
    "one record": 26 + 23,
    "two and a half": 26 + 23 + 23 + 10,
    "not even what was before": 0,
}


@pytest.mark.parametrize("size", CUT.values(), ids=CUT.keys())
def test_what_did_not_reach_the_partition_is_appended(committed: Path, size: int) -> None:
    segment(committed).write_bytes(segment(committed).read_bytes()[:size])
    before = [b"before"] if size else []
    for _ in range(2):
        opened = Opened(committed)
        assert opened.bodies() == [*before, *BATCH]
        opened.close()


def test_two_that_a_power_cut_left_incomplete(tmp_path: Path) -> None:
    """The second was appended first: what there is of it goes before the first is appended behind it."""
    opened = Opened(tmp_path)
    batches = {XID: BATCH, LocalTransactionId("s", 2): [b"four", b"five"]}
    for xid, batch in batches.items():
        opened.put(xid=xid, batch=batch)

    async def commit() -> None:
        await asyncio.gather(*(opened.store.commit(xid, False) for xid in batches))

    asyncio.run(commit())
    opened.close()
    raw = segment(tmp_path).read_bytes()
    four = raw.index(b"four") + 4
    segment(tmp_path).write_bytes(raw[four - 24 : four])
    for _ in range(2):
        opened = Opened(tmp_path)
        assert opened.bodies() == [*BATCH, b"four", b"five"]
        opened.close()


def test_what_is_there_is_not_appended_again(committed: Path) -> None:
    opened = Opened(committed)
    opened.manager.get_or_create("t", 0).append(record(b"after", 100))
    opened.close()
    opened = Opened(committed)
    assert opened.bodies() == [b"before", *BATCH, b"after"]


def test_another_message_took_the_place(committed: Path) -> None:
    raw = segment(committed).read_bytes()
    segment(committed).write_bytes(raw[:26] + record(b"intruder", 98) + raw[26:])
    for _ in range(2):
        opened = Opened(committed)
        assert opened.bodies() == [b"before", b"intruder", *BATCH]
        opened.close()


def test_what_a_delete_policy_has_taken_stays_away(committed: Path) -> None:
    segment(committed).unlink()
    (committed / "t-0" / f"{500:020d}.meta").write_bytes(record(b"later", 101))
    assert Opened(committed).bodies() == [b"later"]


def test_a_partition_that_is_gone_is_made_again(committed: Path) -> None:
    shutil.rmtree(committed / "t-0")
    assert Opened(committed).bodies() == BATCH


def test_without_the_decision_nothing_is_stored(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.put()
    opened.put("u")
    opened.close()
    opened = Opened(tmp_path)
    assert opened.bodies() == opened.bodies("u") == []
    assert opened.store.active_transaction_count == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_what_is_rolled_back_stays_away(tmp_path: Path, prepared: bool) -> None:
    opened = Opened(tmp_path)
    xid = XATransactionId(1, b"g", b"b", "q")
    opened.put(xid=xid)

    async def roll_back() -> None:
        if prepared:
            await opened.store.prepare(xid)
        await opened.store.rollback(xid)

    asyncio.run(roll_back())
    assert opened.bodies() == [] and opened.store.active_transaction_count == 0
    opened.close()
    opened = Opened(tmp_path)
    assert opened.bodies() == [] and opened.prepared == {} and opened.store.active_transaction_count == 0


def test_a_transaction_without_messages_leaves_no_trace(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    asyncio.run(opened.store.commit(XID, False))
    asyncio.run(opened.store.rollback(XID))
    assert opened.store.journal.end.offset == 0


@pytest.mark.parametrize("size_max", [512, 1 << 20])
def test_many_at_once_with_checkpoints_between(tmp_path: Path, size_max: int) -> None:
    """Each is stored once and as a whole; the journal's files go with their transactions."""
    opened = Opened(tmp_path, file_size_max=size_max)
    batches = {n: [b"%d %d" % (n, i) for i in range(n % 3 + 1)] for n in range(300)}

    async def one(n: int) -> None:
        xid = LocalTransactionId("s", n)
        for topic in "tu"[: n % 2 + 1]:
            opened.put(topic, xid, batches[n])
        await asyncio.sleep(0)
        if n % 50 == 0:
            opened.store.make_checkpoint()
        if n % 10 == 9:
            await opened.store.rollback(xid)
        else:
            await opened.store.commit(xid, False)

    async def many() -> None:
        for n in range(0, 300, 20):
            await asyncio.gather(*map(one, range(n, n + 20)))

    asyncio.run(many())
    committed = {n: batch for n, batch in batches.items() if n % 10 != 9}
    expected = {
        "t": [body for batch in committed.values() for body in batch],
        "u": [body for n, batch in committed.items() if n % 2 for body in batch],
    }
    for _ in range(2):
        for topic, wanted in expected.items():
            found = opened.bodies(topic)
            assert sorted(found) == sorted(wanted)
            for batch in committed.values():
                if batch[0] in found:
                    at = found.index(batch[0])
                    assert found[at : at + len(batch)] == batch
        assert opened.store.active_transaction_count == 0
        files = [file.number for file in opened.store.journal.files]
        assert len(files) == 1 and (files[0] > 1) == (size_max == 512)
        opened.close()
        opened = Opened(tmp_path, file_size_max=size_max)


def test_a_message_in_between_moves_the_transaction(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.put()
    opened.put("u")

    async def commit_with_company() -> None:
        commit = asyncio.ensure_future(opened.store.commit(XID, False))
        await asyncio.sleep(0)  # the decision is on its way to the disk
        opened.manager.get_or_create("t", 0).append(record(b"quick", 99))
        await commit

    asyncio.run(commit_with_company())
    assert opened.bodies() == [b"quick", *BATCH] and opened.bodies("u") == BATCH
    opened.close()
    again = Opened(tmp_path)
    assert again.bodies() == [b"quick", *BATCH]


def test_a_checkpoint_waits_for_the_oldest_that_is_open(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    start = opened.store.journal.end
    opened.put()
    opened.store.make_checkpoint()
    opened.close()
    opened = Opened(tmp_path)
    assert opened.store.journal._checkpoints._last == start
    opened.store.make_checkpoint()
    end = opened.store.journal.end
    assert opened.store.journal._checkpoints._last == end and end > start


def broken_put(command: bytes) -> Callable[[Path], None]:
    from mqlake.metaq.formats.journal import AppendMessage, encode_journal_record

    return lambda path: path.write_bytes(encode_journal_record(AppendMessage(1, command)))


@pytest.mark.parametrize(
    "command",
    [
        b"put t 0 3 0 -1 1\r\nabc",
        b"put t -1 3 0 -1 TX:s:1 1\r\nabc",
        b"put t 0 3 0 7 TX:s:1 1\r\nabc",
        b"put t 0 3 0 -1 TX:s:1 1\r\nabcd",
        b"version 1\r\n",
        b"pu",
        b"put t x\r\n",
    ],
)
def test_a_record_that_is_no_put_of_a_transaction_is_kept_beside(tmp_path: Path, command: bytes) -> None:
    directory = tmp_path / "transactions"
    directory.mkdir()
    broken_put(command)(directory / "redo.1")
    raw = (directory / "redo.1").read_bytes()
    opened = Opened(tmp_path)
    assert opened.prepared == {} and opened.store.inflight == {}
    opened.close()
    assert (directory / "cut-redo.1-0").read_bytes() == raw
