"""Filters at the broker: what a group does not accept never reaches it, and its offsets stay those of the file."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from mqlake.metaq.formats.command import BooleanCommand, DataCommand
from mqlake.metaq.formats.record import MessageIterator
from mqlake.metaq.message import Message
from mqlake.remoting.loop import run
from tests.metaq.brokers import Peer, running
from tests.waiting import trying


def accept(group: str, message: Message) -> bool:
    if message.data == b"boom":
        raise ValueError(group)
    return message.data.startswith(b"+")


@pytest.fixture(autouse=True)
def filters(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("metaq_test_filters")
    module.accept = accept  # type: ignore[attr-defined]
    module.number = 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


TOPICS = {
    "t": {
        "group.picky": "metaq_test_filters:accept",
        "group.wrong": "metaq_test_filters:number",
        "group.java": "com.example.Filter",
    }
}


async def consumed(peer: Peer, group: str, size: int) -> list[bytes]:
    """As a consumer goes through the partition."""
    offset, found = 0, []
    for _ in trying("the consumer is at the end"):
        answer = await peer.ask(b"get t %b 0 %d %d 1\r\n" % (group.encode(), offset, size))
        if isinstance(answer, DataCommand):
            messages = MessageIterator("t", answer.data)
            found += [message.data for message in messages]
            if not messages.offset:
                size *= 2
            offset += messages.offset
        elif answer.code == 301:
            assert isinstance(answer, BooleanCommand) and int(answer.message) > offset
            offset = int(answer.message)
        else:
            assert answer.code == 404
            break
    return found


@pytest.mark.parametrize("size", [10, 60, 1000])
def test_only_what_is_accepted_comes(tmp_path: Path, size: int) -> None:
    async def conversation() -> None:
        async with running(tmp_path, TOPICS) as broker:
            peer = await Peer.connect(broker.server.port)
            bodies = [b"-1", b"+2", b"+3", b"boom", b"-4", b"+5" * 30, b"-6", b"+7", b"-8"]
            for body in bodies:
                await peer.ask(b"put t 0 %d 0 -1 1\r\n" % len(body) + body)
            assert await consumed(peer, "picky", size) == [body for body in bodies if body.startswith(b"+")]
            for group in ("other", "wrong", "java"):
                assert await consumed(peer, group, size) == bodies

    run(conversation())
