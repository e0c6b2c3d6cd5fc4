"""JournalTransactionStore: makes transactions atomic, also across crashes.

    put        ─▶ journal: AppendMessage
    prepare    ─▶ journal: XA_PREPARE ─▶ sync
    commit     ─▶ journal: COMMIT with the locations of the messages ─▶ sync ─▶ stores ─▶ flush ─▶ answer
    rollback   ─▶ journal: ROLLBACK ─▶ sync

The commit record on the disk is the decision: before it no partition has messages of the transaction, after it all
of them will be stored. (The original appends first and then writes the record; a crash in between leaves messages
of a transaction that was never committed.) If another message took the planned location, the locations in the
record are corrected before the messages are appended.

Recovery replays the journal once all partitions are open. The messages of a committed transaction are searched at
their location and, because of crashes in between, after it; an incomplete batch at the end of a partition is removed.
What is missing is appended when the whole journal is replayed: an incomplete batch that had others' messages behind it
could not be removed any more. Unprepared transactions are rolled back, prepared ones wait for their manager.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field

from mqlake.errors import FormatError, StoreError
from mqlake.metaq.broker.journal import FILE_SIZE_MAX, JournalStore
from mqlake.metaq.formats.checkpoint import JournalLocation
from mqlake.metaq.formats.command import PutCommand
from mqlake.metaq.formats.journal import (
    AppendMessage,
    DecodedRecord,
    MessageLocation,
    OperationType,
    TransactionOperation,
    encode_locations,
    put_of,
)
from mqlake.metaq.formats.names import parse_store_name, store_name
from mqlake.metaq.formats.record import HEADER_SIZE, checksum, decode_header, encode_record
from mqlake.metaq.formats.transaction_id import TransactionId, XATransactionId, parse_transaction_id
from mqlake.metaq.store.inspect_journal import TRANSACTIONS
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import Location, MessageStore

logger = logging.getLogger(__name__)


Batches = dict[str, tuple[bytes, int]]
"""Partition (`<topic>-<partition>`) → (records back to back, their number)."""


@dataclass(slots=True)
class Tx:
    """An unfinished transaction with messages."""

    first: JournalLocation
    """The location of its first record."""
    messages: dict[str, list[tuple[int, PutCommand]]] = field(default_factory=dict)
    """Partition → ids and puts, in their order."""

    def batches(self) -> Batches:
        return {
            name: (b"".join(encode_record(put.data, identity, put.flag) for identity, put in puts), len(puts))
            for name, puts in self.messages.items()
        }


@dataclass(slots=True)
class Decided:
    """A committed transaction that replay has found."""

    attachment_at: JournalLocation
    record: TransactionOperation
    first: JournalLocation
    """The location of the transaction's first record."""
    batches: Batches
    found: dict[str, Location]
    """Partition → where its messages are, for those that have them."""


class JournalTransactionStore:
    """On the broker's event loop; `recover` after the partitions are loaded, `close` before they are closed."""

    def __init__(
        self,
        data_log_path: str,
        manager: MessageStoreManager,
        *,
        checkpoints_max: int = 3,
        flush_at_commit: int = 1,
        file_size_max: int = FILE_SIZE_MAX,
    ) -> None:
        """`flush_at_commit`: 0 the system syncs; 1 each commit, rollback and prepare; 2 the owner, each second."""
        self._manager = manager
        self._sync_each = flush_at_commit == 1
        self.journal = JournalStore(
            os.path.join(data_log_path, TRANSACTIONS),
            file_size_max=file_size_max,
            checkpoints_max=checkpoints_max,
        )
        self.inflight: dict[TransactionId, Tx] = {}
        self.prepared: dict[TransactionId, Tx] = {}
        self._committing: dict[TransactionId, Tx] = {}
        self._incomplete: list[Decided] = []
        self._recovered = False

    @property
    def active_transaction_count(self) -> int:
        return len(self.inflight) + len(self.prepared)

    # --- operations of a transaction

    def add_message(self, store: MessageStore, message_id: int, put: PutCommand) -> None:
        """Adds a message, which a commit stores in `store`. StoreFencedError, OSError."""
        assert put.transaction_id is not None
        tx = self.inflight.get(put.transaction_id)
        location = self.journal.write(AppendMessage(message_id, put.encode()), tx.first if tx else None)
        if tx is None:
            tx = self.inflight[put.transaction_id] = Tx(location)
        tx.messages.setdefault(store.name, []).append((message_id, put))

    async def prepare(self, xid: XATransactionId) -> None:
        """StoreFencedError, OSError."""
        tx = self.inflight.get(xid)
        if tx is None:
            return
        self.journal.write(TransactionOperation(OperationType.XA_PREPARE, str(xid)), tx.first)
        del self.inflight[xid]
        self.prepared[xid] = tx
        await self._sync(tx)

    async def rollback(self, xid: TransactionId) -> None:
        """StoreFencedError, OSError."""
        tx = self.inflight.pop(xid, None) or self.prepared.pop(xid, None)
        if tx is None:
            return
        self._write_rollback(xid, tx)
        await self._sync(tx)
        self.journal.ended(tx.first)

    def _write_rollback(self, xid: TransactionId, tx: Tx) -> None:
        is_xa = isinstance(xid, XATransactionId)
        kind = OperationType.XA_ROLLBACK if is_xa else OperationType.LOCAL_ROLLBACK
        self.journal.write(TransactionOperation(kind, str(xid)), tx.first)

    async def commit(self, xid: TransactionId, was_prepared: bool) -> None:
        """Returns when the messages are on the disk and can be read.

        StoreFencedError, OSError: before the decision nothing was stored; after it, which is logged, the next start
        completes the commit.
        """
        waiting = self.prepared if was_prepared else self.inflight
        tx = waiting.get(xid)
        if tx is None:
            return
        batches = tx.batches()
        stores = {name: self._store(name) for name in batches}
        planned = tuple(
            MessageLocation(name, stores[name].append_offset, len(data), checksum(data))
            for name, (data, _) in batches.items()
        )
        is_xa = isinstance(xid, XATransactionId)
        kind = OperationType.XA_COMMIT if is_xa else OperationType.LOCAL_COMMIT
        operation = TransactionOperation(kind, str(xid), was_prepared, planned)
        record_at = self.journal.write(operation, tx.first)
        attachment_at = JournalLocation(
            record_at.number, self._end_of(record_at) - len(encode_locations(planned))
        )
        self._committing[xid] = waiting.pop(xid)
        await self._sync(tx)
        actual = tuple(each._replace(offset=stores[each.store].append_offset) for each in planned)
        if actual != planned:
            self.journal.write_locations(attachment_at, actual)
        try:
            await asyncio.gather(*(_append(stores[name], *batch) for name, batch in batches.items()))
        except (StoreError, OSError) as error:
            logger.error(
                "%s is committed, but its messages are incomplete until the next start: %s", xid, error
            )
            raise
        del self._committing[xid]
        self.journal.ended(tx.first)

    def _end_of(self, record_at: JournalLocation) -> int:
        """Returns the end of the record just written, which is the end of its file."""
        return next(file.size for file in self.journal.files if file.number == record_at.number)

    async def _sync(self, tx: Tx) -> None:
        if self._sync_each:
            await self.journal.sync(tx.first.number)

    def _store(self, name: str) -> MessageStore:
        topic, partition = parse_store_name(name)
        return self._manager.get_or_open(topic, partition)

    # --- recovery

    def recover(self) -> dict[XATransactionId, list[PutCommand]]:
        """Makes partitions and journal consistent; returns the prepared transactions with their puts. OSError."""
        self.journal.recover(self._replay)
        for decided in self._incomplete:
            self._complete(decided)
        self._incomplete.clear()
        for xid, tx in list(self.inflight.items()):
            logger.info("%s was not finished: it is rolled back", xid)
            self._write_rollback(xid, tx)
            self.journal.ended(tx.first)
        self.inflight.clear()
        self.journal.sync_all_now()
        self._recovered = True
        return {
            xid: [put for puts in tx.messages.values() for _, put in puts]
            for xid, tx in self.prepared.items()
            if isinstance(xid, XATransactionId)
        }

    def _replay(self, at: JournalLocation, decoded: DecodedRecord) -> None:
        record = decoded.record
        if isinstance(record, AppendMessage):
            self._replay_put(at, record)
            return
        try:
            xid = parse_transaction_id(record.transaction_id)
        except FormatError as error:
            logger.error("redo.%d, byte %d: %s", *at, error.reason)
            return
        if record.type is OperationType.XA_PREPARE:
            if (tx := self.inflight.pop(xid, None)) is not None:
                self.prepared[xid] = tx
            return
        first_choice, second = (
            (self.prepared, self.inflight) if record.was_prepared else (self.inflight, self.prepared)
        )
        found = first_choice.pop(xid, None)
        if found is None and not record.type.is_commit:
            found = second.pop(xid, None)
        if found is None:
            return  # it began before the checkpoint and was finished before it
        if record.type.is_commit:
            self._replay_commit(JournalLocation(at.number, decoded.locations_start), record, found)
        else:
            self.journal.ended(found.first)

    def _replay_put(self, at: JournalLocation, record: AppendMessage) -> None:
        put = put_of(record)
        xid = put.transaction_id
        assert xid is not None
        tx = self.inflight.get(xid)
        if tx is None:
            tx = self.inflight[xid] = Tx(at)
            self.journal.began(at)
        name = store_name(put.topic, put.partition)
        tx.messages.setdefault(name, []).append((record.message_id, put))

    def _replay_commit(self, attachment_at: JournalLocation, record: TransactionOperation, tx: Tx) -> None:
        planned = {location.store: location for location in record.locations}
        batches = tx.batches()
        found = {
            name: location
            for name, (data, _) in batches.items()
            if name in planned
            and (location := _find_batch(self._store(name), planned[name].offset, data)) is not None
        }
        decided = Decided(attachment_at, record, tx.first, batches, found)
        if len(found) < len(batches):
            self._incomplete.append(decided)
        else:
            self._complete(decided)

    def _complete(self, decided: Decided) -> None:
        """Appends what is missing. OSError."""
        record = decided.record
        actual = {location.store: location for location in record.locations}
        for name, (data, count) in decided.batches.items():
            store = self._store(name)
            found = decided.found.get(name)
            if found is None:
                found = store.append(data, count=count)
                logger.info("%s: appended the %d messages of %s", name, count, record.transaction_id)
            actual[name] = MessageLocation(name, found.offset, len(data), checksum(data))
            store.flush()
        locations = tuple(actual.values())
        if locations != record.locations and len(encode_locations(locations)) == len(
            encode_locations(record.locations)
        ):
            self.journal.write_locations(decided.attachment_at, locations)
        self.journal.ended(decided.first)

    # --- checkpoints

    def make_checkpoint(self) -> None:
        """Lets recovery begin at the oldest unfinished transaction. OSError.

        Does nothing until recovery is done: what it has not replayed, the next start must replay.
        """
        if not self._recovered:
            return
        unfinished = (*self.inflight.values(), *self.prepared.values(), *self._committing.values())
        oldest = min((tx.first for tx in unfinished), default=self.journal.end)
        self.journal.sync_all_now()
        self.journal.make_checkpoint(oldest)

    def close(self) -> None:
        """OSError."""
        self.journal.close()


async def _append(store: MessageStore, data: bytes, count: int) -> None:
    """Appends records and makes them durable."""
    if not store.uses_group_commit:
        store.append(data, count=count)
        await asyncio.to_thread(store.flush)
        return
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def callback(_: Location | None, error: Exception | None) -> None:
        loop.call_soon_threadsafe(settle, error)

    store.append(data, callback, count)
    await done


def _find_batch(store: MessageStore, offset: int, data: bytes) -> Location | None:
    """Returns the location of `data` in the partition, from `offset` on; a part of it at the very end is removed."""
    size = len(data)
    if offset < store.min_offset:
        return Location(offset, size)  # a delete policy has removed it
    first_id = decode_header(data).id
    position = offset
    while position < store.max_offset:
        head = store.read(position, HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            return None
        try:
            header = decode_header(head)
        except FormatError:
            return None
        if header.id == first_id:
            found = store.read(position, size)
            if found == data:
                return Location(position, size)
            if data.startswith(found) and position + len(found) == store.append_offset:
                store.cut_off(position)
                return None
        position += HEADER_SIZE + header.length
    return None
