"""A pop consumer of a broker in the test's own loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mqlake.formats.record import decode_record
from mqlake.message import (
    PROPERTY_POP_CK,
    MessageExt,
    ReceiptHandle,
    parse_msg_offset_info,
    parse_start_offset_info,
    real_topic,
    retry_flag,
)
from mqlake.remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from tests.broker.live import now_ms

SMALL_TIMES = {"reviveInterval": "20", "flushConsumerOffsetInterval": "60000", "timerPrecisionMs": "100"}


@dataclass
class Popped:
    """A message that was popped, and what is needed to acknowledge it."""

    message: MessageExt
    handle: ReceiptHandle
    topic: str
    """The topic that holds it."""

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def offset(self) -> int:
        return self.handle.queue_offset


@dataclass
class Answer:
    code: int
    remark: str | None = None
    header: PopMessageResponseHeader | None = None
    messages: list[Popped] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [popped.body for popped in self.messages]


def records(body: bytes) -> list[MessageExt]:
    found, start = [], 0
    while start < len(body):
        size = int.from_bytes(body[start : start + 4], "big")
        found.append(decode_record(body, start))
        start += size
    return found


def pop_header(topic: str, group: str = "G", **fields: object) -> PopMessageRequestHeader:
    values = {
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": now_ms(),
        "init_mode": 0,
        **fields,
    }
    return PopMessageRequestHeader(consumer_group=group, topic=topic, **values)


def as_answer(response: RemotingCommand, topic: str, group: str, broker_name: str) -> Answer:
    answer = Answer(response.code, response.remark)
    if response.code != ResponseCode.SUCCESS:
        return answer
    answer.header = header = response.decode_header(PopMessageResponseHeader)
    starts = parse_start_offset_info(header.start_offset_info)
    offsets = parse_msg_offset_info(header.msg_offset_info)
    messages = records(response.body_bytes())
    # as clients do: records of a retry topic bring their handle, the others are found by their offset
    for message in messages:
        brought = message.properties.get(PROPERTY_POP_CK)
        if brought is not None and message.topic == topic:
            handle = ReceiptHandle.parse(brought)
        else:
            flag = retry_flag(message.topic)
            key = flag, message.queue_id
            assert message.queue_offset in offsets[key]
            handle = ReceiptHandle(
                starts[key],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                broker_name,
                message.queue_id,
                message.queue_offset,
            )
        answer.messages.append(Popped(message, handle, real_topic(topic, group, handle.flag)))
    assert len(messages) == sum(map(len, offsets.values()))
    return answer


class Asks(Protocol):
    """A client of one broker."""

    async def ask(
        self, code: int, header: CommandHeader | None = None, body: bytes | None = None
    ) -> RemotingCommand: ...


class Popper:
    def __init__(self, peer: Asks, topic: str = "T", group: str = "G", broker_name: str = "broker-a") -> None:
        self.peer = peer
        self.broker_name = broker_name
        self.topic = topic
        self.group = group

    async def pop(self, **fields: object) -> Answer:
        header = pop_header(self.topic, self.group, **fields)
        response = await self.peer.ask(RequestCode.POP_MESSAGE, header)
        return as_answer(response, self.topic, self.group, self.broker_name)

    async def ack(self, popped: Popped, **fields: object) -> RemotingCommand:
        values = {
            "topic": popped.topic,
            "queue_id": popped.handle.queue_id,
            "extra_info": popped.handle.text,
            "offset": popped.offset,
            **fields,
        }
        header = AckMessageRequestHeader(consumer_group=self.group, **values)
        return await self.peer.ask(RequestCode.ACK_MESSAGE, header)

    async def batch_ack(self, messages: list[Popped]) -> RemotingCommand:
        acks: dict[tuple[object, ...], list[Popped]] = {}
        for popped in messages:
            acks.setdefault((popped.topic, *popped.handle[:7]), []).append(popped)
        body = BatchAckMessageRequestBody(
            broker_name=self.broker_name,
            acks=[
                BatchAck(
                    consumer_group=self.group,
                    topic=self.topic,
                    retry=str(of[0].handle.flag),
                    start_offset=of[0].handle.start_offset,
                    queue_id=of[0].handle.queue_id,
                    revive_queue_id=of[0].handle.revive_queue_id,
                    pop_time=of[0].handle.pop_time,
                    invisible_time=of[0].handle.invisible_time,
                    bit_set=encode_bit_set(of[0].handle.start_offset, [one.offset for one in of]),
                )
                for of in acks.values()
            ],
        )
        return await self.peer.ask(RequestCode.BATCH_ACK_MESSAGE, None, body.to_json())

    async def change(self, popped: Popped, invisible_time: int, **fields: object) -> RemotingCommand:
        values = {
            "topic": popped.topic,
            "queue_id": popped.handle.queue_id,
            "extra_info": popped.handle.text,
            "offset": popped.offset,
            "invisible_time": invisible_time,
            **fields,
        }
        header = ChangeInvisibleTimeRequestHeader(consumer_group=self.group, **values)
        return await self.peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)

    async def changed(self, popped: Popped, invisible_time: int, **fields: object) -> Popped:
        """The message with the handle that it has after the change."""
        response = await self.change(popped, invisible_time, **fields)
        assert response.code == ResponseCode.SUCCESS, response
        header = response.decode_header(ChangeInvisibleTimeResponseHeader)
        handle = popped.handle._replace(
            start_offset=popped.handle.start_offset if popped.handle.is_order else popped.offset,
            pop_time=header.pop_time,
            invisible_time=header.invisible_time,
            revive_queue_id=header.revive_qid,
        )
        return Popped(popped.message, handle, popped.topic)

    async def notification(self, **fields: object) -> RemotingCommand:
        values = {"queue_id": -1, "poll_time": 0, "born_time": now_ms(), **fields}
        header = NotificationRequestHeader(consumer_group=self.group, topic=self.topic, **values)
        return await self.peer.ask(RequestCode.NOTIFICATION, header)
