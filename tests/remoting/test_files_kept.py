"""The last descriptors of a server are for files; without this, a store under many connections can create no file."""

from __future__ import annotations

import asyncio
import resource

import pytest

from mqlake.remoting.connection import Connection, Endpoint
from mqlake.remoting.files_kept import FILES_SAID_S, FilesKept


def test_the_last_descriptors_are_for_files(caplog: pytest.LogCaptureFixture):
    now = 100.0
    kept = FilesKept(lambda: now)

    async def scene() -> Connection:
        return Connection(Endpoint(), asyncio.get_running_loop(), address_called="192.0.2.1:9876")

    peer = asyncio.run(scene())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, before[1]))
    try:
        assert [kept.refuses(peer, fd) for fd in (10, 699, 700, 799)] == [False, False, True, True]
        resource.setrlimit(resource.RLIMIT_NOFILE, (4000, before[1]))
        assert [kept.refuses(peer, fd) for fd in (3743, 3744)] == [False, True]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    [line] = caplog.messages
    assert "192.0.2.1:9876: closed, as this process may have 800 files" in line
    assert "ulimit -n" in line
    now += FILES_SAID_S
    kept.refuses(peer, before[0])
    assert "(refused so far: 4)" in caplog.messages[1]
