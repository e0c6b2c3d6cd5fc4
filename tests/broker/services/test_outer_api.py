from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from mqlake.broker.services.outer_api import BrokerIdentity, BrokerOuterAPI
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.topic import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from mqlake.remoting.loop import run
from tests.waiting import PATIENCE_S, until_async

ME = BrokerIdentity(
    cluster_name="c",
    broker_name="a",
    broker_id=0,
    broker_addr="127.0.0.1:10911",
    ha_server_addr="127.0.0.1:10912",
)
NOBODY = "127.0.0.1:1"


@contextlib.asynccontextmanager
async def name_server(directory: Path, port: int = 0) -> AsyncIterator[NamesrvController]:
    controller = NamesrvController(
        NamesrvConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=str(directory / "kv.json"))
    )
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


def wrapper(*topics: str, counter: int = 1) -> TopicConfigAndMappingSerializeWrapper:
    return TopicConfigAndMappingSerializeWrapper(
        topic_config_table={topic: TopicConfig(topic_name=topic) for topic in topics},
        data_version=DataVersion(counter=counter),
    )


def test_every_name_server_is_told_and_one_that_is_away_is_said_once(tmp_path, caplog):
    async def scene() -> None:
        async with name_server(tmp_path / "1") as one, name_server(tmp_path / "2") as two:
            one.kv_config.put("ORDER_TOPIC_CONFIG", "T", "a:4")
            api = BrokerOuterAPI([f"127.0.0.1:{one.port}", NOBODY, f"127.0.0.1:{two.port}"])
            for _ in range(2):
                results = await api.register_broker_all(ME, wrapper("T", "U"), 3.0)
                assert [result is not None for result in results] == [True, False, True]
            assert results[0].order_topics == {"T": "a:4"} and results[2].order_topics == {}
            for each in (one, two):
                assert each.routes.pickup_topic_route_data("T").queue_datas[0].broker_name == "a"
            assert caplog.text.count(NOBODY) == 2  # its name and why, in one line
            assert len(caplog.records) == 1

            await api.register_single_topic_all("a", TopicConfig(topic_name="V", read_queue_nums=3))
            assert two.routes.pickup_topic_route_data("V").queue_datas[0].read_queue_nums == 3

            await api.unregister_broker_all(ME, PATIENCE_S)
            assert one.routes.pickup_topic_route_data("T") is None
            await api.close()

    run(scene())


def test_whether_it_is_necessary(tmp_path):
    async def scene() -> None:
        async with name_server(tmp_path) as one:
            api = BrokerOuterAPI([f"127.0.0.1:{one.port}"])
            assert await api.need_register(ME, DataVersion(counter=1), 3.0)
            await api.register_broker_all(ME, wrapper("T", "U"), 3.0)
            assert not await api.need_register(ME, DataVersion(counter=1), 3.0)
            assert await api.need_register(ME, DataVersion(counter=2), 3.0)
            api.name_servers = [NOBODY]
            assert await api.need_register(ME, DataVersion(counter=1), 3.0)
            await api.close()

    run(scene())


def test_a_lost_name_server_is_told_of(tmp_path, caplog):
    async def scene() -> None:
        lost = []
        async with name_server(tmp_path) as one:
            port = one.port
            api = BrokerOuterAPI([f"127.0.0.1:{port}"], lambda: lost.append(1))
            await api.register_broker_all(ME, wrapper("T", "U"), 3.0)
        await until_async(lambda: lost == [1])
        assert await api.register_broker_all(ME, wrapper("T", "U"), 3.0) == [None]
        async with name_server(tmp_path, port):
            assert await api.register_broker_all(ME, wrapper("T", "U"), 3.0) != [None]
            assert "registered with the name server" in caplog.text
        await api.close()

    run(scene())
