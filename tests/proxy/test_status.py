"""Statuses: which failure is answered as what."""

from __future__ import annotations

import pytest

from mqlake.errors import ConfigError, RemotingConnectError, RemotingTimeoutError, ResponseError
from mqlake.proxy.status import OK, StatusError, common_status, status_of, status_of_response
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
        (4711, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_answers_of_brokers(response: int, code: int):
    assert status_of_response(response, "why").code == code
    assert status_of(ResponseError(response, "why")).code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(Code.ILLEGAL_TOPIC, "bad"), Code.ILLEGAL_TOPIC),
        (RemotingTimeoutError("b:1", 3), Code.PROXY_TIMEOUT),
        (RemotingConnectError("b:1", "refused"), Code.INTERNAL_SERVER_ERROR),
        (ConfigError("x"), Code.INTERNAL_SERVER_ERROR),
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
