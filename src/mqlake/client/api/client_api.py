"""MQClientAPI: requests of producers and consumers to one broker, one method for each request code.

Method names are those of RocketMQ's MQClientAPIImpl; every method takes the broker's address first. Raises
RemotingConnectError and RemotingTimeoutError if there is no answer, ResponseError for a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqlake.client.api.calls import BrokerCalls
from mqlake.client.results import PullResult, PullStatus
from mqlake.errors import ResponseError
from mqlake.message import MessageExt
from mqlake.remoting.bodies.client import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SubscriptionData,
)
from mqlake.remoting.bodies.pop import BatchAckMessageRequestBody
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import consume
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader

_NOTHING_POPPED = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT}
)
_PULL_STATUS = {status.value: status for status in PullStatus}


class PullSysFlag:
    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    """The broker holds the pull until messages arrive."""
    SUBSCRIPTION = 0x4
    """The request has the filter; otherwise the heartbeat has it."""
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10


class MQClientAPI(BrokerCalls):
    # --- presence

    async def send_heartbeat(self, address: str, heartbeat: HeartbeatData) -> None:
        await self._call(address, RequestCode.HEART_BEAT, body=heartbeat.to_json())

    async def unregister_client(
        self, address: str, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> None:
        header = consume.UnregisterClientRequestHeader(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self._call(address, RequestCode.UNREGISTER_CLIENT, header)

    async def check_client_in_broker(
        self, address: str, group: str, client_id: str, subscription: SubscriptionData
    ) -> None:
        """ResponseError 23 for a condition the broker cannot parse, 1 when it does not filter by properties."""
        body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
        await self._call(address, RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())

    async def get_consumer_id_list_by_group(self, address: str, group: str) -> list[str]:
        header = consume.GetConsumerListByGroupRequestHeader(consumer_group=group)
        found = await self._body(
            GetConsumerListByGroupResponseBody, address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header
        )
        return found.consumer_id_list

    # --- pulling

    async def pull_message(
        self,
        address: str,
        queue: MessageQueue,
        header: consume.PullMessageRequestHeader,
        timeout_s: float,
    ) -> PullResult:
        code = (
            RequestCode.LITE_PULL_MESSAGE
            if header.sys_flag & PullSysFlag.LITE_PULL
            else RequestCode.PULL_MESSAGE
        )
        request = RemotingCommand.create_request(code, header)
        answer = await self._client.invoke(address, request, timeout_s)
        status = _PULL_STATUS.get(answer.code)
        if status is None:
            raise ResponseError(answer.code, answer.remark or "")
        place = answer.decode_header(consume.PullMessageResponseHeader)
        return PullResult(
            status,
            queue,
            place.next_begin_offset,
            place.min_offset,
            place.max_offset,
            place.suggest_which_broker_id,
            place.offset_delta or 0,
            answer.body_bytes() if status is PullStatus.FOUND else b"",
        )

    # --- popping

    async def pop_message(
        self, address: str, header: consume.PopMessageRequestHeader, timeout_s: float
    ) -> RemotingCommand | None:
        """The answer with messages; None if there are none."""
        request = RemotingCommand.create_request(RequestCode.POP_MESSAGE, header)
        answer = await self._client.invoke(address, request, timeout_s)
        if answer.code == ResponseCode.SUCCESS:
            return answer
        if answer.code in _NOTHING_POPPED:
            return None
        raise ResponseError(answer.code, answer.remark or "")

    async def ack_message(self, address: str, header: consume.AckMessageRequestHeader) -> None:
        await self._call(address, RequestCode.ACK_MESSAGE, header)

    async def batch_ack_message(self, address: str, body: BatchAckMessageRequestBody) -> None:
        await self._call(address, RequestCode.BATCH_ACK_MESSAGE, body=body.to_json())

    async def change_invisible_time(
        self, address: str, header: consume.ChangeInvisibleTimeRequestHeader
    ) -> consume.ChangeInvisibleTimeResponseHeader:
        answer = await self._call(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        return answer.decode_header(consume.ChangeInvisibleTimeResponseHeader)

    async def notification(
        self, address: str, header: consume.NotificationRequestHeader, timeout_s: float
    ) -> bool:
        """Waits until there are messages to pop; False if there are none in time."""
        answer = await self._call(address, RequestCode.NOTIFICATION, header, timeout_s=timeout_s)
        return answer.decode_header(consume.NotificationResponseHeader).has_msg

    async def query_assignment(
        self, address: str, body: QueryAssignmentRequestBody
    ) -> list[MessageQueueAssignment] | None:
        """This client's queues, and how to read them; None when the broker cannot say yet."""
        found = await self._body(
            QueryAssignmentResponseBody, address, RequestCode.QUERY_ASSIGNMENT, body=body.to_json()
        )
        return found.message_queue_assignments

    # --- what could not be consumed

    async def consumer_send_message_back(
        self,
        address: str,
        broker_name: str,
        message: MessageExt,
        group: str,
        delay_level: int,
        max_reconsume_times: int,
    ) -> None:
        """The broker stores the message again, in the group's retry topic or among its dead letters."""
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=group,
            delay_level=delay_level,
            origin_msg_id=message.uniq_key or message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=max_reconsume_times,
            bname=broker_name,
        )
        await self._call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_s=5.0)

    # --- offsets

    async def query_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, *, set_zero_if_not_found: bool | None = None
    ) -> int | None:
        """None if the group has no offset.

        For a queue that still has all its messages in memory a broker then answers 0, unless `set_zero_if_not_found`
        is False: a new group reads a new topic from its start.
        """
        header = consume.QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
            bname=queue.broker_name,
        )
        try:
            answer = await self._call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.decode_header(consume.QueryConsumerOffsetResponseHeader).offset

    async def update_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int, *, oneway: bool
    ) -> None:
        header = consume.UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        request = RemotingCommand.create_request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        if oneway:
            await self._client.invoke_oneway(address, request)
        else:
            await self._client.call(address, request, self._timeout_s)

    # --- locks of orderly consumers

    async def lock_batch_mq(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        """The queues that this client now holds, for a minute."""
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=set(queues))
        found = await self._body(
            LockBatchResponseBody, address, RequestCode.LOCK_BATCH_MQ, body=body.to_json()
        )
        return found.lock_ok_mq_set

    async def unlock_batch_mq(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=set(queues))
        await self._call(address, RequestCode.UNLOCK_BATCH_MQ, body=body.to_json())
