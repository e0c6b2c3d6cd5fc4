"""The pages for operators, as JSON and as a browser sees them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from mqlake.metaq.broker.admin_http import AdminHttp
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.broker.dashboard import PAGES
from mqlake.metaq.config import MetaConfig
from mqlake.metaq.message import Partition
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.remoting.loop import run
from tests.interop.metaq_peer import write_ini
from tests.metaq.broker.test_admin_http import asked
from tests.metaq.brokers import HOST, Peer, running

HTML = "Accept: text/html,*/*\r\n"


def test_pages(tmp_path: Path, zookeeper: EmbeddedZookeeper) -> None:
    topics = {"t": {"numPartitions": "2"}, "empty": {}}
    zk = f"{zookeeper.connect_string}/{tmp_path.name}"
    ini = write_ini(tmp_path / "server.ini", broker_id=3, port=0, data=tmp_path, zk=zk, topics=topics)

    async def conversation() -> None:
        broker = MetaMorphosisBroker(MetaConfig.load(str(ini)), host=HOST)
        admin = AdminHttp(broker)
        await broker.start()
        await admin.start(HOST, 0)

        async def page(path: str) -> object:
            status, body = await asked(admin.port, f"GET {path}")
            assert status == 200, body
            return json.loads(body) if body[:1] in "{[" else body

        peer = await Peer.connect(broker.server.port)
        for n in range(10):
            await peer.said(b"put t 1 5 0 -1 1\r\n<%03d>" % n)
        assert await page("/") == {"brokerId": 3, "version": "1.4.6.2"}
        instance = await page("/dashboard")
        assert isinstance(instance, dict) and instance["instance"]["data"] == str(tmp_path)
        assert instance["system"]["fileDescriptors"] > 3
        row = {"topic": "t", "partitions": 1, "messages": 10, "bytes": 250, "averageSize": 25}
        row |= {"acceptPublish": True, "acceptSubscribe": True}
        assert await page("/topics") == [row]
        assert await page("/topics/t") == row
        (node,) = list(await page("/cluster"))  # type: ignore[call-overload]
        assert (node["broker"], node["slave"], node["current"]) == ("3", False, True)
        assert node["dashboard"] == f"http://{HOST}:8120"
        assert "MainThread" in str(await page("/thread-dump"))
        logging.getLogger("mqlake.test").warning("something <b>happened</b>")
        assert "something <b>happened</b>" in str(await page("/logging"))
        assert "something &lt;b&gt;happened" in (await asked(admin.port, "GET /logging", HTML))[1]
        assert "executable" in str(await page("/java-properties"))

        session, paths = broker.zookeeper.session, broker.zookeeper.paths  # type: ignore[union-attr]
        offset = paths.consumer_offset("g", "t", Partition(3, 1))
        owner = paths.consumer_owner("g", "t", Partition(3, 1))
        assert (await asked(admin.port, "GET /topics/t?group=g"))[0] == 409
        session.put_persistent(offset, b"7-100")
        session.put_ephemeral(owner, b"somebody")
        found = await page("/topics/t?group=g")
        assert found == {
            "topic": row,
            "group": {"name": "g", "filter": None},
            "pending": [
                {
                    "partition": 1,
                    "owner": "somebody",
                    "pendingMessages": 6,
                    "pendingBytes": 150,
                    "consumedMessages": 4,
                    "consumedBytes": 100,
                    "skip": "/topics/t/groups/g/partitions/1/skip",
                }
            ],
        }
        skip = "POST /topics/t/groups/g/partitions/1/skip"
        status, text = await asked(admin.port, skip)
        assert status == 409 and "somebody owns the partition" in text
        session.delete(owner)
        assert (await asked(admin.port, skip, "Origin: http://elsewhere\r\n"))[0] == 403
        assert session.read(offset) == b"7-100"
        assert (await asked(admin.port, skip, f"Origin: http://x\r\n{HTML}"))[0] == 200
        assert session.read(offset) == b"0-250"

        for name in PAGES:
            status, text = await asked(admin.port, f"GET /{name}", HTML)
            assert status == 200 and text.startswith("<!doctype html>"), name
            assert re.findall(r'href="/([^"]*)"', text)[: len(PAGES)] == list(PAGES)
        assert '<a href="/topics/t">t</a>' in (await asked(admin.port, "GET /topics", HTML))[1]
        assert 'action="/topics/t/groups/g' in (await asked(admin.port, "GET /topics/t?group=g", HTML))[1]
        for path in ("/topics/nosuch", "/topics/t/u", "/thread"):
            status, text = await asked(admin.port, f"GET {path}")
            assert status == 404 and "there is no" in text
        await admin.stop()
        await broker.stop()

    run(conversation())


def test_without_zookeeper(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            admin = AdminHttp(broker)
            await admin.start(HOST, 0)
            assert (await asked(admin.port, "GET /cluster")) == (
                409,
                '{"error":"the broker runs without ZooKeeper"}\n',
            )
            await admin.stop()

    run(conversation())
