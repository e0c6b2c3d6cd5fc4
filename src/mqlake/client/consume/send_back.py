"""SendBack: messages that were not consumed go back to the broker, and come again from the group's retry topic."""

from __future__ import annotations

import logging

from mqlake.base.net import format_address
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.namespace import with_namespace
from mqlake.client.produce.producer import Producer
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError
from mqlake.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    RETRY_GROUP_TOPIC_PREFIX,
    Message,
)
from mqlake.remoting.static_topic import is_mock_broker

logger = logging.getLogger(__name__)

MAX_RECONSUME_TIMES = 16
NEVER_AGAIN = -1
"""The delay level of a dead letter."""
CLIENT_INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"


class SendBack:
    def __init__(self, client: MQClientInstance, group: str, config: ConsumerConfig) -> None:
        self._client = client
        self._group = group
        self._namespace = client.config.namespace
        limit = config.max_reconsume_times
        self._max_reconsume_times = MAX_RECONSUME_TIMES if limit < 0 else limit
        self._producer: Producer | None = None

    async def send_message_back(self, message: MessageClientExt, delay_level: int = 0) -> None:
        """The message comes again, after the delay (0: the later the oftener), or is a dead letter (-1, or too often).

        Raises SendError if neither this nor a send to the retry topic works.
        """
        if is_mock_broker(message.broker_name):  # of a static topic: no broker has this name
            await self.send_message_back_as_normal_message(message)
            return
        try:
            await self._give_back(message, delay_level)
        except MqlakeError as error:
            logger.info("group %s: a message is sent to the retry topic: %s", self._group, error)
            await self.send_message_back_as_normal_message(message)

    async def send_dead_letter(self, message: MessageClientExt) -> None:
        """The broker keeps the message among the group's dead letters, as it has it. RemotingError,
        BrokerNotFoundError."""
        await self._give_back(message, NEVER_AGAIN)

    async def _give_back(self, message: MessageClientExt, delay_level: int) -> None:
        if is_mock_broker(message.broker_name):
            address = format_address(message.store_host)
        else:
            address = self._client.find_broker_address_in_publish(message.broker_name)
        topic, message.topic = message.topic, with_namespace(self._namespace, message.topic)
        try:
            await self._client.api.consumer_send_message_back(
                address,
                message.broker_name,
                message,
                self._group,
                delay_level,
                self._max_reconsume_times,
            )
        finally:
            message.topic = topic

    async def send_message_back_as_normal_message(self, message: MessageClientExt) -> None:
        """SendError when no broker takes it."""
        again = Message(
            RETRY_GROUP_TOPIC_PREFIX + self._group,
            message.body,
            flag=message.flag,
            properties=dict(message.properties),
        )
        properties = again.properties
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.uniq_key or message.msg_id)
        properties[PROPERTY_RETRY_TOPIC] = with_namespace(self._namespace, message.topic)
        properties[PROPERTY_RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[PROPERTY_MAX_RECONSUME_TIMES] = str(self._max_reconsume_times)
        properties.pop(PROPERTY_TRANSACTION_PREPARED, None)
        again.delay_time_level = 3 + message.reconsume_times
        await (await self._inner_producer()).send(again)

    async def _inner_producer(self) -> Producer:
        if self._producer is None:
            group = f"{CLIENT_INNER_PRODUCER_GROUP}-{self._group}"
            self._producer = Producer(group[:255], self._client)
            await self._producer.start()
        return self._producer

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
