"""MetaMessageSessionFactory: where a program begins; makes producers, consumers and browsers of one session."""

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
    """A session that makes what works in it, and ends it with itself."""

    def create_producer(self, selector: PartitionSelector | None = None) -> MessageProducer:
        """`selector` says which partition a message goes to; one after the other when there is none."""
        producer = MessageProducer(self, selector)
        self._children.append(producer)
        return producer

    def create_consumer(
        self,
        config: ConsumerConfig,
        reject: RejectConsumptionHandler | None = None,
        offsets: OffsetStorage | None = None,
    ) -> MessageConsumer:
        """`reject` gets the messages that the listener refused too often; `offsets` None: kept in ZooKeeper."""
        consumer = MessageConsumer(self, config, reject, offsets)
        self._children.append(consumer)
        return consumer

    def create_broadcast_consumer(
        self,
        config: ConsumerConfig,
        reject: RejectConsumptionHandler | None = None,
        offsets_path: str = "",
    ) -> MessageConsumer:
        """One that gets all messages, as each such consumer on another machine does: a group of its own.

        The group has the machine's address behind its name, its offsets are in a file (empty: ~/.meta_offsets).
        """
        own = f"{config.group}-{re.sub('[.:]', '-', local_address())}"
        return self.create_consumer(
            dataclasses.replace(config, group=own), reject, LocalOffsetStorage(offsets_path)
        )

    def create_topic_browser(self, topic: str) -> TopicBrowser:
        return TopicBrowser(self, topic)
