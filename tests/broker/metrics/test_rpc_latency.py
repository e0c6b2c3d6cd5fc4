from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.fast.fast_send import FastSend
from mqlake.broker.metrics.rpc_latency import BUCKETS_MS, Rpc, RpcLatencies
from mqlake.errors import ResponseError
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer
from tests.broker.fast.test_fast_send import Wire, send
from tests.broker.live import SUBSCRIPTION, SUSPEND, Peer, on_a_broker, running
from tests.waiting import until_async

ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0", "metricsPromExporterHost": "127.0.0.1"}


def counts(latencies: RpcLatencies) -> dict[Rpc, int]:
    return {rpc: sum(histogram.counts) for rpc, histogram in latencies.histograms.items()}


def test_times_lie_in_rocketmqs_buckets():
    latencies, rpc = RpcLatencies(), Rpc(1, 0, False, False)
    for ms in (0, 1, 2, 3.9, 10, 11, 3000, 3001, 99_999):
        latencies.record(rpc, int(ms * 1_000_000))
    latencies.record(rpc, 50_000_000, times=100)
    latencies.record(Rpc(2, 0, False, False), 0, times=0)
    (histogram,) = latencies.histograms.values()
    assert dict(zip((*BUCKETS_MS, "more"), histogram.counts, strict=True)) == {
        1: 2,
        3: 2,
        5: 0,
        7: 0,
        10: 1,
        100: 101,
        1000: 0,
        2000: 0,
        3000: 1,
        "more": 2,
    }
    assert histogram.sum == (0 + 1 + 2 + 3.9 + 10 + 11 + 3000 + 3001 + 99_999 + 5000) * 1_000_000


def test_every_kind_of_processor_is_measured_and_answers_as_before():
    async def later(_: Any, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return RemotingCommand.create_response(ResponseCode.SUCCESS, body=bytes(request.body))

    async def fails_later(*_: Any) -> RemotingCommand:
        await asyncio.sleep(0)
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, "no")

    def fails(*_: Any) -> RemotingCommand:
        raise ValueError("no")

    async def main() -> None:
        latencies, server = RpcLatencies(), RemotingServer()
        table = server.processors = latencies.processor_table()
        table.register((10, 12), lambda connection, request: RemotingCommand.create_response(0))
        table.register(15, lambda connection, request: None)
        table.register(14, later)
        table.register(17, fails_later)
        table.register(18, fails)
        await server.start("127.0.0.1")
        async with RemotingClient() as client:
            at = f"127.0.0.1:{server.port}"
            for code, response_code in ((10, 0), (10, 0), (12, 0), (14, 0), (17, 17), (18, 1), (19, 3)):
                answer = await client.invoke(at, RemotingCommand.create_request(code, body=b"body"), 60)
                assert answer.code == response_code, code
                assert code != 14 or answer.body_bytes() == b"body"
            for code in (10, 15):
                await client.invoke_oneway(at, RemotingCommand.create_request(code))
            oneway = Rpc(10, 0, False, True)
            await until_async(lambda: oneway in latencies.histograms)
        await server.stop()
        assert counts(latencies) == {
            Rpc(10, 0, False, False): 2,
            Rpc(12, 0, False, False): 1,
            Rpc(14, 0, False, False): 1,
            Rpc(17, 17, False, False): 1,
            Rpc(18, 1, False, False): 1,
            oneway: 1,
        }

    run(main())


def test_a_pull_that_waits_for_the_dispatch_of_its_messages_is_not_held():
    async def dispatched() -> RemotingCommand:
        await asyncio.sleep(0)
        return RemotingCommand.create_response(ResponseCode.SUCCESS)

    async def main() -> None:
        latencies, server = RpcLatencies(), RemotingServer()
        table = server.processors = latencies.processor_table()
        table.register(RequestCode.PULL_MESSAGE, lambda *_: asyncio.ensure_future(dispatched()))
        await server.start("127.0.0.1")
        async with RemotingClient() as client:
            pull = RemotingCommand.create_request(RequestCode.PULL_MESSAGE)
            await client.invoke(f"127.0.0.1:{server.port}", pull, 60)
        await server.stop()
        assert counts(latencies) == {Rpc(RequestCode.PULL_MESSAGE, 0, False, False): 1}

    run(main())


def test_a_pull_that_was_held_is_told_apart(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        assert peer.controller.metrics is not None
        await peer.send("T")
        await peer.dispatched()
        await peer.pull("T")
        await peer.pull("T", 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20)
        found = counts(peer.controller.metrics.rpc_latencies)
        pull = int(RequestCode.PULL_MESSAGE)
        assert found[Rpc(pull, ResponseCode.SUCCESS, False, False)] == 1
        assert found[Rpc(pull, ResponseCode.PULL_NOT_FOUND, True, False)] == 1
        held = peer.controller.metrics.rpc_latencies.histograms[Rpc(pull, 19, True, False)]
        assert held.sum >= 15_000_000

    on_a_broker(tmp_path, scene, **ON)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sends_that_are_taken_together_count_each(tmp_path: Path, flush: str):
    async def main() -> None:
        async with running(tmp_path, flushDiskType=flush, **ON) as controller:
            assert controller.metrics is not None
            fast = controller.server.fast_paths[0]
            assert isinstance(fast, FastSend)
            await asyncio.to_thread(fast.load)  # the first time of all it compiles
            async with Wire(controller) as wire:
                await wire.say(send())
                while controller.broker.topic_config_manager.unsettled:
                    await asyncio.sleep(0.005)
                frames = [send(opaque=n, command_flag=ONEWAY_FLAG if n % 3 == 0 else 0) for n in range(1, 31)]
                assert len(await wire.say(b"".join(frames))) == 20
            sends, latencies = int(RequestCode.SEND_MESSAGE_V2), controller.metrics.rpc_latencies
            expected = {Rpc(sends, 0, False, False): 21, Rpc(sends, 0, False, True): 10}
            await until_async(lambda: counts(latencies) == expected)

    run(main())
