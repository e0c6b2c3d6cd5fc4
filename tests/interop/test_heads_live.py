"""Heads beside RocketMQ's broker: written while it runs, it minds them neither then nor when it starts again."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pyarrow.compute as pc
import pytest

import mqlake.lake
from mqlake.client.produce.producer import Producer
from mqlake.lake.heads.valid import open_valid
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.lake.log.storage import Storage
from mqlake.message import Message
from tests.interop.brokers import Broker, JavaBroker
from tests.waiting import until

FILE = 64 << 10


def send(broker: Broker, first: int, count: int) -> None:
    async def work() -> None:
        async with Producer("p", broker.namesrv) as producer:
            for n in range(first, first + count):
                await producer.send(Message("Orders", b"%1000d" % n, keys=f"order-{n}"))

    asyncio.run(work())


@pytest.mark.java
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_java_s_broker_does_not_mind_heads(tmp_path: Path, number: signal.Signals) -> None:
    with JavaBroker(tmp_path, {"mappedFileSizeCommitLog": FILE, "flushDiskType": "SYNC_FLUSH"}) as broker:
        store = tmp_path / "store"
        log = mqlake.lake.scan(store)

        def sent(count: int) -> None:
            keys = [f"order-{n}" for n in range(count)]
            until(lambda: log.to_table(columns=["keys"])["keys"].to_pylist().count(f"order-{count - 1}") == 1)
            found = log.to_table(columns=["keys"], filter=pc.field("topic") == "Orders")["keys"].to_pylist()
            assert sorted(found) == sorted(keys)
            assert log.to_table(columns=["body"], filter=pc.field("keys") == "order-7")[
                "body"
            ].to_pylist() == [b"%1000d" % 7]

        send(broker, 0, 150)
        assert HeadsWriter(str(store)).run().written >= 2
        sent(150)
        send(broker, 150, 100)
        assert HeadsWriter(str(store)).run().written >= 1
        heads = {path.name: path.read_bytes() for path in (store / "heads").iterdir()}
        broker.end(number)
        broker.start()
        assert {path.name: path.read_bytes() for path in (store / "heads").iterdir()} == heads
        send(broker, 250, 100)
        sent(350)
        found = open_valid(Storage(str(store)))
        assert len(found.valid) == len(heads) and not found.passed_over
        assert HeadsWriter(str(store)).run().kept == len(heads)
