from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.broker.admin_http import AdminHttp
from mqlake.remoting.loop import run
from tests.metaq.brokers import HOST, Peer, running

XID = b"XID:1:aa:bb:q"


async def asked(port: int, request: str, headers: str = "") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"{request} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"
    writer.write((request if "\r\n" in request else head).encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return (int(head.split(" ")[1]) if head else 0), body


def test_everything_an_operator_may_ask(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            admin = AdminHttp(broker)
            await admin.start(HOST, 0)
            peer = await Peer.connect(broker.server.port)

            async def said(request: str) -> object:
                status, body = await asked(admin.port, request)
                assert status == 200, body
                return json.loads(body) if body.startswith(("{", "[")) else body

            assert str(await said("GET /stats")).startswith("STATS\r\npid ")
            assert "test *Empty*" in str(await said("GET /stats/topics"))
            assert await said("POST /partitions/close?topic=test&start=0&end=1") == {"test": [0, 1]}
            assert (await peer.said(b"put test 1 1 0 -1 1\r\nx"))[0] == 403
            assert await said("GET /partitions/closed") == {"test": [0, 1]}
            assert await said("POST /partitions/open?topic=test") == {}
            assert await said("POST /reload-config") == {"reloaded": False}
            assert await said("POST /run-delete-policies") == {"gone": []}
            await peer.said(b"transaction %b s BEGIN q 1\r\n" % XID)
            await peer.said(b"put test 1 1 0 -1 %b 1\r\nx" % XID)
            await peer.said(b"transaction %b s PREPARE q 1\r\n" % XID)
            assert await said("GET /transactions") == {"active": 1, "prepared": [XID.decode()]}
            assert await said("POST /checkpoint") == {"done": "checkpoint"}
            ended = await said(f"POST /transactions/commit?key={XID.decode()}")
            assert ended == {"key": XID.decode(), "done": "commit"}
            assert broker.manager.stores()[0].max_offset == 21
            for request, status, text in (
                ("GET /nosuch", 404, "there is no /nosuch"),
                ("GET /checkpoint", 405, "needs POST"),
                ("POST /partitions/close?topic=test", 400, "start is missing"),
                ("POST /partitions/close?topic=test&start=x&end=1", 400, "invalid literal"),
                ("POST /partitions/close?topic=nosuch&start=0&end=1", 409, "no topic"),
                ("POST /transactions/commit?key=XID:1:aa:bb:q", 409, "no prepared"),
                ("GET /config", 409, "without a configuration file"),
                ("nonsense\r\n\r\n", 400, "not a valid HTTP request: 'nonsense'"),
                ("x" * 20_000 + "\r\n\r\n", 400, "not a valid HTTP request"),
            ):
                found = await asked(admin.port, request)
                assert found[0] == status and text in found[1], (request, found)
            with pytest.raises(ConfigError, match="cannot listen"):
                await AdminHttp(broker).start(HOST, admin.port)
            await admin.stop()

    run(conversation())
