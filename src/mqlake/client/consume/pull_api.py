"""PullAPIWrapper: one pull of a group's consumer, from the broker or replica that the last one suggested."""

from __future__ import annotations

from mqlake.client.api.client_api import PullSysFlag
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullResult
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.headers.consume import PullMessageRequestHeader

TIMEOUT_BEYOND_SUSPEND_S = 15.0
"""Grace period: a broker answers at most this much after the time it may hold a pull."""
BYTES_MAX = 256 * 1024
"""Bytes of one pull's records; the first message comes whatever its size."""


class PullAPIWrapper:
    def __init__(self, client: MQClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._pull_from_which_node: dict[MessageQueue, int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        *,
        max_num: int,
        suspend_s: float,
        commit_offset: int | None = None,
        lite: bool = False,
    ) -> PullResult:
        """`suspend_s`: how long the broker holds a pull if there are no messages; 0: not at all.

        `lite`: the request says itself what to filter; else the last heartbeat has said it. Raises RemotingError,
        BrokerNotFoundError.
        """
        flag = 0
        if commit_offset is not None:
            flag |= PullSysFlag.COMMIT_OFFSET
        if suspend_s:
            flag |= PullSysFlag.SUSPEND
        if lite:
            flag |= PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_num,
            sys_flag=flag,
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=int(suspend_s * 1000),
            subscription=subscription.sub_string if lite else None,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
            max_msg_bytes=BYTES_MAX,
            bname=queue.broker_name,
        )
        address = self.address(queue)
        timeout_s = suspend_s + TIMEOUT_BEYOND_SUSPEND_S
        result = await self._client.api.pull_message(address, queue, header, timeout_s)
        self._pull_from_which_node[queue] = result.suggest_which_broker_id
        return result

    def address(self, queue: MessageQueue) -> str:
        """Returns the address for the next pull. BrokerNotFoundError."""
        broker_id = self._pull_from_which_node.get(queue, 0)
        name = self._client.broker_name_of(queue)
        return self._client.find_broker_address_in_subscribe(name, broker_id)


def matching_messages(
    result: PullResult, subscription: SubscriptionData, max_body_size: int
) -> list[MessageClientExt]:
    """The messages decoded, and once more by their tags: the broker compares only hashes.

    Those that cannot be decoded are among them, and say so.
    """
    messages = result.decode(max_body_size=max_body_size)
    tags = subscription.tags_set
    if tags:
        # bytes that are not a record have no tags to filter by
        return [message for message in messages if message.tags in tags or not message.store_size]
    return messages
