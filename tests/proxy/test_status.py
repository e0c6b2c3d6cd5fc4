"""Statuses: which failure is answered as what."""

from __future__ import annotations

import pytest

from mqlake.errors import (
    ConfigError,
    FilterExpressionError,
    HeaderError,
    IllegalTopicError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    RemotingConnectError,
    RemotingTimeoutError,
    ResponseError,
    TimerMessageError,
    TopicNotFoundError,
    WrongPartitionError,
)
from mqlake.proxy.status import _OF_RESPONSE, OK, StatusError, common_status, status_of, status_of_response
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.remoting.codes import ResponseCode


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (ResponseCode.SUCCESS, Code.OK),
        (ResponseCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, Code.NOT_IMPLEMENTED),
        (ResponseCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR),
        (ResponseCode.MESSAGE_ILLEGAL, Code.BAD_REQUEST),
        (ResponseCode.INVALID_PARAMETER, Code.BAD_REQUEST),
        (ResponseCode.ILLEGAL_OPERATION, Code.PRECONDITION_FAILED),
        (ResponseCode.NO_MESSAGE, Code.MESSAGE_NOT_FOUND),
        (ResponseCode.PULL_OFFSET_MOVED, Code.ILLEGAL_OFFSET),
        (ResponseCode.VERSION_NOT_SUPPORTED, Code.VERSION_UNSUPPORTED),
        (4711, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_answers_of_brokers(response: int, code: int):
    assert status_of_response(response, "why").code == code
    assert status_of(ResponseError(response, "why")).code == code


@pytest.mark.parametrize("response", ResponseCode, ids=lambda response: response.name)
def test_every_response_code_has_its_status(response: ResponseCode):
    """Without a row a refusal that no retry mends would be INTERNAL_SERVER_ERROR, which gRPC clients try again."""
    assert response in _OF_RESPONSE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(Code.ILLEGAL_TOPIC, "bad"), Code.ILLEGAL_TOPIC),
        (RemotingTimeoutError("b:1", 3), Code.PROXY_TIMEOUT),
        (RemotingConnectError("b:1", "refused"), Code.INTERNAL_SERVER_ERROR),
        (ConfigError("x"), Code.INTERNAL_SERVER_ERROR),
        (IllegalTopicError("x"), Code.ILLEGAL_TOPIC),
        (MessageTooLargeError("x"), Code.MESSAGE_BODY_TOO_LARGE),
        (PropertiesTooLargeError("x"), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (TimerMessageError("ILLEGAL", "x"), Code.ILLEGAL_DELIVERY_TIME),
        (WrongPartitionError("x"), Code.BAD_REQUEST),
        (FilterExpressionError("x"), Code.ILLEGAL_FILTER_EXPRESSION),
        (HeaderError("x"), Code.BAD_REQUEST),
        (TopicNotFoundError("T", "x"), Code.TOPIC_NOT_FOUND),
    ],
)
def test_failures(error: Exception, code: int):
    assert status_of(error) == Status(code=code, message=str(error))


def test_what_nobody_expects_is_logged(caplog: pytest.LogCaptureFixture):
    status = status_of(ZeroDivisionError("oops"))
    assert status.code == Code.INTERNAL_SERVER_ERROR
    assert "ZeroDivisionError: oops" in status.message
    assert caplog.records[0].exc_info


def test_several_results():
    bad = Status(code=Code.INVALID_RECEIPT_HANDLE)
    assert common_status([]).code == Code.OK
    assert common_status([OK, OK]).code == Code.OK
    assert common_status([bad, bad]).code == Code.INVALID_RECEIPT_HANDLE
    assert common_status([OK, bad]).code == Code.MULTIPLE_RESULTS
