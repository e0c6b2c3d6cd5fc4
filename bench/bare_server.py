"""A remoting server that reads the frame of a request and answers OK, whatever it is: the limit of the broker benches.

    python bench/bare_server.py TOPIC QUEUES

It says `namesrv PORT` on its stdout: a name server in the same process sends the topic's clients here.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.topic import RegisterBrokerBody, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.namesrv import RegisterBrokerRequestHeader
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer

FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
"""What a producer wants to see in the answer to a send."""


def answer(_: Connection, __: RemotingCommand) -> RemotingCommand:
    response = RemotingCommand.create_response()
    response.ext_fields = FIELDS
    return response


async def serve(topic: str, queues: int, directory: str) -> None:
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
    await server.start("127.0.0.1")
    header = RegisterBrokerRequestHeader(
        broker_name="bare",
        broker_addr=f"127.0.0.1:{server.port}",
        cluster_name="c",
        ha_server_addr="",
        broker_id=0,
    )
    body = RegisterBrokerBody()
    # a first registration of a single topic is refused
    body.topic_config_serialize_wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name in (topic, "bare")
    }
    async with RemotingClient() as client:
        address = f"127.0.0.1:{namesrv.port}"
        await client.call(
            address, RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body.to_json())
        )
        print(f"namesrv {namesrv.port}", flush=True)
        while True:  # a name server forgets who is silent
            await asyncio.sleep(30)
            await client.call(
                address, RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body.to_json())
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        run(serve(sys.argv[1], int(sys.argv[2]), scratch))
