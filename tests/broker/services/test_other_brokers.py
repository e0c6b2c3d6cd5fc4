from __future__ import annotations

import asyncio

import pytest

from mqlake.errors import RemotingConnectError, ResponseError
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from tests.broker.live import running
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.waiting import PATIENCE_S


def question() -> RemotingCommand:
    return RemotingCommand.create_request(RequestCode.GET_BROKER_CONFIG)


def test_brokers_find_each_other_by_name(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        others = cluster.brokers["broker-a"].registration.other_brokers
        answers = await asyncio.gather(*(others.ask("broker-b", question(), PATIENCE_S) for _ in range(5)))
        assert all(b"brokerName=broker-b" in answer.body_bytes() for answer in answers)
        with pytest.raises(ResponseError, match="no name server knows the broker broker-x"):
            await others.ask("broker-x", question(), PATIENCE_S)

    on_static_brokers(tmp_path, scene)


def test_a_broker_that_comes_back_elsewhere_is_found_again(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        others = cluster.brokers["broker-a"].registration.other_brokers
        await others.ask("broker-b", question(), PATIENCE_S)
        await cluster.brokers["broker-b"].stop()
        with pytest.raises(RemotingConnectError):
            await others.ask("broker-b", question(), PATIENCE_S)
        async with running(tmp_path / "again", brokerName="broker-b", namesrvAddr=cluster.namesrv_addr):
            answer = await others.ask("broker-b", question(), PATIENCE_S)
            assert b"brokerName=broker-b" in answer.body_bytes()

    on_static_brokers(tmp_path, scene)
