"""MetaMessageSessionFactory: the entry point; creates the producers, consumers and browsers of a session."""

from __future__ import annotations

import dataclasses
import re

from mqlake.base.arguments import checked
from mqlake.base.net import local_address
from mqlake.metaq.client.browser import TopicBrowser
from mqlake.metaq.client.consumer import ConsumerConfig, MessageConsumer
from mqlake.metaq.client.offsets import LocalOffsetStorage, OffsetStorage
from mqlake.metaq.client.producer import MessageProducer, PartitionSelector
from mqlake.metaq.client.recover import RejectConsumptionHandler
from mqlake.metaq.client.session import MetaSession


@checked
class MetaMessageSessionFactory(MetaSession):
    """A session with factory methods; what they create ends with the session."""

    def create_producer(self, selector: PartitionSelector | None = None) -> MessageProducer:
        """`selector` chooses the partition of a message; None: one after the other."""
        producer = MessageProducer(self, selector)
        self._children.append(producer)
        return producer

    def create_consumer(
        self,
        config: ConsumerConfig,
        reject: RejectConsumptionHandler | None = None,
        offsets: OffsetStorage | None = None,
    ) -> MessageConsumer:
        """`reject` gets messages that the listener refused too often; `offsets` None: in ZooKeeper."""
        consumer = MessageConsumer(self, config, reject, offsets)
        self._children.append(consumer)
        return consumer

    def create_broadcast_consumer(
        self,
        config: ConsumerConfig,
        reject: RejectConsumptionHandler | None = None,
        offsets_path: str = "",
    ) -> MessageConsumer:
        """A consumer that gets all messages, like each such consumer on other machines.

        It forms its own group, named with the machine's address; its offsets are in a file (empty: ~/.meta_offsets).
        """
        own = f"{config.group}-{re.sub('[.:]', '-', local_address())}"
        return self.create_consumer(
            dataclasses.replace(config, group=own), reject, LocalOffsetStorage(offsets_path)
        )

    def create_topic_browser(self, topic: str) -> TopicBrowser:
        return TopicBrowser(self, topic)
