"""Small stores for tests of what reads and mends whole directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from mqlake.formats.batch import encode_messages
from mqlake.formats.columns import scan_records
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.message_store import open_store

SETTINGS = {
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
}
TOPICS = ("Orders", "Payments")
QUEUES = 2
COUNT = 200
START_MS = 1_700_000_000_000


def message(number: int, *, body_size: int = 100) -> MessageExtBrokerInner:
    """Message `number`: its topic, queue, tag, keys and body all follow from it."""
    return MessageExtBrokerInner(
        TOPICS[number % 2],
        f"message {number} ".encode().ljust(body_size, b"."),
        f"Tag{number % 3}",
        [f"key-{number}", f"group-{number % 10}"],
        properties={"UNIQ_KEY": f"{number:032X}"},
        queue_id=number // 2 % QUEUES,
        born_timestamp=START_MS,
        born_host=("127.0.0.1", 50000),
        store_host=("127.0.0.1", 10911),
    )


def fill(root: Path, first: int = 0, count: int = COUNT, **settings: object) -> Path:
    """Puts messages `first` … into the store, which is made when it is new, and closes it cleanly."""
    with open_store(root, {**SETTINGS, **settings}) as store:
        for number in range(first, first + count):
            assert store.put_message(message(number)).is_ok
    return root


def fill_batches(root: Path, batches: int, size: int) -> Path:
    """Classic batches of `size` messages."""
    with open_store(root, SETTINGS) as store:
        for number in range(batches):
            blob = encode_messages([Message("", f"{number}/{item}".encode()) for item in range(size)])
            assert store.put_messages(MessageExtBatch("Batches", blob, queue_id=number % 2)).is_ok
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file under `root`."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def log_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def records(root: Path) -> list[tuple[Path, int, int]]:
    """File, position and size of every record of the log."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        data = np.frombuffer(path.read_bytes(), np.uint8)
        scan = scan_records(data, 0, len(data), int(path.name))
        found += [(path, *each) for each in zip(scan.position.tolist(), scan.size.tolist(), strict=True)]
    return found


def record_at(root: Path, number: int) -> tuple[Path, int, int]:
    return records(root)[number]


def change(path: Path, offset: int, data: bytes | Callable[[bytes], bytes], size: int = 1) -> None:
    """Overwrites bytes in place; a function gets the `size` bytes that are there."""
    with path.open("r+b") as file:
        file.seek(offset)
        new = data if isinstance(data, bytes) else data(file.read(size))
        file.seek(offset)
        file.write(new)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    change(path, offset, lambda old: bytes([old[0] ^ 1 << bit]))


def pretend_crash(root: Path) -> None:
    """What a killed process leaves: the abort file of a process that is no more."""
    (root / "abort").write_text("999999999")
