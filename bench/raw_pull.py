"""Pulls as RocketMQ's consumers make them, from a plain socket: what a broker takes when no client is in its way.

Requests are made before, and an answer is looked at no closer than to see that it is the right one.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import LanguageCode, RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)

MESSAGES_A_PULL = 32
SUBSCRIPTION_FLAG = 0x4
BUFFER_SIZE = 1 << 20


def exchange(
    address: tuple[str, int], requests: Sequence[bytes], in_flight: int, check: Callable[[memoryview], None]
) -> float:
    """Seconds to get all requests answered on one connection. `check` gets the frame of each answer."""
    answered = 0
    buffer, held = memoryview(bytearray(BUFFER_SIZE)), 0
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        peer.sendall(b"".join(requests[:in_flight]))
        while answered < len(requests):
            count = peer.recv_into(buffer[held:])
            if not count:
                raise RuntimeError("the broker closed the connection")
            start, held, before = 0, held + count, answered
            while end := frame_end(buffer, start, held):
                check(buffer[start:end])
                answered, start = answered + 1, end
            buffer[: held - start] = buffer[start:held]
            held -= start
            if answered > before:
                peer.sendall(b"".join(requests[before + in_flight : answered + in_flight]))
        return time.perf_counter() - began


class RawPull:
    """Every message of a topic's queues, with `in_flight` pulls on one connection."""

    def __init__(self, address: str, topic: str, queues: int, in_flight: int, group: str = "GID_raw") -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._in_flight = in_flight
        ends = asyncio.run(_ends(address, topic, queues))
        self._requests = [
            encode_frame(_pull(group, topic, queue_id, offset, opaque))
            for opaque, (queue_id, offset) in enumerate(_places(ends))
        ]
        self._following = [
            min(offset + MESSAGES_A_PULL, ends[queue_id]) for queue_id, offset in _places(ends)
        ]
        self.messages = sum(ends)

    def round(self) -> float:
        """Seconds for all of it. RuntimeError when an answer is not what was asked for."""
        return exchange((self._host, self._port), self._requests, self._in_flight, self._check)

    def _check(self, frame: memoryview) -> None:
        answer = decode_frame(frame, 0, len(frame))
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"pull {answer.opaque}: {answer.code} {answer.remark}")
        header = answer.decode_header(PullMessageResponseHeader)
        if header.next_begin_offset != self._following[answer.opaque]:
            raise RuntimeError(f"pull {answer.opaque} ends at {header.next_begin_offset}")


def _places(ends: list[int]) -> Iterator[tuple[int, int]]:
    """(queue, offset) of each pull, the queues in turn."""
    for offset in range(0, max(ends), MESSAGES_A_PULL):
        for queue_id, end in enumerate(ends):
            if offset < end:
                yield queue_id, offset


async def _ends(address: str, topic: str, queues: int) -> list[int]:
    async with RemotingClient() as client:
        ends = []
        for queue_id in range(queues):
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
            request = RemotingCommand.create_request(RequestCode.GET_MAX_OFFSET, header)
            answer = await client.call(address, request)
            ends.append(answer.decode_header(GetMaxOffsetResponseHeader).offset)
        return ends


def _pull(group: str, topic: str, queue_id: int, offset: int, opaque: int) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=MESSAGES_A_PULL,
        sys_flag=SUBSCRIPTION_FLAG,
        commit_offset=0,
        suspend_timeout_millis=20_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
        max_msg_bytes=2**31 - 1,
    )
    return RemotingCommand(
        RequestCode.PULL_MESSAGE, language=LanguageCode.JAVA, opaque=opaque, ext_fields=header.encode()
    )
