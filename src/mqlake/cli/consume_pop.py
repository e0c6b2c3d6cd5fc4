"""`mqlake consume --pop`: prints what it pops as a member of a group, and acknowledges what is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from mqlake.base.progress import Progress
from mqlake.cli.clients import stop_on_signals
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.consume.subscription import MessageSelector
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.client import ConsumeFromWhere

RECEIVE_S = 1.0
"""Ctrl-C is noticed so often."""
POP_MAX = 32


@dataclass
class PopJob:
    topic: str
    line: Callable[[MessageClientExt], bytes]
    out: IO[bytes]
    selector: MessageSelector
    from_latest: bool
    invisible_s: float
    count: int | None
    exit_at_end: bool
    on_undecodable: str
    taken: int = 0
    skipped: int = field(default=0)

    async def run(self, group: str, where: ClientConfig, report: Progress) -> None:
        stop = stop_on_signals()
        begin = (
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            if self.from_latest
            else ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        async with SimpleConsumer(group, where, ConsumerConfig(consume_from_where=begin)) as consumer:
            consumer.subscribe(self.topic, self.selector)
            while not stop.is_set() and (self.count is None or self.taken < self.count):
                left = POP_MAX if self.count is None else min(POP_MAX, self.count - self.taken)
                messages = await consumer.receive(left, invisible_s=self.invisible_s, await_s=RECEIVE_S)
                if not messages and self.exit_at_end:
                    return
                self.out.write(
                    b"".join(self.line(message) for message in messages if self._is_printed(message))
                )
                self.out.flush()
                await consumer.ack_all(messages)
                self.taken += len(messages)
                report(self.taken, self.count or 0)

    def _is_printed(self, message: MessageClientExt) -> bool:
        if not message.undecodable or self.on_undecodable == "raw":
            return True
        if self.on_undecodable == "raise":
            raise MqlakeError(
                f"{message.undecodable_error()}; --on-undecodable skip continues after it, raw prints its body as it "
                "is stored"
            )
        self.skipped += 1
        return False
