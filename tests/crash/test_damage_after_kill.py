"""Writers are killed, and then the log is damaged in random places in the middle. Nothing that was acknowledged goes
without a word: the store refuses to open, names file and byte, and repair gives up the damaged messages alone.

The oracle is what the writers noted when they were told that a message is stored, and the records of the log as they
were before the damage, found by their sizes.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from mqlake.errors import StoreCorruptError
from mqlake.formats.record import decode_record
from mqlake.store.check.repair import repair_store
from mqlake.store.kept_copies import kept_copies
from mqlake.store.log.filler import FILLER_TOPIC
from mqlake.store.log.log_end import may_be_torn
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.recovery import RecoveryReport
from tests.crash.test_kill import MODES, Campaign
from tests.crash.workload import SMALL, identity_of, in_a_queue, topic_of
from tests.crash.writer_server import WriterServer
from tests.waiting import trying

FILE_SIZE = int(str(SMALL["mappedFileSizeCommitLog"]))
BLANK = b"\xcb\xd4\x31\x94"
# nothing reaches the disk but by the kernel's own will
LAZY = {"flushIntervalCommitLog": 600_000, "flushCommitLogThoroughInterval": 600_000}


@dataclasses.dataclass(frozen=True)
class Place:
    """A record before the damage."""

    path: Path
    position: int
    size: int
    writer: int
    number: int


def places(root: Path) -> list[Place]:
    """The log, record by record, by the sizes that the records say."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while size := int.from_bytes(content[at : at + 4], "big"):
            if content[at + 4 : at + 8] == BLANK:
                break
            writer, number = identity_of(decode_record(content, at).body)
            found.append(Place(path, at, size, writer, number))
            at += size
            if at >= len(content):
                break
    return found


def killed_store(root: Path, writers: WriterServer, mode: str, dice: random.Random) -> dict[int, int]:
    """A store that two writers were killed in; how many messages of each were acknowledged."""
    campaign = Campaign(root, writers, "sync", threads=2, seed=dice.randrange(1 << 30))
    campaign.settings = {**SMALL, **MODES[mode], **({} if mode.startswith("sync") else LAZY)}
    acks = root.with_name("acks")
    acks.write_bytes(b"")
    status = writers.run(
        root=str(root),
        settings=campaign.settings,
        acks=str(acks),
        starts=[0, 0],
        count=150,
        pipelined=dice.choice((1, 4)),
        seed=dice.random(),
        point="create log file",
        moment="before",
        n=dice.randint(7, 10),
        kill_after_ms=None,
        settle_ms=0,
    )
    assert status == -9, writers.last_words()
    forget_interrupted_append(root)
    return campaign.acknowledged(acks.read_bytes())


def forget_interrupted_append(root: Path) -> None:
    """As if the writer had died a moment earlier: of an append of several records the first one's size is written
    last, so those after it may be whole, though none is acknowledged."""
    for path in sorted((root / "commitlog").iterdir()):
        end = max((place.position + place.size for place in places(root) if place.path == path), default=0)
        content = path.read_bytes()
        if not any(content[end : end + 4]):
            path.write_bytes(content[:end] + bytes(len(content) - end))


def flip_a_bit(place: Place, dice: random.Random) -> None:
    """In the body: what the CRC covers."""
    with place.path.open("r+b") as file:
        at = place.position + 88 + dice.randrange(4)
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 1 << dice.randrange(8)]))


def looks_torn(place: Place) -> bool:
    """True if it may look like a record that a power cut tore, after a bit is flipped too."""
    content = bytearray(place.path.read_bytes())
    content[place.position + 88 : place.position + 92] = bytes(4)
    return may_be_torn(np.frombuffer(content, np.uint8), place.position, place.position + place.size)


def garble(place: Place, dice: random.Random) -> None:
    with place.path.open("r+b") as file:
        file.seek(place.position)
        file.write(dice.randbytes(place.size))


def blank_out(place: Place, _: random.Random) -> None:
    with place.path.open("r+b") as file:
        file.seek(place.position)
        file.write(bytes(place.size))


def messages_of(store: DefaultMessageStore) -> set[tuple[int, int]]:
    """What consumers get, and the half messages of the log."""
    found = set()
    for queue in store.consume_queues:
        at = store.min_offset_in_queue(queue.topic, queue.queue_id)
        while at < store.max_offset_in_queue(queue.topic, queue.queue_id):
            result = store.get_message("g", queue.topic, queue.queue_id, at, 32)
            for message in result.messages():
                writer, number = identity_of(message.body)
                assert queue.topic == topic_of(writer)
                found.add((writer, number))
            assert result.next_begin_offset > at
            at = result.next_begin_offset
    for place in _whole(Path(store.config.store_path_root_dir)):
        if not in_a_queue(place[1]):
            found.add(place)
    return found


def _whole(root: Path) -> list[tuple[int, int]]:
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while (size := int.from_bytes(content[at : at + 4], "big")) and content[at + 4 : at + 8] != BLANK:
            message = decode_record(content, at)
            if message.topic != FILLER_TOPIC.decode():
                found.append(identity_of(message.body))
            at += size
    return found


def log_bytes(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "commitlog").iterdir())]


@pytest.mark.parametrize("damage", [flip_a_bit, garble, blank_out])
@pytest.mark.parametrize("mode", ["sync", "sync, property CRC", "async"])
def test_damage_in_the_middle_is_refused_and_repaired(
    tmp_path: Path, writers: WriterServer, mode: str, damage: object
) -> None:
    """In the directory where the writer died, on a machine that has been up since: also what was never flushed."""
    assert callable(damage)
    dice = random.Random(f"{mode} {damage}")
    for number in trying("a store whose newest file has more than one record"):
        root = tmp_path / f"{number}" / "store"
        root.parent.mkdir()
        acknowledged = killed_store(root, writers, mode, dice)
        before = places(root)
        newest = [place for place in before if place.path == before[-1].path]
        if len(newest) > 1:
            break  # recovery may look at this file alone, and at its end anything may be torn
    stored = {(place.writer, place.number) for place in before}
    assert {(w, n) for w, count in acknowledged.items() for n in range(count)} <= stored
    assert len({place.path for place in before}) >= 5
    # one in the newest file, one in an older one, one anywhere: recovery looks from the checkpoint on
    hit = sorted(
        {dice.choice(newest[:-1]), dice.choice(before[:-1]), dice.choice(before[-40:-1])},
        key=lambda place: (place.path, place.position),
    )
    for place in hit:
        damage(place, dice)
    damaged = log_bytes(root)
    settings = {**SMALL, **MODES[mode]}
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match="mqlake store repair") as error:
            open_store(root, settings)
        named = (Path(error.value.path), error.value.offset)
        assert named in [(place.path, place.position) for place in hit]
        assert log_bytes(root) == damaged, "a store that does not open is left as it is"
    report = repair_store(root, settings)
    assert report.after is not None and report.after.ok
    with open_store(root, settings) as store:
        lost = {(place.writer, place.number) for place in hit}
        assert messages_of(store) == stored - lost


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_copy_is_refused_when_a_bit_is_flipped(tmp_path: Path, writers: WriterServer, mode: str) -> None:
    """Of the copy nothing is known about power cuts; a bit that is flipped is none."""
    dice = random.Random(mode)
    acknowledged = killed_store(tmp_path / "store", writers, mode, dice)
    assert acknowledged
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    # where a sector ends with a zero, a power cut cannot be ruled out, and the record is fenced off
    place = next(place for place in reversed(places(tmp_path / "copy")[:-29]) if not looks_torn(place))
    flip_a_bit(place, dice)
    with pytest.raises(StoreCorruptError) as error:
        open_store(tmp_path / "copy", {**SMALL, **MODES[mode]})
    assert (Path(error.value.path), error.value.offset) == (place.path, place.position)


def test_holes_of_what_was_not_flushed_are_fenced_off(tmp_path: Path, writers: WriterServer) -> None:
    """A copy stands for the disk after a power cut: under ASYNC_FLUSH whole sectors may be missing."""
    dice = random.Random(5)
    killed_store(tmp_path / "store", writers, "async", dice)
    root = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", root)
    before = places(root)
    hit = dice.sample(before[:-1], 6)
    for place in hit:
        blank_out(place, dice)
    reports: list[RecoveryReport] = []
    with open_store(root, SMALL, on_recovered=reports.append) as store:
        found = messages_of(store)
    assert found == {(p.writer, p.number) for p in before} - {(p.writer, p.number) for p in hit}
    assert reports[0].fences and reports[0].salvaged_records > 0
    assert sum(size for _, size, _ in reports[0].fences) >= sum(place.size for place in hit)
    assert not kept_copies(str(root)), "zeros are not worth a copy"


def test_the_checks_would_see_a_loss(tmp_path: Path, writers: WriterServer) -> None:
    """The canary: a message that is gone without damage is missed."""
    dice = random.Random(1)
    acknowledged = killed_store(tmp_path / "store", writers, "sync", dice)
    last = places(tmp_path / "store")[-1]
    blank_out(last, dice)
    with open_store(tmp_path / "store", {**SMALL, **MODES["sync"]}) as store:
        found = messages_of(store)
    wanted = {(w, n) for w, count in acknowledged.items() for n in range(count)} | {
        (last.writer, last.number)
    }
    assert not wanted <= found
