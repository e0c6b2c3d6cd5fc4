from __future__ import annotations

import asyncio
from pathlib import Path

from mqlake.metaq.broker.data_http import DataHttp
from mqlake.metaq.formats.record import MessageIterator, checksum
from mqlake.remoting.loop import run
from tests.metaq.brokers import HOST, running


async def asked(port: int, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"{method} {target} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head, _, found = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), found


def test_messages_over_http(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, {"t": {}, "f": {"group.g": "builtins:bool"}}) as broker:
            http = DataHttp(broker)
            await http.start(HOST, 0)
            port = http.server.port
            put = "/put/0?topic=t&partition=0&flag=0&length=3"
            status, text = await asked(port, "POST", put, b"abc")
            assert status == 200 and text.endswith(b" 0 0")
            assert (await asked(port, "POST", f"{put}&checksum={checksum(b'abc')}", b"abc"))[1].endswith(
                b" 0 23"
            )
            get = "/get/0?topic=t&partition=0&group=g&offset={}&maxsize=1000"
            status, data = await asked(port, "GET", get.format(0))
            assert status == 200 and [m.data for m in MessageIterator("t", data)] == [b"abc", b"abc"]
            assert await asked(port, "GET", get.format(46)) == (404, b"Could not find message at position 46")
            assert await asked(port, "GET", get.format(-5)) == (301, b"0")
            offset = "/offset/0?topic=t&partition=0&group=g&offset=999"
            assert await asked(port, "GET", offset) == (200, b"46")
            broker.config.close_partitions("t", 0, 0)
            assert (await asked(port, "POST", put, b"abc"))[0] == 403
            for method, target, body, said in (
                ("GET", "/nothing", b"", b"Invalid request"),
                ("POST", put, b"abcd", b"length is 3, the body has 4 bytes"),
                ("GET", "/get/0?topic=t", b"", b"partition is missing"),
                ("GET", get.format("x"), b"", b"not a number in range: 'x'"),
                ("GET", get.format(1 << 63), b"", b"not a number in range"),
                ("POST", put.replace("flag=0", "flag=2147483648"), b"abc", b"not a number in range"),
            ):
                status, text = await asked(port, method, target, body)
                assert status == 400 and said in text, (target, text)
            await http.stop()

    run(conversation())
