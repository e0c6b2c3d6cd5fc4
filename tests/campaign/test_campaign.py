"""A minute of the campaign: `python -m tests.campaign --minutes 60` goes on for longer."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.campaign.life import live
from tests.campaign.proxy import Link


@pytest.mark.crash
def test_a_life(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)  # what clients say of faults
    try:
        outcome = asyncio.run(live(tmp_path / "life", 5, seconds=15))
    finally:
        logging.disable(logging.NOTSET)
    assert outcome.violations == []
    assert outcome.sends["send ok"] > 20
    assert outcome.faults.total() > 0


def test_a_link_that_is_cut_hung_and_up_again() -> None:
    async def scene() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        link = Link(server.sockets[0].getsockname()[:2])
        await link.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"up")
        assert await reader.readexactly(2) == b"up"
        link.set("hung")
        writer.write(b"later")
        waiting = asyncio.create_task(reader.readexactly(5))
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        link.set("slow")
        assert await waiting == b"later"
        link.set("cut")
        with pytest.raises(ConnectionError):
            writer.write(b"lost")
            await reader.readexactly(4)
        writer.close()
        await link.close()
        server.close()

    asyncio.run(scene())
