"""A remoting server that reads the frame of a request and answers OK, whatever it is: the limit of the broker benches.

    python bench/bare_server.py TOPIC DRAIN_TOPIC QUEUES MESSAGES

It says `namesrv PORT, broker PORT` on its stdout: a name server in the same process sends the topics' clients here.
Each queue seems to hold MESSAGES of 1 KB; a pull gets 32 records, always the same ones.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence

from mqlake.formats.record import encode_record
from mqlake.message import host_bytes
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.topic import RegisterBrokerBody, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, ProcessorTable
from mqlake.remoting.headers.namesrv import RegisterBrokerRequestHeader
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer

FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
"""What a producer wants to see in the answer to a send."""
MESSAGES_A_PULL = 32
BODY_SIZE = 1024


def answer(_: Connection, __: RemotingCommand) -> RemotingCommand:
    response = RemotingCommand.create_response()
    response.ext_fields = FIELDS
    return response


class Pulls:
    """Answers to those who read a queue from its beginning to its end."""

    def __init__(self, topic: str, messages: int) -> None:
        self._messages = messages
        host, body = host_bytes(("127.0.0.1", 10911)), b"m" * BODY_SIZE
        record = encode_record(
            body, 0, 0, 0, 0, 0, 0, 0, host, 0, host, 0, 0, topic.encode(), b"TAGS\x01TagA\x02"
        )
        self._records = bytes(record) * MESSAGES_A_PULL

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.PULL_MESSAGE, self.pull)
        table.register(RequestCode.GET_MIN_OFFSET, lambda _, __: _with_fields(offset="0"))
        table.register(RequestCode.GET_MAX_OFFSET, lambda _, __: _with_fields(offset=str(self._messages)))

    def pull(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        following = int(request.ext_fields["queueOffset"]) + MESSAGES_A_PULL
        response = _with_fields(
            suggestWhichBrokerId="0",
            nextBeginOffset=str(following),
            minOffset="0",
            maxOffset=str(self._messages),
        )
        response.body = self._records
        return response


def _with_fields(**fields: str) -> RemotingCommand:
    response = RemotingCommand.create_response()
    response.ext_fields = fields
    return response


async def serve(topics: Sequence[str], queues: int, pulls: Pulls, directory: str) -> None:
    namesrv = NamesrvController(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=f"{directory}/kvConfig.json",
            config_store_path=f"{directory}/namesrv.properties",
        )
    )
    await namesrv.start()
    server = RemotingServer()
    server.processors.register_default(answer)
    pulls.register(server.processors)
    await server.start("127.0.0.1")
    header = RegisterBrokerRequestHeader(
        broker_name="bare",
        broker_addr=f"127.0.0.1:{server.port}",
        cluster_name="c",
        ha_server_addr="",
        broker_id=0,
    )
    body = RegisterBrokerBody()
    # a first registration of a single topic would be refused
    body.topic_config_serialize_wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues) for name in topics
    }
    async with RemotingClient() as client:
        address = f"127.0.0.1:{namesrv.port}"
        await client.call(
            address, RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body.to_json())
        )
        print(f"namesrv {namesrv.port}, broker {server.port}", flush=True)
        while True:  # a name server forgets who is silent
            await asyncio.sleep(30)
            await client.call(
                address, RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body.to_json())
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        _, sent_to, drained, queue_count, message_count = sys.argv
        run(serve((sent_to, drained), int(queue_count), Pulls(drained, int(message_count)), scratch))
