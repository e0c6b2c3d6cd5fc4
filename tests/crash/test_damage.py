"""A small store is damaged at every byte, a flip or a cut at a time. It is noticed or it does no harm.

What may come of it: the store refuses to open, says why and changes nothing; or it opens and gives back only what was
put, and when something is missing its report says so. Never another message, an exception of another kind, a hang.

RocketMQ's record has a checksum for the body alone. Its other fields are cross-checked where something else knows them
(sizes, magic, place, queue); the rest (times, hosts, flags, topic, properties) is covered by the property CRC, when
`enabledAppendPropCRC` writes it and `forceVerifyPropCRC` asks for it.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from mqlake.errors import MqlakeError
from mqlake.message import MessageExtBrokerInner
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.store_view import StoreView

FILE_SIZE = 1024
SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 4,
    "maxHashSlotNum": 5,
    "maxIndexNum": 20,
    "maxMessageSize": 512,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
}
PROP_CRC: dict[str, object] = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
TOPICS = ("A", "Bb")
COUNT = 7

LOG, QUEUE, INDEX = "commitlog", "consumequeue", "index"
# bytes of a record (IPv4) that nothing but the property CRC covers: flag, sysFlag to store host, reconsume times and
# prepared offset; and what follows the body
HEAD_UNPROTECTED = {*range(16, 20), *range(36, 84)}
QUEUE_FIELDS = {*range(12, 16), *range(20, 28)}
BODY = 88


class Patient:
    """A store that is damaged, looked at and healed, again and again; in memory, as it is made thousands of times."""

    def __init__(self, directory: Path, settings: dict[str, object], *, clean: bool) -> None:
        self.root = directory / "store"
        self.settings = {**SMALL, **settings}
        self.strict = settings == PROP_CRC
        self.clean = clean
        self.is_thorough = not (settings or clean)
        """The other cases differ in what is made of damage: a third of the places shows it."""
        self.config = MessageStoreConfig.from_mapping({**self.settings, "storePathRootDir": str(self.root)})
        now = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
        store = DefaultMessageStore(self.config, clock_ms=lambda: next(now))
        store.load()
        store.start()
        offsets = []
        for number in range(COUNT):
            msg = MessageExtBrokerInner(
                TOPICS[number % 2],
                bytes([65 + number]) * (5 + 12 * number),
                tags=f"t{number % 3}",
                keys=f"key{number}",
            )
            msg.queue_id = number % 4 // 2
            offsets.append(store.put_message(msg).append_result.wrote_offset)
        store.shutdown()
        if not clean:
            (self.root / "abort").write_bytes(b"1")
        self.healthy = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        with ReadOnlyStore(self.root, self.settings) as view:
            self.records = {offset: bytes(view.select_one_message_by_offset(offset)) for offset in offsets}
            self.end = view.max_phy_offset
            self.queues = {
                (queue.topic, queue.queue_id): self.of_queue(view, queue.topic, queue.queue_id)
                for queue in view.consume_queues
            }
        assert sum(map(len, self.queues.values())) == COUNT
        assert len(self.files(LOG)) > 1 and len(self.files(QUEUE)) == 4

    @staticmethod
    def of_queue(view: StoreView, topic: str, queue_id: int) -> dict[int, bytes]:
        """Every message of a queue."""
        found, offset = {}, view.min_offset_in_queue(topic, queue_id)
        end = view.max_offset_in_queue(topic, queue_id)
        while offset < end:
            result = view.get_message("g", topic, queue_id, offset, 32)
            if not result.buffers:
                break
            list(result.messages())
            found.update(zip(result.queue_offsets, map(bytes, result.records()), strict=True))
            offset = result.next_begin_offset
        return found

    def files(self, kind: str) -> list[Path]:
        return sorted(path for path in self.healthy if kind in path.relative_to(self.root).parts)

    def heal(self) -> None:
        names = {str(path): content for path, content in self.healthy.items()}
        for directory, _, files in os.walk(self.root):
            for path in (os.path.join(directory, file) for file in files):
                if path not in names:
                    os.unlink(path)
        for path, content in names.items():
            if not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                file.write(content)

    # ------------------------------------------------------------------ looking

    def examine(self, path: Path, damaged: bytes) -> str:
        """Opens the store with one file damaged; what came of it."""
        self.heal()
        path.write_bytes(damaged)
        if not self.clean:  # how the writer ended is the same to a reader: it was seen without a clean end
            self.look_only()
        store = DefaultMessageStore(self.config)
        before = self.log_bytes()
        try:
            try:
                report = store.load()
            except MqlakeError as error:
                assert str(error)
                assert self.log_bytes() == before, "the log was changed by a store that did not open"
                return "refused"
            # recovery has read every record, with the checksums that were asked for
            self.check(store, strict=self.strict)
            ends_early = report.end_offset < self.end
            told = report.torn_bytes or report.queues_reached > report.end_offset
            assert told or not ends_early, f"a loss without a word: {report.describe()}"
            return "cut off" if ends_early else "harmless"
        finally:
            store.shutdown()

    def log_bytes(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.root / LOG).iterdir())]

    def look_only(self) -> None:
        try:
            with ReadOnlyStore(self.root, self.settings) as view:
                self.check(view, strict=False)
                for chunk in view.scan():
                    for offset in chunk.scan.physical_offset.tolist():
                        found = bytes(view.select_one_message_by_offset(offset))
                        self.assert_same(found, self.records[offset], QUEUE_FIELDS, strict=self.strict)
        except MqlakeError as error:
            assert str(error)

    def check(self, store: StoreView, *, strict: bool) -> None:
        """Whatever the store gives is what was put."""
        for offset, record in self.records.items():
            with contextlib.suppress(MqlakeError):
                store.look_message_by_offset(offset)
                found = bytes(store.select_one_message_by_offset(offset))
                self.assert_same(found, record, QUEUE_FIELDS, strict=strict)
        for (topic, queue_id), records in self.queues.items():
            with contextlib.suppress(MqlakeError):
                given = self.of_queue(store, topic, queue_id)
                for offset, found in given.items():
                    self.assert_same(found, records[offset], set(), strict=strict)
        bodies = {record[BODY : BODY + _i32(record, 84)] for record in self.records.values()}
        for number in range(COUNT):
            with contextlib.suppress(MqlakeError):
                for message in store.query_message(TOPICS[number % 2], f"key{number}", 8).messages():
                    assert message.body in bodies
                    assert message.keys == f"key{number}"

    @staticmethod
    def assert_same(found: bytes, put: bytes, known_elsewhere: set[int], *, strict: bool) -> None:
        """`known_elsewhere`: bytes that only another way to the record could have checked."""
        if found == put:
            return
        assert not strict, "a damaged record was given out"
        assert len(found) == len(put)
        body_end = BODY + _i32(put, 84)
        unprotected = HEAD_UNPROTECTED | known_elsewhere | {*range(body_end + 1, len(put))}
        wrong = [at for at in range(len(put)) if found[at] != put[at] and at not in unprotected]
        assert not wrong, f"bytes {wrong} of a record differ from what was put"


def _i32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


BODY_FLIPS = 8
"""Of each body, so many bytes: one checksum covers them all."""

CASES = {
    "crash": ({}, False),
    "clean": ({}, True),
    "crash, property CRC": (PROP_CRC, False),
}


@pytest.fixture(scope="module", params=CASES)
def patient(memory: Path, request: pytest.FixtureRequest) -> Patient:
    logging.disable(logging.CRITICAL)
    request.addfinalizer(lambda: logging.disable(logging.NOTSET))
    settings, clean = CASES[request.param]
    return Patient(memory / request.param, settings, clean=clean)


def outcomes(patient: Patient, path: Path, damage: Iterable[bytes]) -> collections.Counter[str]:
    return collections.Counter(patient.examine(path, damaged) for damaged in damage)


def flips(content: bytes, positions: Iterable[int], dice: random.Random) -> Iterator[bytes]:
    for at in positions:
        yield content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]


def some(patient: Patient, positions: Sequence[int], dice: random.Random) -> Sequence[int]:
    """All of them in the thorough case, a third in the others."""
    return positions if patient.is_thorough else dice.sample(positions, -(-len(positions) // 3))


def log_positions(patient: Patient, path: Path, end: int, dice: random.Random) -> Sequence[int]:
    """Of the data of a commit log file; of a body, which one checksum covers, BODY_FLIPS."""
    positions = {*range(end)}
    for offset, record in patient.records.items():
        if offset // FILE_SIZE * FILE_SIZE == int(path.name):
            begin, size = offset % FILE_SIZE + BODY, _i32(record, 84)
            positions -= {*dice.sample(range(begin, begin + size), max(size - BODY_FLIPS, 0))}
    return [*positions] if patient.strict else some(patient, [*positions], dice)


def data_end(content: bytes) -> int:
    return len(content.rstrip(b"\0"))


def test_every_byte_of_the_commit_log_flipped(patient: Patient) -> None:
    dice = random.Random(1)
    for path in patient.files(LOG):
        content = patient.healthy[path]
        end = data_end(content)
        behind = dice.sample(range(end, len(content)), min(20, len(content) - end))
        within = log_positions(patient, path, end, dice)
        found = outcomes(patient, path, flips(content, [*within, *behind], dice))
        if patient.strict:
            assert found["harmless"] <= 8 + len(behind)  # a damaged blank is made again


@pytest.mark.parametrize("kind", [QUEUE, INDEX])
def test_every_byte_of_queues_and_index_flipped(patient: Patient, kind: str) -> None:
    dice = random.Random(2)
    for path in patient.files(kind):
        content = patient.healthy[path]
        end = data_end(content)
        behind = dice.sample(range(end, len(content)), min(8, len(content) - end))
        outcomes(patient, path, flips(content, [*some(patient, range(end), dice), *behind], dice))


def test_every_byte_of_checkpoint_and_marker_files_flipped(patient: Patient) -> None:
    dice = random.Random(3)
    for name in ("checkpoint", "lock", "abort"):
        path = patient.root / name
        if path in patient.healthy:
            content = patient.healthy[path]
            found = outcomes(patient, path, flips(content, range(min(48, len(content))), dice))
            assert found.keys() <= {"harmless", "refused"}


def test_every_file_cut_at_every_length(patient: Patient) -> None:
    """Short files, as a copy that was broken off leaves them."""
    dice = random.Random(4)
    for path, content in patient.healthy.items():
        end = min(data_end(content) + 2, len(content))
        lengths = sorted(
            {0, 1, end - 1, len(content) - 1, *dice.sample(range(end), min(25, end))} & {*range(len(content))}
        )
        found = outcomes(patient, path, (content[:length] for length in lengths))
        if LOG in path.parts:
            assert found["harmless"] == 0


def test_the_log_zeroed_from_every_byte_on(patient: Patient) -> None:
    """Files that have their size, but not all of their data: what a power cut leaves."""
    last = patient.files(LOG)[-1]
    content = patient.healthy[last]
    cuts = some(patient, range(data_end(content)), random.Random(5))
    found = outcomes(patient, last, (content[:at].ljust(len(content), b"\0") for at in cuts))
    if patient.strict:
        assert found["harmless"] == 0


def test_a_missing_file_is_noticed_or_made_again(patient: Patient) -> None:
    first, *_, last = patient.files(LOG)
    derived = [*patient.files(QUEUE), *patient.files(INDEX), patient.root / "checkpoint"]
    for path in [first, last, *derived]:
        patient.heal()
        path.unlink()
        patient.look_only()
        store = DefaultMessageStore(patient.config)
        try:
            report = store.load()
        except MqlakeError as error:
            assert path == last, error
        else:
            patient.check(store, strict=patient.strict)
            if path == last:
                assert report.queues_reached > report.end_offset
            elif path == first:  # as cleaning leaves it
                assert store.min_phy_offset == FILE_SIZE
            elif (
                path not in patient.files(QUEUE) or not patient.clean
            ):  # after a clean exit: a queue that was deleted
                assert {key: patient.of_queue(store, *key) for key in patient.queues} == patient.queues
        finally:
            store.shutdown()
