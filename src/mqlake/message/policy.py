"""Says what a property or a bit of SYSFLAG makes a broker do: a row for each, from which all checks are made.

The slow checks of a send and of a put, and what the fast paths refuse, are the rows that say so. A fast path takes what
no row speaks against: a name of an application's own has no row and is stored as it is, but each name of RocketMQ's has
one, PLAIN if it is stored as it is, too. A test fails at a PROPERTY_ or a flag of `message` without a row. Of SYSFLAG a
fast path takes the bits that a row allows, and no other.

    row ─┬─▶ names_with(PUT)            CommitLog settles them, native puts refuse them
         ├─▶ names_with(SEND | …)       FastSend refuses them (as hashes)
         └─▶ bits_with(PUT), …          masks of native code (tools/native_constants.py)
"""

from __future__ import annotations

import enum

from mqlake.message import properties as names
from mqlake.message.flags import MessageSysFlag


class Policy(enum.Flag):
    """The flags of a row; several may hold."""

    PLAIN = 0
    """Stored as it came, read by clients or services later."""
    PUT = enum.auto()
    """The log has something to settle before it stores the message: native code leaves its put to CommitLog."""
    SEND = enum.auto()
    """A broker checks, removes or sets it: a send with it takes the slow path."""
    HALF = enum.auto()
    """A broker sets it in a half message, or reads it there: a half message with it takes the slow path."""
    ONLY_HALF = enum.auto()
    """Makes a half message: a send that is none takes the slow path with it."""
    TIMER = enum.auto()
    """One of the three that say when a message is due."""
    LIGHT_QUEUE = enum.auto()
    """For queues that are not there: refused, since such a message would reach nobody."""
    NO_PRIORITY = enum.auto()
    """With it a message has no priority."""


PLAIN, PUT, SEND, HALF = Policy.PLAIN, Policy.PUT, Policy.SEND, Policy.HALF
TIMER = Policy.TIMER | PUT | SEND | Policy.NO_PRIORITY
LIGHT_QUEUE = Policy.LIGHT_QUEUE | SEND

PROPERTIES: dict[str, Policy] = {
    names.PROPERTY_KEYS: PLAIN,
    names.PROPERTY_TAGS: PLAIN,
    names.PROPERTY_WAIT_STORE_MSG_OK: PLAIN,  # whether the answer waits; of a fast send it can only be true
    names.PROPERTY_DELAY_TIME_LEVEL: PUT | SEND | Policy.NO_PRIORITY,
    names.PROPERTY_RETRY_TOPIC: PLAIN,
    names.PROPERTY_REAL_TOPIC: HALF,
    names.PROPERTY_REAL_QUEUE_ID: HALF,
    names.PROPERTY_TRANSACTION_PREPARED: Policy.ONLY_HALF | Policy.NO_PRIORITY,
    names.PROPERTY_PRODUCER_GROUP: PLAIN,  # a half message needs one
    names.PROPERTY_MIN_OFFSET: PLAIN,
    names.PROPERTY_MAX_OFFSET: PLAIN,
    names.PROPERTY_BUYER_ID: PLAIN,
    names.PROPERTY_ORIGIN_MESSAGE_ID: PLAIN,
    names.PROPERTY_TRANSFER_FLAG: PLAIN,
    names.PROPERTY_CORRECTION_FLAG: PLAIN,
    names.PROPERTY_MQ2_FLAG: PLAIN,
    names.PROPERTY_RECONSUME_TIME: PLAIN,
    names.PROPERTY_MSG_REGION: SEND,
    names.PROPERTY_TRACE_SWITCH: SEND,
    names.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: PLAIN,  # given where it is missing; in the answer
    names.PROPERTY_EXTEND_UNIQ_INFO: PLAIN,
    names.PROPERTY_MAX_RECONSUME_TIMES: PLAIN,
    names.PROPERTY_CONSUME_START_TIMESTAMP: PLAIN,
    names.PROPERTY_INNER_NUM: PUT | SEND,
    names.PROPERTY_INNER_BASE: SEND,
    names.PROPERTY_DUP_INFO: PLAIN,
    names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: HALF,
    names.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: HALF,
    names.PROPERTY_TRANSACTION_ID: HALF,
    names.PROPERTY_TRANSACTION_CHECK_TIMES: HALF,
    names.PROPERTY_INSTANCE_ID: PLAIN,
    names.PROPERTY_CORRELATION_ID: PLAIN,
    names.PROPERTY_MESSAGE_REPLY_TO_CLIENT: PLAIN,
    names.PROPERTY_MESSAGE_TTL: PLAIN,
    names.PROPERTY_REPLY_MESSAGE_ARRIVE_TIME: PLAIN,
    names.PROPERTY_PUSH_REPLY_TIME: PLAIN,
    names.PROPERTY_CLUSTER: SEND,
    names.PROPERTY_MESSAGE_TYPE: PLAIN,
    names.PROPERTY_POP_CK: SEND,
    names.PROPERTY_POP_CK_OFFSET: PLAIN,
    names.PROPERTY_FIRST_POP_TIME: PLAIN,
    names.PROPERTY_ORIGIN_GROUP: PLAIN,
    names.PROPERTY_SHARDING_KEY: Policy.NO_PRIORITY,
    names.PROPERTY_FORWARD_QUEUE_ID: PLAIN,
    names.PROPERTY_INNER_MULTI_DISPATCH: LIGHT_QUEUE,
    names.PROPERTY_INNER_MULTI_QUEUE_OFFSET: PLAIN,
    names.PROPERTY_LITE_TOPIC: LIGHT_QUEUE,
    names.PROPERTY_TRACE_CONTEXT: PLAIN,
    names.PROPERTY_TIMER_DELAY_SEC: TIMER,
    names.PROPERTY_TIMER_DELAY_MS: TIMER,
    names.PROPERTY_TIMER_DELIVER_MS: TIMER,
    names.PROPERTY_TIMER_ENQUEUE_MS: PLAIN,
    names.PROPERTY_TIMER_DEQUEUE_MS: PLAIN,
    names.PROPERTY_TIMER_ROLL_TIMES: PLAIN,
    names.PROPERTY_TIMER_OUT_MS: PLAIN,
    names.PROPERTY_TIMER_DEL_UNIQKEY: PLAIN,
    names.PROPERTY_TIMER_DELAY_LEVEL: PLAIN,
    names.PROPERTY_PRIORITY: PLAIN,  # chooses a queue only of a topic of such messages, which no fast send has
    names.PROPERTY_BORN_HOST: PLAIN,
    names.PROPERTY_BORN_TIMESTAMP: PLAIN,
    names.PROPERTY_DLQ_ORIGIN_TOPIC: PLAIN,
    names.PROPERTY_DLQ_ORIGIN_MESSAGE_ID: PLAIN,
    names.PROPERTY_CRC32: PUT | SEND,
}
"""The policy of each property that RocketMQ names."""

SYS_FLAGS: dict[int, Policy] = {
    MessageSysFlag.COMPRESSED_FLAG: PLAIN,
    MessageSysFlag.MULTI_TAGS_FLAG: PLAIN,
    MessageSysFlag.TRANSACTION_PREPARED_TYPE: PUT | Policy.ONLY_HALF,  # is in no queue of consumers
    MessageSysFlag.TRANSACTION_COMMIT_TYPE: SEND,
    MessageSysFlag.BORNHOST_V6_FLAG: PUT | SEND,
    MessageSysFlag.STOREHOSTADDRESS_V6_FLAG: PUT | SEND,
    MessageSysFlag.NEED_UNWRAP_FLAG: SEND,
    MessageSysFlag.INNER_BATCH_FLAG: PUT | SEND,
    MessageSysFlag.COMPRESSION_LZ4_TYPE: PLAIN,
    MessageSysFlag.COMPRESSION_ZSTD_TYPE: PLAIN,
}
"""The policy of each bit of SYSFLAG that RocketMQ names."""


def names_with(policy: Policy) -> tuple[str, ...]:
    """The properties whose row says any of it."""
    return tuple(name for name, row in PROPERTIES.items() if row & policy)


def bits_without(policy: Policy) -> int:
    """The bits of SYSFLAG whose row says nothing of it: all others are not allowed."""
    return sum(bit for bit, row in SYS_FLAGS.items() if not row & policy)
