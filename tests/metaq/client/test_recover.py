"""What a RecoverManager keeps, whatever comes while it offers, and whatever its file holds."""

from __future__ import annotations

from pathlib import Path

from mqlake.metaq.client import Message
from mqlake.metaq.client.recover import RecoverManager
from mqlake.remoting.loop import run


def bodies(manager: RecoverManager) -> list[bytes]:
    return [message.data for message in manager.kept("t", "g")]


def kept(directory: Path, *data: bytes) -> RecoverManager:
    manager = RecoverManager(str(directory))
    for i, body in enumerate(data):
        manager("g", Message("t", body, "attribute", id=i + 1))
    return manager


def test_what_comes_while_others_are_offered_again_stays(tmp_path: Path) -> None:
    manager = kept(tmp_path, b"one", b"two")

    async def listener(message: Message) -> None:
        if message.data == b"one":
            manager("g", Message("t", b"three", id=3))
        else:
            message.rollback_only = True

    run(manager.retry("g", {"t": listener}))
    assert bodies(manager) == [b"two", b"three"]


def test_what_is_damaged_is_left_as_it_is(tmp_path: Path) -> None:
    manager = kept(tmp_path, b"one", b"two")
    path = tmp_path / "t@g"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    offered: list[bytes] = []
    run(manager.retry("g", {"t": lambda message: offered.append(message.data)}))
    assert offered == [b"one"] and path.read_bytes() == raw[len(raw) // 2 :]
