"""A broker that answers pops, for tests of what the endpoint makes of them."""

from __future__ import annotations

from mqlake.base.clock import now_ms
from mqlake.formats.record import encode_record
from mqlake.message import crc32, host_bytes, properties_to_bytes
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.values import duration
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageResponseHeader,
)
from tests.proxy.live import resource
from tests.proxy.scripted import ScriptedBackend

INVISIBLE_MS = 30_000


def record(
    offset: int, body: bytes = b"body", *, queue_id: int = 1, times: int = 0, **properties: str
) -> bytes:
    return encode_record(
        body=body,
        body_crc=crc32(body),
        queue_id=queue_id,
        flag=0,
        queue_offset=offset,
        physical_offset=1000 + offset,
        sys_flag=0,
        born_timestamp=1,
        born_host=host_bytes(("10.0.0.1", 1)),
        store_timestamp=2,
        store_host=host_bytes(("10.0.0.2", 2)),
        reconsume_times=times,
        prepared_transaction_offset=0,
        topic=b"T",
        properties=properties_to_bytes({"UNIQ_KEY": f"id-{offset}", **properties}),
    )


def popped(*records: bytes, start: int = 0, counts: str | None = None, revive: int = 2) -> RemotingCommand:
    header = PopMessageResponseHeader(
        pop_time=now_ms(),
        invisible_time=INVISIBLE_MS,
        revive_qid=revive,
        rest_num=0,
        start_offset_info=f"0 1 {start}",
        msg_offset_info=f"0 1 {','.join(str(start + number) for number in range(len(records)))}",
        order_count_info=counts,
    )
    return RemotingCommand.create_response(0, "FOUND", header, b"".join(records))


def changed(command: RemotingCommand) -> RemotingCommand:
    """The answer to a change of the invisible time."""
    wanted = command.decode_header(ChangeInvisibleTimeRequestHeader).invisible_time
    header = ChangeInvisibleTimeResponseHeader(pop_time=now_ms(), invisible_time=wanted, revive_qid=5)
    return RemotingCommand.create_response(header=header)


def popping(*records: bytes, **more: object) -> ScriptedBackend:
    """Answers every pop with these records, and agrees to everything else."""
    backend = ScriptedBackend()
    backend.answers = {
        RequestCode.POP_MESSAGE: lambda _: popped(*records, **more),  # type: ignore[arg-type]
        RequestCode.ACK_MESSAGE: lambda _: RemotingCommand.create_response(),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: changed,
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda _: RemotingCommand.create_response(),
        RequestCode.VIEW_MESSAGE_BY_ID: lambda _: RemotingCommand.create_response(body=record(3)),
    }
    return backend


def receive_request(**more: object) -> v2.ReceiveMessageRequest:
    request = v2.ReceiveMessageRequest(
        group=resource("G"),
        message_queue=definition.MessageQueue(topic=resource("T"), id=-1, broker=definition.Broker(name="b")),
        batch_size=40,
        invisible_duration=duration(INVISIBLE_MS),
    )
    request.MergeFrom(v2.ReceiveMessageRequest(**more))  # type: ignore[arg-type]
    return request
