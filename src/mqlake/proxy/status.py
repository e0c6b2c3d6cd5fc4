"""Statuses: what an RPC answers, and which one stands for which failure.

Every result, a failure as well, is a Status in the RPC's own answer; the gRPC status itself is OK.
"""

from __future__ import annotations

import logging

from mqlake.errors import MqlakeError, RemotingTimeoutError, RemotingTooMuchError, ResponseError
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

OK = Status(code=Code.OK, message="OK")

_OF_RESPONSE = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
}


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
    if isinstance(error, RemotingTimeoutError):
        return Status(code=Code.PROXY_TIMEOUT, message=str(error))
    if isinstance(error, RemotingTooMuchError):
        return Status(code=Code.TOO_MANY_REQUESTS, message=str(error))
    if isinstance(error, MqlakeError | OSError):
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=str(error))
    logger.error("a gRPC request failed", exc_info=error)
    text = f"{type(error).__name__}: {error}; the server's log has the details"
    return Status(code=Code.INTERNAL_SERVER_ERROR, message=text)


def common_status(statuses: list[Status]) -> Status:
    """The status of several results: theirs if they agree, else MULTIPLE_RESULTS."""
    if not statuses or all(status.code == statuses[0].code for status in statuses):
        return statuses[0] if statuses else OK
    return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")
