"""Constants of requests for the kernels of sends and pulls: codes, flags and fields, as requests.pxd has them."""

from __future__ import annotations

from mqlake.message import MessageSysFlag
from mqlake.message.policy import Policy, bits_without
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import ONEWAY_FLAG as _ONEWAY_FLAG

SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH_MESSAGE = int(RequestCode.SEND_BATCH_MESSAGE)
END_TRANSACTION = int(RequestCode.END_TRANSACTION)
PULL_MESSAGE = int(RequestCode.PULL_MESSAGE)
LITE_PULL_MESSAGE = int(RequestCode.LITE_PULL_MESSAGE)
ONEWAY_FLAG = int(_ONEWAY_FLAG)
TRANSACTION_BITS = int(MessageSysFlag.TRANSACTION_ROLLBACK_TYPE)
TRANSACTION_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
TRANSACTION_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT_TYPE)
FAST_SEND_FLAGS = bits_without(Policy.SEND)
"""Bits of a request's sysFlag that a send of the fast path may have; fast_send refuses to know a topic that would have
any more set."""

A, B, C, D, E, F, G, H, I, J, K, L, M = range(13)  # noqa: E741 - the fields' names on the wire
TABLE_OFFSET, LOG_OFFSET, COMMIT_OR_ROLLBACK, _, MSG_ID = range(13, 18)
