"""ConsumeMessageService: consumes pulled messages, and moves the offset on.

PushConsumer ── assigned, submit, released ──▶ a service ──▶ listener ──▶ consumed: the offset goes on
                                                                └───────▶ failed: again, here or by the broker
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ListenerRunner
from mqlake.client.consume.offset_store import OffsetStore
from mqlake.client.consume.process_queue import ProcessQueue
from mqlake.client.consume.send_back import SendBack
from mqlake.client.consume.undecodable import delivered_message
from mqlake.client.mq_client import MQClientInstance
from mqlake.errors import MqlakeError, ResponseError, UndecodableMessageError
from mqlake.remoting.bodies.client import MessageModel

logger = logging.getLogger(__name__)

REFUSALS_MAX = 5
"""Times that a broker is asked to keep a message that it refuses."""


@dataclass(eq=False)
class ConsumeMessageService:
    client: MQClientInstance
    group: str
    config: ConsumerConfig
    runner: ListenerRunner
    offset_store: OffsetStore
    send_back: SendBack

    def start(self) -> None:
        raise NotImplementedError

    def assigned(self, process_queue: ProcessQueue) -> None:
        """The queue is this consumer's from now on, until it is dropped."""

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """A pull has added this many messages to the process queue."""

    async def send_to_dead_letters(self, process_queue: ProcessQueue, error: UndecodableMessageError) -> None:
        """Makes a message that no listener can get a dead letter of the group. Returns when the queue may continue.

        A broker that is not there is waited for. One that refuses it, as when the record itself is damaged, is asked
        REFUSALS_MAX times; then the log is all that is left of it, as with broadcasting, which has no dead letters.
        """
        logger.error("group %s: %s", self.group, error)
        refusals = 0
        while not process_queue.dropped:
            if self.config.message_model is MessageModel.BROADCASTING or not error.msg_id:
                logger.error("group %s: passed over: %s", self.group, error)
                return
            try:
                await self.send_back.send_dead_letter(delivered_message(error))
                return
            except ResponseError as refusal:
                refusals += 1
                logger.warning("group %s: no dead letter yet: %s", self.group, refusal)
                if refusals == REFUSALS_MAX:
                    logger.error("group %s: passed over, the broker does not keep it: %s", self.group, error)
                    return
            except MqlakeError as problem:
                logger.warning("group %s: no dead letter yet: %s", self.group, problem)
            await asyncio.sleep(self.config.pull_time_delay_when_exception_s)

    async def released(self, process_queue: ProcessQueue) -> None:
        """The queue was dropped; returns when another consumer may have it."""

    async def stop(self, timeout_s: float) -> None:
        """Starts nothing new, and waits for calls in flight."""
        raise NotImplementedError
