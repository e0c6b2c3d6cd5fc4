"""EndTransaction: commits a half message, or rolls it back."""

from __future__ import annotations

from mqlake.message import MessageSysFlag
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext
from mqlake.proxy.request import Request
from mqlake.proxy.status import StatusError, UnknownBrokerError, status_of_response
from mqlake.proxy.transaction_ids import TransactionId
from mqlake.proxy.v2.definition_pb2 import Code, TransactionResolution, TransactionSource
from mqlake.proxy.v2.service_pb2 import EndTransactionRequest, EndTransactionResponse
from mqlake.proxy.values import topic_name
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers.produce import EndTransactionRequestHeader

_RESOLUTIONS = {
    TransactionResolution.COMMIT: MessageSysFlag.TRANSACTION_COMMIT_TYPE,
    TransactionResolution.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK_TYPE,
}


async def end_transaction(
    context: RequestContext, client: Client, request: EndTransactionRequest
) -> EndTransactionResponse:
    topic = topic_name(request.topic)
    place = TransactionId.parse(request.transaction_id)
    header = EndTransactionRequestHeader(
        topic=topic,
        producer_group=topic,
        tran_state_table_offset=place.offset,
        commit_log_offset=place.physical_offset,
        commit_or_rollback=_RESOLUTIONS.get(request.resolution, MessageSysFlag.TRANSACTION_NOT_TYPE),
        from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
        msg_id=request.message_id or place.message_id,
        transaction_id=place.message_id,
        bname=place.broker_name,
    )
    command = Request(RequestCode.END_TRANSACTION, header)
    try:
        answer = await client.channel.invoke(place.broker_name, command, context.remaining_s())
    except UnknownBrokerError as error:
        raise StatusError(Code.INVALID_TRANSACTION_ID, f"transaction id: {error}") from None
    return EndTransactionResponse(status=status_of_response(answer.code, answer.remark))
