"""Sends as RocketMQ's producers make them, from a plain socket: what a broker takes when no client is in its way.

A ring of frames is made before and sent again and again; an answer is looked at no closer than for its code.
"""

from __future__ import annotations

from bench.raw_pull import exchange
from mqlake.formats.batch import encode_messages
from mqlake.message import Message
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import LanguageCode, RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import SendMessageRequestHeaderV2

TOPIC = "RawSend"
QUEUES = 8
BATCH = 32
RING = 1024
BODY = bytes(range(128))
DONE = b'"code":0,'


class RawSend:
    """`requests` sends of `batch` messages of 128 B, `in_flight` of them on one connection."""

    def __init__(self, requests: int, batch: int, in_flight: int) -> None:
        ring = [_frame(number, batch) for number in range(RING // batch)]
        self._requests = (ring * (requests // len(ring) + 1))[:requests]
        self._in_flight = in_flight
        self.messages = requests * batch

    def round(self, address: str) -> float:
        """Seconds for all of them. RuntimeError when one is refused."""
        host, _, port = address.rpartition(":")
        return exchange((host, int(port)), self._requests, self._in_flight, _check)


def _check(frame: memoryview) -> None:
    if DONE not in bytes(frame):
        raise RuntimeError(f"a send was refused: {bytes(frame)!r}")


def _frame(number: int, batch: int) -> bytes:
    def text(key: str) -> str:
        return (
            f"KEYS\x01order-{key}\x02TAGS\x01TagA\x02UNIQ_KEY\x017F0000010001{key:0>16}\x02WAIT\x01true\x02"
        )

    header = SendMessageRequestHeaderV2(
        producer_group="bench",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=text(str(number)),
        reconsume_times=0,
        unit_mode=False,
        batch=batch > 1,
    )
    body = BODY
    if batch > 1:
        keys = [f"{number}-{each}" for each in range(batch)]
        body = encode_messages(
            [Message(TOPIC, BODY, properties={"KEYS": key, "UNIQ_KEY": f"{key:0>28}"}) for key in keys]
        )
    code = RequestCode.SEND_BATCH_MESSAGE if batch > 1 else RequestCode.SEND_MESSAGE_V2
    return encode_frame(
        RemotingCommand(
            code, language=LanguageCode.JAVA, opaque=number, ext_fields=header.encode(), body=body
        )
    )
