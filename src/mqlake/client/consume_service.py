"""ConsumeMessageService: what becomes of messages between their pull and the offset that says they are consumed.

PushConsumer ── assigned, submit, released ──▶ a service ──▶ listener ──▶ consumed: the offset goes on
                                                                └───────▶ failed: again, here or by the broker
"""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.client.consumer_config import ConsumerConfig
from mqlake.client.listener import ListenerRunner
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.offset_store import OffsetStore
from mqlake.client.process_queue import ProcessQueue
from mqlake.client.records import MessageClientExt
from mqlake.client.send_back import SendBack


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

    def submit(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        """What a pull has brought; it is in the process queue."""

    async def released(self, process_queue: ProcessQueue) -> None:
        """The queue was dropped; returns when another consumer may have it."""

    async def stop(self, timeout_s: float) -> None:
        """Nothing new is begun; what is under way is waited for."""
        raise NotImplementedError
