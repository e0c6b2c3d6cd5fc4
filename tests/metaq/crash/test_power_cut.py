"""The power goes while transactions and plain messages are written; what was committed is there, all of it, once."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.metaq.broker.journal import JournalFile
from mqlake.metaq.store.message_set import FileMessageSet
from tests.crash.power import SECTOR, Disk, _File
from tests.metaq.crash.server import write_messages, write_transactions
from tests.metaq.crash.test_kill import recovered, stored

pytestmark = pytest.mark.crash

CUTS = 12


class AppendDisk(Disk):
    """Files here grow by writing: of what was not synced, any length may have arrived, some sectors of it as zeros.

    It only pretends to sync: what would be on the disk is known without the disk's taking its time.
    """

    is_cut = False

    def _sync(self, real: Callable[..., Any], fd: int) -> Any:
        return None if self.is_cut else super()._sync(lambda _: None, fd)

    def cut(self, target: Path, dice: random.Random) -> None:
        super().cut(target, dice)
        self.is_cut = True

    @staticmethod
    def _content(file: _File, size: int, dice: random.Random) -> bytes:
        now, synced = file.read(), file.synced
        if len(now) < len(synced):
            return synced if dice.random() < 0.5 else now
        size = dice.randint(len(synced), len(now))
        found = bytearray(now[:size])
        found[: len(synced)] = synced if dice.random() < 0.5 else now[: len(synced)]
        for at in range(len(synced), size, SECTOR):
            if dice.random() < 0.3:
                found[at : at + SECTOR] = bytes(len(found[at : at + SECTOR]))
        return bytes(found)


def life(root: Path, target: Path, writer: object, start: list[int], dice: random.Random) -> list[str]:
    """One life of a writer on `root`; `target` is the disk after the cut. What had been acknowledged before it."""
    acks = root.parent / "acks"
    acks.write_bytes(b"")
    said: list[str] = []
    done = threading.Event()
    with AppendDisk(root) as disk:

        def cut() -> None:
            """By what is acknowledged, not by the clock: a slow machine has as much to lose."""
            wanted, moment = dice.randrange(20), dice.uniform(0, 0.004)
            while acks.read_bytes().count(b"\n") < wanted and not done.wait(0.0005):
                pass
            done.wait(moment)
            said.extend(acks.read_text().splitlines())
            disk.cut(target, dice)

        thread = threading.Thread(target=cut)
        fd = os.open(acks, os.O_WRONLY | os.O_APPEND)
        thread.start()
        try:
            writer({"root": str(root), "starts": start, "count": 25}, fd)  # type: ignore[operator]
        finally:
            done.set()
            thread.join()
            os.close(fd)
    shutil.rmtree(root)
    return said


def cut_transactions(directory: Path, cuts: int) -> None:
    dice = random.Random(5)
    root, number = directory / "0", 1
    root.mkdir()
    committed: set[int] = set()
    for i in range(1, cuts + 1):
        target = directory / str(i)
        for line in life(root, target, write_transactions, [number], dice):
            word, text = line.split(" ")
            if word == "committed":
                committed.add(int(text))
        found = recovered(target)
        for tx, parts in found.items():
            expected = {b"%d:%d:" % (tx, n) + b"x" * (tx * 31 % 200) for n in range(tx % 4 + 2)}
            assert sorted(parts) == sorted(expected), f"transaction {tx} once and as a whole"
        assert committed <= set(found), f"lost: {committed - set(found)}"
        committed |= set(found)
        root, number = target, number + 25
    assert len(committed) > 3 * cuts


def test_transactions(tmp_path: Path) -> None:
    cut_transactions(tmp_path, CUTS)


def test_the_checks_would_see_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without the syncs the same rounds end in a loss."""

    def flush(message_set: FileMessageSet) -> None:
        message_set.high_water_mark = message_set.size

    monkeypatch.setattr(FileMessageSet, "flush", flush)
    monkeypatch.setattr(JournalFile, "sync_now", lambda _: None)
    with pytest.raises((AssertionError, StoreCorruptError)):
        cut_transactions(tmp_path, 40)


def test_group_commit(tmp_path: Path) -> None:
    dice = random.Random(6)
    root = tmp_path / "0"
    root.mkdir()
    numbers = [0, 0, 0]
    for i in range(1, CUTS + 1):
        target = tmp_path / str(i)
        said = life(root, target, write_messages, numbers, dice)
        found = stored(target)
        for line in said:
            partition, number = map(int, line.split(":"))
            assert number < len(found[partition])
        for partition, bodies in enumerate(found):
            assert bodies == [b"%d:%d:" % (partition, n) + b"x" * (n * 37 % 300) for n in range(len(bodies))]
        root, numbers = target, [len(bodies) for bodies in found]
    assert sum(numbers) > 3 * CUTS
