"""Passes on what a broker asks a client, through the client's telemetry stream.

39  CHECK_TRANSACTION_STATE     recover_orphaned_transaction_command; the answer is an EndTransaction
307 GET_CONSUMER_RUNNING_INFO   print_thread_stack_trace_command, if stacks are wanted
309 CONSUME_MESSAGE_DIRECTLY    verify_message_command
"""

from __future__ import annotations

import time
from typing import Protocol

from mqlake.client.records import decode_messages
from mqlake.errors import MqlakeError
from mqlake.proxy.messages import sent_message
from mqlake.proxy.transaction_ids import orphan
from mqlake.proxy.v2.definition_pb2 import Code, Resource, Settings
from mqlake.proxy.v2.service_pb2 import (
    PrintThreadStackTraceCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from mqlake.remoting.bodies.client import CMResult, ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import GetConsumerRunningInfoRequestHeader

_RESULTS = {
    Code.OK: CMResult.CR_SUCCESS,
    Code.FAILED_TO_CONSUME_MESSAGE: CMResult.CR_LATER,
    Code.MESSAGE_CORRUPTED: CMResult.CR_RETURN_NULL,
}


class CommandFailure(MqlakeError):  # noqa: N818 - an outcome, which the broker is told
    """The client did not answer."""


class Commanded(Protocol):
    """The part of a client that is needed here."""

    client_id: str
    settings: Settings | None

    async def command(self, command: TelemetryCommand) -> bool: ...

    async def ask(self, command: TelemetryCommand) -> TelemetryCommand: ...


async def answer_to_broker(client: Commanded, request: RemotingCommand) -> RemotingCommand | None:
    """Handles a broker's request to a client; None for one that is not answered."""
    try:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            if (found := orphan(request)) is not None:
                await client.command(TelemetryCommand(recover_orphaned_transaction_command=found))
            return None
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return await _running_info(client, request)
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return await _consume_directly(client, request)
    except MqlakeError as error:
        return RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, str(error))
    if request.is_oneway or request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        return None
    text = f"a gRPC client does not answer request {request.code}"
    return RemotingCommand.create_response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)


async def _running_info(client: Commanded, request: RemotingCommand) -> RemotingCommand:
    header = request.decode_header(GetConsumerRunningInfoRequestHeader)
    info = ConsumerRunningInfo(properties={"PROP_CLIENT_VERSION": _version(client)})
    if header.jstack_enable:
        answer = await client.ask(
            TelemetryCommand(print_thread_stack_trace_command=PrintThreadStackTraceCommand())
        )
        info.jstack = answer.thread_stack_trace.thread_stack_trace
    return RemotingCommand.create_response(body=info.to_json())


def _version(client: Commanded) -> str:
    return client.settings.user_agent.version if client.settings is not None else ""


async def _consume_directly(client: Commanded, request: RemotingCommand) -> RemotingCommand:
    began = time.monotonic()
    messages = decode_messages(request.body_bytes(), "")
    if len(messages) != 1:
        return RemotingCommand.create_response(
            ResponseCode.SYSTEM_ERROR, f"{len(messages)} messages instead of one"
        )
    message = messages[0]
    sent = sent_message(message, Resource(name=message.topic), attempt=message.reconsume_times + 1)
    answer = await client.ask(TelemetryCommand(verify_message_command=VerifyMessageCommand(message=sent)))
    result = ConsumeMessageDirectlyResult(
        consume_result=_RESULTS.get(answer.status.code, CMResult.CR_THROW_EXCEPTION),
        remark=answer.status.message,
        spent_time_mills=int((time.monotonic() - began) * 1000),
    )
    return RemotingCommand.create_response(body=result.to_json())
