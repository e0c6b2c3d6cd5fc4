"""Statuses: what an RPC answers, and which one stands for which failure.

Every result, a failure as well, is a Status in the RPC's own answer; the gRPC status itself is OK.
"""

from __future__ import annotations

import logging

from mqlake.errors import (
    FilterExpressionError,
    HeaderError,
    IllegalTopicError,
    MessageError,
    MessageTooLargeError,
    MqlakeError,
    PropertiesTooLargeError,
    RemotingTimeoutError,
    RemotingTooMuchError,
    ResponseError,
    TimerMessageError,
    TopicNotFoundError,
)
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

OK = Status(code=Code.OK, message="OK")

_OF_RESPONSE = {
    ResponseCode.SUCCESS: Code.OK,
    # Mended by waiting or by another broker: clients try these again.
    ResponseCode.SYSTEM_ERROR: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.TRANSACTION_FAILED: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.TRANSACTION_STATE_UNKNOW: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.PULL_RETRY_IMMEDIATELY: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.FILTER_DATA_NOT_EXIST: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.FILTER_DATA_NOT_LATEST: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.CONSUMER_NOT_ONLINE: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.CONSUME_MSG_TIMEOUT: Code.PROXY_TIMEOUT,
    ResponseCode.BROKER_NOT_EXIST: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.NOT_LEADER_FOR_QUEUE: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.GO_AWAY: Code.INTERNAL_SERVER_ERROR,
    # Nothing is there, or not yet.
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.NO_MESSAGE: Code.MESSAGE_NOT_FOUND,
    ResponseCode.QUERY_NOT_FOUND: Code.NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: Code.ILLEGAL_OFFSET,
    # No retry mends these.
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.VERSION_NOT_SUPPORTED: Code.VERSION_UNSUPPORTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.TOPIC_EXIST_ALREADY: Code.PRECONDITION_FAILED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.TRANSACTION_SHOULD_COMMIT: Code.PRECONDITION_FAILED,
    ResponseCode.TRANSACTION_SHOULD_ROLLBACK: Code.PRECONDITION_FAILED,
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: Code.INVALID_TRANSACTION_ID,
    ResponseCode.NO_BUYER_ID: Code.BAD_REQUEST,
    ResponseCode.NOT_IN_CURRENT_UNIT: Code.BAD_REQUEST,
    ResponseCode.BROADCAST_CONSUMPTION: Code.PRECONDITION_FAILED,
    ResponseCode.ILLEGAL_OPERATION: Code.PRECONDITION_FAILED,
}

# Errors that a broker in this process raises before there is an answer; the first that fits counts.
_OF_ERROR = (
    (IllegalTopicError, Code.ILLEGAL_TOPIC),
    (MessageTooLargeError, Code.MESSAGE_BODY_TOO_LARGE),
    (PropertiesTooLargeError, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (TimerMessageError, Code.ILLEGAL_DELIVERY_TIME),
    (MessageError, Code.BAD_REQUEST),
    (FilterExpressionError, Code.ILLEGAL_FILTER_EXPRESSION),
    (HeaderError, Code.BAD_REQUEST),
    (TopicNotFoundError, Code.TOPIC_NOT_FOUND),
    (RemotingTimeoutError, Code.PROXY_TIMEOUT),
    (RemotingTooMuchError, Code.TOO_MANY_REQUESTS),
    (MqlakeError, Code.INTERNAL_SERVER_ERROR),
    (OSError, Code.INTERNAL_SERVER_ERROR),
)


class StatusError(MqlakeError):
    """An RPC ends with this status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> Status:
        return Status(code=self.code, message=str(self))  # type: ignore[arg-type]


class UnknownBrokerError(StatusError):
    """A request names a broker that cannot be reached from here."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.BAD_REQUEST, message)


def status_of_response(code: int, remark: str | None) -> Status:
    """The status for a broker's answer."""
    if code == ResponseCode.SUCCESS:
        return OK
    found = _OF_RESPONSE.get(code, Code.INTERNAL_SERVER_ERROR)  # type: ignore[call-overload]
    return Status(code=found, message=remark or f"the broker answered {code}")


def status_of(error: Exception) -> Status:
    """The status for an exception. One that nobody expects is logged with its traceback."""
    if isinstance(error, StatusError):
        return error.status
    if isinstance(error, ResponseError):
        return status_of_response(error.code, error.remark)
    for error_class, code in _OF_ERROR:
        if isinstance(error, error_class):
            return Status(code=code, message=str(error))
    logger.error("a gRPC request failed", exc_info=error)
    text = f"{type(error).__name__}: {error}; the server's log has the details"
    return Status(code=Code.INTERNAL_SERVER_ERROR, message=text)


def common_status(statuses: list[Status]) -> Status:
    """The status of several results: theirs if they agree, else MULTIPLE_RESULTS."""
    if not statuses or all(status.code == statuses[0].code for status in statuses):
        return statuses[0] if statuses else OK
    return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")
