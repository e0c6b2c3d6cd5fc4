"""Which of a topic's queues are this consumer's, and where it begins to read one."""

from __future__ import annotations

import logging
import random

from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.offset_store import OffsetStore
from mqlake.client.consume.pull_log import PullLog
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.routes import readable_queues
from mqlake.errors import MqlakeError, ResponseError, TopicNotFoundError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.allocate import AllocateMessageQueueStrategy
from mqlake.remoting.bodies.client import (
    ConsumeFromWhere,
    MessageModel,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SubscriptionData,
)
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)


async def allocate_queues(
    client: MQClientInstance,
    group: str,
    topic: str,
    message_model: MessageModel,
    strategy: AllocateMessageQueueStrategy,
    log: PullLog,
) -> set[MessageQueue] | None:
    """This consumer's queues of the topic; None when that cannot be said yet, and things stay as they are."""
    try:
        queues = readable_queues(await client.topic_route(topic), topic)
        log.found(topic)
        await client.send_heartbeat_to_new_brokers(topic)
        if message_model is MessageModel.BROADCASTING:
            return set(queues)
        client_ids = sorted(await client.find_consumer_id_list(topic, group))
    except TopicNotFoundError as error:
        log.missing(topic, error)
        return None
    except ResponseError as error:
        # the broker knows no client of the group: it has just started
        logger.info("group %s: the broker does not know its consumers: %s", group, error)
        client_ids = []
    if client.client_id not in client_ids:
        await client.send_heartbeat_to_all_brokers()
        return None
    return set(strategy(client.client_id, queues, client_ids))


async def query_assignment(
    client: MQClientInstance, group: str, topic: str, message_model: MessageModel, log: PullLog
) -> tuple[set[MessageQueue], set[MessageQueue]] | None:
    """The queues that a broker assigns this consumer: to pull from, and to pop from. None as in allocate_queues()."""
    try:
        route = await client.topic_route(topic)
        log.found(topic)
        await client.send_heartbeat_to_new_brokers(topic)
    except TopicNotFoundError as error:
        log.missing(topic, error)
        return None
    body = QueryAssignmentRequestBody(
        topic=topic,
        consumer_group=group,
        client_id=client.client_id,
        strategy_name="AVG",
        message_model=message_model,
    )
    masters = [at for broker in route.broker_datas if (at := broker.broker_addrs.get(MASTER_ID))]
    if not masters:
        return None
    try:
        found = await client.api.query_assignment(random.choice(masters), body)
    except MqlakeError as error:
        logger.info("group %s: no assignment of %s: %s", group, topic, error)
        return None
    if found is None:
        await client.send_heartbeat_to_all_brokers()
        return None
    pulled: set[MessageQueue] = set()
    popped: set[MessageQueue] = set()
    for assignment in found:
        if assignment.message_queue is not None:
            chosen = popped if assignment.mode is MessageRequestMode.POP else pulled
            chosen.add(assignment.message_queue)
    return pulled, popped


async def check_subscription(client: MQClientInstance, group: str, subscription: SubscriptionData) -> None:
    """Asks the topic's brokers whether they can filter so; they can always filter by tags.

    ResponseError 23 for a condition that cannot be parsed, 1 from a broker that does not filter by properties.
    """
    if subscription.expression_type == "TAG":
        return
    route = await client.topic_route(subscription.topic)
    for broker in route.broker_datas:
        if address := broker.broker_addrs.get(MASTER_ID):
            await client.api.check_client_in_broker(address, group, client.client_id, subscription)


async def compute_pull_from_where(
    client: MQClientInstance, store: OffsetStore, queue: MessageQueue, config: ConsumerConfig
) -> int:
    """The group's offset; without one, as `consume_from_where` says. Retry topics begin at their first message."""
    offset = await store.read_from_store(queue)
    if offset is not None and offset >= 0:
        return offset
    where = config.consume_from_where
    is_retry = queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET or is_retry:
        return 0  # the broker puts it right when its first offset is another
    address = client.find_broker_address_in_subscribe(client.broker_name_of(queue))
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return await client.api.search_offset(address, queue, config.consume_timestamp)
    return await client.api.get_max_offset(address, queue)
