"""Headers of sending: messages, messages given back, ends of transactions, replies.

`client.produce` fills them in, `broker.requests.send_message` reads them. The usual send never comes here: native code
reads it from the frame (`broker.fast.fast_send`).
"""

from __future__ import annotations

from dataclasses import field

from mqlake.remoting.headers.codec import CommandHeader, Long
from mqlake.remoting.headers.common import RpcRequestHeader, TopicRequestHeader


class SendMessageRequestHeader(TopicRequestHeader):
    """10, 324. What None stands for is not needed by a message to a topic that exists: RocketMQ reads without it."""

    producer_group: str | None = None
    topic: str
    default_topic: str | None = None
    default_topic_queue_nums: int | None = None
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None


class SendMessageRequestHeaderV2(TopicRequestHeader):
    """310, 320, 325: SendMessageRequestHeader with one letter for a name, which is shorter to send."""

    producer_group: str | None = field(default=None, metadata={"name": "a"})
    topic: str = field(metadata={"name": "b"})
    default_topic: str | None = field(default=None, metadata={"name": "c"})
    default_topic_queue_nums: int | None = field(default=None, metadata={"name": "d"})
    queue_id: int = field(metadata={"name": "e"})
    sys_flag: int = field(metadata={"name": "f"})
    born_timestamp: Long = field(metadata={"name": "g"})
    flag: int = field(metadata={"name": "h"})
    properties: str | None = field(default=None, metadata={"name": "i"})
    reconsume_times: int | None = field(default=None, metadata={"name": "j"})
    unit_mode: bool | None = field(default=None, metadata={"name": "k"})
    max_reconsume_times: int | None = field(default=None, metadata={"name": "l"})
    batch: bool | None = field(default=None, metadata={"name": "m"})
    broker_name: str | None = field(default=None, metadata={"name": "n"})


class SendMessageResponseHeader(CommandHeader):
    msg_id: str
    queue_id: int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class ConsumerSendMsgBackRequestHeader(RpcRequestHeader):
    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


class EndTransactionRequestHeader(RpcRequestHeader):
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class RecallMessageRequestHeader(TopicRequestHeader):
    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponseHeader(CommandHeader):
    msg_id: str


class ReplyMessageRequestHeader(TopicRequestHeader):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT."""

    producer_group: str | None = None
    topic: str
    default_topic: str | None = None
    default_topic_queue_nums: int | None = None
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Long


class CheckTransactionStateRequestHeader(RpcRequestHeader):
    topic: str | None = None
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
