"""Stores are killed by SIGKILL, at chosen calls and at random; what was acknowledged must be there, whole and in order.

Each round goes on where the last one died.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.formats.record import MessageIterator
from mqlake.metaq.store.manager import MessageStoreManager
from tests.crash.writer_server import WriterServer
from tests.metaq.crash.server import config_of

pytestmark = pytest.mark.crash

KILLED = -9
ROUNDS = int(os.environ.get("MQLAKE_CAMPAIGN", "0")) or 110
POINTS = [
    ("pwrite", ".meta", "before"),
    ("pwrite", ".meta", "half"),
    ("pwrite", ".meta", "after"),
    ("fdatasync", ".meta", "before"),
    ("fdatasync", ".meta", "after"),
    ("open", ".meta", "before"),
    ("open", ".meta", "after"),
    ("fsync", "/t-", "before"),
]


def stored(root: Path) -> list[list[bytes]]:
    """The bodies of each partition, after recovery."""
    manager = MessageStoreManager(config_of({"root": str(root)}))
    manager.load()
    found = bodies_of(manager)
    manager.close()
    return found


def bodies_of(manager: MessageStoreManager) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    for partition in range(3):
        store = manager.get_or_create("t", partition)
        offset, partition_bodies = store.min_offset, []
        while (part := store.slice(offset, 1 << 20)) is not None:
            messages = MessageIterator("t", part.read(1 << 20))
            partition_bodies += [message.data for message in messages]
            assert messages.offset == part.size
            offset += part.size
        assert offset == store.append_offset
        found.append(partition_bodies)
    return found


def test_nothing_acknowledged_is_lost(tmp_path: Path, metaq_writers: WriterServer) -> None:
    chance = random.Random(17)
    acks = tmp_path / "acks"
    root = tmp_path / "data"
    acknowledged = [0, 0, 0]
    kills = 0
    for round_number in range(ROUNDS):
        point = (
            POINTS[round_number % (2 * len(POINTS))]
            if round_number % (2 * len(POINTS)) < len(POINTS)
            else None
        )
        numbers = [len(bodies) for bodies in stored(root)] if round_number else [0, 0, 0]
        acks.write_bytes(b"")
        status = metaq_writers.run(
            writer="messages",
            root=str(root),
            acks=str(acks),
            starts=numbers,
            count=40,
            point=(*point, chance.randint(1, 6)) if point else None,
            kill_after_ms=None if point else chance.uniform(2, 25),
        )
        assert status in (0, KILLED), metaq_writers.last_words()
        kills += status == KILLED
        for line in acks.read_bytes().splitlines():
            partition, number = map(int, line.split(b":"))
            acknowledged[partition] = max(acknowledged[partition], number + 1)
        for partition, bodies in enumerate(stored(root)):
            expected = [b"%d:%d:" % (partition, n) + b"x" * (n * 37 % 300) for n in range(len(bodies))]
            assert bodies == expected, "each is there once, in order, whole"
            assert len(bodies) >= acknowledged[partition]
    assert kills > ROUNDS * 0.8
    assert sum(acknowledged) > ROUNDS


TRANSACTION_POINTS = [
    *(("pwrite", "/redo", moment) for moment in ("before", "half", "after")),
    *(("fdatasync", "/redo", moment) for moment in ("before", "after")),
    *(("pwrite", ".meta", moment) for moment in ("before", "half", "after")),
    *(("fdatasync", ".meta", moment) for moment in ("before", "after")),
    ("unlink", "/redo", "before"),
    ("replace", "/checkpoint", "before"),
]


def test_transactions_are_all_or_nothing(tmp_path: Path, metaq_writers: WriterServer) -> None:
    chance = random.Random(23)
    acks, root = tmp_path / "acks", tmp_path / "data"
    next_number, kills, committed_in_all = 1, 0, 0
    said: dict[int, str] = {}
    for round_number in range(ROUNDS // 2):
        turn = round_number % (2 * len(TRANSACTION_POINTS))
        point = TRANSACTION_POINTS[turn // 2] if turn % 2 else None
        acks.write_bytes(b"")
        status = metaq_writers.run(
            writer="transactions",
            root=str(root),
            acks=str(acks),
            starts=[next_number],
            count=30,
            point=(*point, chance.randint(1, 20)) if point else None,
            kill_after_ms=None if point else chance.uniform(5, 60),
        )
        assert status in (0, KILLED), metaq_writers.last_words()
        kills += status == KILLED
        for line in acks.read_text().splitlines():
            word, number = line.split(" ")
            said[int(number)] = word
        next_number += 30
        for number, parts in recovered(root).items():
            expected = {b"%d:%d:" % (number, i) + b"x" * (number * 31 % 200) for i in range(number % 4 + 2)}
            assert sorted(parts) == sorted(expected), f"transaction {number} once and as a whole"
            assert said.get(number) != "rolled"
            said[number] = "there"
        lost = [number for number, word in said.items() if word == "committed"]
        assert not lost, f"{lost} were committed"
        for number in [number for number, word in said.items() if word == "prepared" and number % 7 == 0]:
            raise AssertionError(f"{number} was prepared and is gone")
        committed_in_all = sum(word == "there" for word in said.values())
    assert kills > ROUNDS // 2 * 0.6
    assert committed_in_all > ROUNDS


def recovered(root: Path) -> dict[int, list[bytes]]:
    """Transaction → its messages, after recovery and when all that was prepared is committed."""

    async def recover() -> dict[int, list[bytes]]:
        manager = MessageStoreManager(config_of({"root": str(root)}))
        manager.load()
        store = JournalTransactionStore(str(root), manager, file_size_max=3000)
        for xid in store.recover():
            await store.commit(xid, True)
        found: dict[int, list[bytes]] = {}
        for partition in bodies_of(manager):
            order: dict[int, list[int]] = {}
            for body in partition:
                if body != b"plain":
                    number, i, _ = body.split(b":")
                    found.setdefault(int(number), []).append(body)
                    order.setdefault(int(number), []).append(int(i))
            assert all(numbers == sorted(numbers) for numbers in order.values())
        store.close()
        manager.close()
        return found

    return asyncio.run(recover())
