"""What a broker asks a client, through the client's telemetry stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.remoting.bodies.client import CMResult
from tests.proxy.live import Peer, consumer_settings, message, on_a_broker

pytestmark = pytest.mark.usefixtures("each_server")


async def answering(stream: Any, *, known: bool = True) -> None:
    """A client that answers every command, or none."""
    while True:
        command = await stream.read()
        kind = command.WhichOneof("command")
        answer = v2.TelemetryCommand(status=Status(code=Code.OK, message="fine"))
        if kind == "print_thread_stack_trace_command":
            answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
            answer.thread_stack_trace.thread_stack_trace = "main: waiting"
        elif kind == "verify_message_command":
            answer.status.code = Code.FAILED_TO_CONSUME_MESSAGE
            answer.verify_message_result.nonce = command.verify_message_command.nonce
        if known:
            await stream.write(answer)


def test_stack_traces_and_direct_consumption(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        stream, _ = await peer.settle(consumer_settings("G", "T"))
        client = asyncio.ensure_future(answering(stream))
        api, address = BrokerAPI(peer.remoting), peer.controller.broker_addr
        info = await api.get_consumer_running_info(address, "G", "client-1", jstack=True)
        assert info.jstack == "main: waiting"
        assert (await api.get_consumer_running_info(address, "G", "client-1")).jstack is None

        await peer.send(message("T"))
        (stored,) = await peer.records("T", 1)
        result = await api.consume_message_directly(address, "G", "client-1", "T", stored.msg_id)
        assert (result.consume_result, result.remark) == (CMResult.CR_LATER, "fine")
        client.cancel()

    on_a_broker(tmp_path, scene)


def test_a_client_without_a_stream_is_named(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        stream, _ = await peer.settle(consumer_settings("G", "T"))
        stream.cancel()
        api = BrokerAPI(peer.remoting)
        try:
            await api.get_consumer_running_info(peer.controller.broker_addr, "G", "client-1", jstack=True)
        except ResponseError as error:
            assert "client-1" in error.remark
        else:
            raise AssertionError("no answer was expected")

    on_a_broker(tmp_path, scene)
