"""A producer that sends and does not read: it waits, its answers do not pile up in the broker, others are served."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.consume import GetMaxOffsetRequestHeader
from mqlake.remoting.loop import run
from tests.broker.live import PATIENCE_S, pull_header, send_header
from tests.interop.brokers import MqlakeBroker

ANSWER_SIZE = 350
"""Bytes, about."""
SYSTEM_KEEPS = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
"""Bytes of answers that wait in the system before they do in the broker."""
SENDS = (SYSTEM_KEEPS + (4 << 20)) // ANSWER_SIZE
GROWTH_MAX = 24 << 20
"""Bytes of memory: what may wait to be sent, a read of requests, and what the broker's own work takes."""
STILL = 100
"""Requests of a neighbour during which nothing is stored: the broker reads no more."""


class Neighbour:
    def __init__(self, broker: MqlakeBroker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client

    async def ask(
        self, code: RequestCode, header: CommandHeader, body: bytes | None = None
    ) -> RemotingCommand:
        request = RemotingCommand.create_request(code, header, body)
        return await self.client.call(self.broker.address, request, PATIENCE_S)

    async def send_and_pull(self) -> None:
        sent = await self.ask(RequestCode.SEND_MESSAGE_V2, send_header("Mine"), b"mine")
        offset = int(sent.ext_fields["queueOffset"])
        pulled = await self.ask(RequestCode.PULL_MESSAGE, pull_header("Mine", offset, sys_flag=6))
        assert pulled.body_bytes().count(b"mine") == 1

    async def stored(self, topic: str) -> int:
        header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
        return int((await self.ask(RequestCode.GET_MAX_OFFSET, header)).ext_fields["offset"])


def anonymous(broker: MqlakeBroker) -> int:
    """Bytes of memory that are no file's: the log's pages are not the broker's."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def opaques_of_answers(connection: socket.socket, count: int) -> list[int]:
    """Of the next `count` answers, all of them SUCCESS."""
    found, data = [], bytearray()
    while len(found) < count:
        came = connection.recv(1 << 20)
        assert came, f"closed after {len(found)} answers"
        data += came
        start, view = 0, memoryview(bytes(data))
        while end := frame_end(view, start, len(view)):
            answer = decode_frame(view, start, end)
            assert answer.code == ResponseCode.SUCCESS, answer
            found.append(answer.opaque)
            start = end
        del data[:start]
    return found


def test_a_producer_that_does_not_read(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(
        "MQLAKE_NO_NATIVE", "1"
    )  # what is compiled needs more memory than all that is looked for
    requests = [
        RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("Flood"), b"flood" * 20)
        for _ in range(SENDS)
    ]
    frames = b"".join(map(encode_frame, requests))

    async def main() -> None:
        async with RemotingClient() as client:
            neighbour = Neighbour(broker, client)
            # a topic's first sends wait until the name server knows it, and would be answered behind others
            await neighbour.ask(RequestCode.SEND_MESSAGE_V2, send_header("Flood"))
            for _ in range(STILL):
                await neighbour.send_and_pull()
            before = anonymous(broker)
            sending.start()
            stored, still = 1, 0
            while still < STILL:
                await neighbour.send_and_pull()
                now = await neighbour.stored("Flood")
                stored, still = now, still + 1 if 1 < now == stored else 0
            growth = anonymous(broker) - before
            assert stored < SENDS
            assert growth < GROWTH_MAX, f"{growth} bytes"

    # messages wait for their producer's turn here, and for a busy machine
    settings = {"waitTimeMillsInSendQueue": 60_000}
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(MqlakeBroker(tmp_path, settings))
        flood = stack.enter_context(socket.socket())
        # answers wait in the broker, not in the system
        flood.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = broker.address.partition(":")
        flood.connect((host, int(port)))
        sending = threading.Thread(target=flood.sendall, args=(frames,), daemon=True)
        run(main())
        # who reads again is read from again, and nothing is lost
        assert opaques_of_answers(flood, SENDS) == [request.opaque for request in requests]
        sending.join()
