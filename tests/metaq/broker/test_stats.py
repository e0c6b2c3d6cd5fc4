from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.metaq.broker.stats import RESET_INTERVAL_S, RealTimeStat
from mqlake.remoting.loop import run
from tests.metaq.brokers import Peer, running

TOPICS = {"a": {"stat": "true", "numPartitions": "2"}, "b": {"acceptPublish": "false"}, "empty": {}}
FIELDS = (
    "pid broker_id port uptime version slave curr_connections threads cmd_put cmd_get cmd_offset tx_begin "
    "tx_xa_begin tx_commit tx_rollback get_miss put_failed total_messages topics config_checksum"
)


def test_every_item(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, TOPICS, broker_id=3) as broker:
            peer = await Peer.connect(broker.server.port)

            async def stats(item: str) -> list[str]:
                code, text = await peer.said(f"stats {item} 5\r\n".encode())
                lines = text.split("\r\n")
                assert code == 200 and lines[0] == "STATS" and lines[-2:] == ["END", ""]
                return lines[1:-2]

            for request in (
                b"put a 0 10 0 -1 1\r\n0123456789",
                b"put a 1 20 0 -1 1\r\n" + bytes(20),
                b"put b 0 3 0 -1 1\r\nabc",
                b"put a 9 3 0 -1 1\r\nabc",
                b"get a g 0 500 10 1\r\n",
                b"offset a g 0 0 1\r\n",
            ):
                await peer.ask(request)
            system = dict(line.split(" ") for line in await stats(""))
            assert list(system) == FIELDS.split()
            assert (
                system
                | {
                    "pid": str(os.getpid()),
                    "broker_id": "3",
                    "port": str(broker.server.port),
                    "version": "1.4.6.2",
                    "slave": "false",
                    "curr_connections": "1",
                    "cmd_put": "4",
                    "cmd_get": "1",
                    "cmd_offset": "1",
                    "put_failed": "1",
                    "get_miss": "1",
                    "total_messages": "3",
                    "topics": "3",
                }
                == system
            )
            assert await stats("topics") == [
                "a partitions 2 message_count 2 message_bytes 70 accept_publish true accept_subscribe true",
                "b partitions 1 message_count 1 message_bytes 23 accept_publish false accept_subscribe true",
                "empty *Empty*",
            ]
            assert await stats("offsets") == [
                "a part 0 min_offset 0 max_offset 30",
                "a part 1 min_offset 0 max_offset 40",
                "b part 0 min_offset 0 max_offset 23",
            ]
            realtime = await stats("realtime")
            assert realtime[0].startswith("realtime_put Count=3,Value=3,Value/Count=1,Count/Duration=")
            assert realtime[5].startswith(
                "realtime_message_size Count=3,Value=33,Value/Count=11,Count/Duration="
            )
            topic = await stats("a")
            assert topic[:5] == ["a", "resultCode 0", "partitions 2", "message_count 2", "bytes 70"]
            assert topic[5].startswith("topic_realtime_put Count=3,")
            assert (await stats("empty"))[1:3] == ["resultCode 2", "partitions 0"]
            assert (await stats("nosuch"))[1] == "resultCode 1"
            assert (await stats("nosuch"))[5] == "topic_realtime_put Invalid keyTwo:nosuch"
            assert await stats("reset") == ["reset ok"]
            assert [line.split()[0] for line in await stats("help")] == [
                "*EMPTY*",
                "help",
                "topics",
                "offsets",
                "realtime",
                "config",
            ]
            assert (await peer.said(b"stats config 5\r\n"))[0] == 500
            broker.config.path = str(tmp_path / "server.ini")
            (tmp_path / "server.ini").write_bytes(b"; \xff raw\n")
            peer.send(b"stats config 5\r\n")
            assert await peer.reader.readexactly(23) == b"result 200 8 5\r\n; \xff raw"[:23]

    run(conversation())


def test_real_time_counters() -> None:
    now = 0.0
    stat = RealTimeStat(lambda: now)
    assert stat.text("put") == "null"
    stat.add("put", "a", 10)
    stat.add("put", "b", 3)
    assert stat.text("put") == "Count=2,Value=13,Value/Count=6.5,Count/Duration=invalid,Duration=0"
    now = 8.2
    assert stat.text("put", "a") == "Count=1,Value=10,Value/Count=10,Count/Duration=.12,Duration=8"
    for value in (0, 19_987):
        stat.add("put", "c", value)
    assert stat.text("put", "c") == "Count=2,Value=19987,Value/Count=9993.5,Count/Duration=.25,Duration=8"
    for _ in range(10_000):
        stat.add("size", "c", 0)
    stat.add("size", "c", 20_000)
    assert stat.text("size").startswith("Count=10001,Value=20000,Value/Count=2,")
    assert stat.text("nosuch") == "null" and stat.text("put", "d") == "Invalid keyTwo:d"
    now = RESET_INTERVAL_S + 1
    stat.add("put", "a", 1)
    assert stat.text("put") == "Count=1,Value=1,Value/Count=1,Count/Duration=invalid,Duration=0"


@pytest.mark.parametrize("value", [0, 5])
def test_nothing_yet(value: int) -> None:
    now = 0.0
    stat = RealTimeStat(lambda: now)
    stat.add("put", "a", value)
    stat.reset()
    now = 4
    assert stat.text("put") == "Count=0,Value=0,Value/Count=invalid,Count/Duration=0,Duration=4"
