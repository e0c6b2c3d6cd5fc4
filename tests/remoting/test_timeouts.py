"""A request without a limit of its own has the default one, as it is when the request is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mqlake.client.config import ClientConfig
from mqlake.client.produce.producer import ProducerConfig
from mqlake.errors import RemotingTimeoutError
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS


def test_the_limit_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFAULT_TIMEOUTS, "request_s", 7.0)
    assert DEFAULT_TIMEOUTS.of(None) == 7.0
    assert DEFAULT_TIMEOUTS.of(0.0) == 0.0


def test_configurations_start_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFAULT_TIMEOUTS, "request_s", 7.0)
    assert ClientConfig().timeout_s == ProducerConfig().send_msg_timeout_s == 7.0
    assert ClientConfig(timeout_s=1.0).timeout_s == 1.0


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, address, request: client.invoke(address, request),
        lambda client, address, request: client.call(address, request),
    ],
)
def test_requests_end_with_it(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[RemotingClient, str, RemotingCommand], Awaitable[RemotingCommand]],
) -> None:
    async def main() -> None:
        server, never = RemotingServer(), asyncio.Event()

        async def hold(_: Connection, __: RemotingCommand) -> None:
            await never.wait()

        server.processors.register(1, hold)
        await server.start("127.0.0.1")
        client = RemotingClient()
        address = f"127.0.0.1:{server.port}"
        await client.connection(address)
        monkeypatch.setattr(DEFAULT_TIMEOUTS, "request_s", 0.05)
        with pytest.raises(RemotingTimeoutError, match=r"0\.05"):
            await ask(client, address, RemotingCommand.create_request(1))
        never.set()
        await client.close()
        await server.stop()

    run(main())
