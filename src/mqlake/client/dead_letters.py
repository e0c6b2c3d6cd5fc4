"""Dead letters of a group, sent back to its consumers.

    %DLQ%group ── copy ──▶ %RETRY%group ──▶ the members of this group alone, under the topic the message came from
                       └─▶ the topic it came from ──▶ every group of that topic

A dead letter stays where it is. How far "all" has come is the offset of the group CID_MQLAKE_REDRIVE in the topic of
the dead letters, so that the next "all" goes on after it, also from another program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from mqlake.client.admin import PULL_MESSAGES, Admin
from mqlake.client.routes import queues_at_brokers
from mqlake.errors import ConfigError, MessageError
from mqlake.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    RETRY_GROUP_TOPIC_PREFIX,
    Message,
    MessageExt,
    MessageSysFlag,
)
from mqlake.message.properties import (
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    STRING_PROPERTY,
)
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, TopicStatsTable
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import MessageQueue

REDRIVE_GROUP = "CID_MQLAKE_REDRIVE"
"""The group whose offset in a topic of dead letters is how far they have been sent back."""
GROUP, TOPIC = "group", "topic"
"""The places where dead letters go: to the members of the group alone, or to the topic that they came from."""
KEPT = {PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX}
"""RocketMQ's own properties that go with the copy; users' all do."""

Ranges = Mapping[MessageQueue, tuple[int, int]]
"""By queue the offsets [first, end) of dead letters."""


async def waiting(admin: Admin, stats: TopicStatsTable) -> dict[MessageQueue, tuple[int, int]]:
    """The dead letters that were not sent back yet; `stats`: of their topic."""
    done: dict[MessageQueue, int] = {}
    topics = {queue.topic for queue in stats.offset_table}
    for broker in {queue.broker_name for queue in stats.offset_table}:
        address = await admin.broker_address(broker)
        for topic in topics:
            progress = await admin.brokers.get_consume_stats(address, REDRIVE_GROUP, topic)
            done |= {queue: at.consumer_offset for queue, at in progress.offset_table.items()}
    return {
        queue: (max(at.min_offset, min(done.get(queue, 0), at.max_offset)), at.max_offset)
        for queue, at in sorted(stats.offset_table.items())
    }


class Redrive:
    """Sends dead letters to the writable queues of each topic in turn; a topic's route is asked for once."""

    def __init__(self, admin: Admin, group: str, where: str = GROUP) -> None:
        if where not in (GROUP, TOPIC):
            raise ConfigError(f"where: {where!r} is neither {GROUP} nor {TOPIC}")
        self._admin, self.group, self.where = admin, group, where
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._turn = 0

    def message(self, letter: MessageExt) -> Message:
        """The message to send for a dead letter: its body, its keys, tag and id, and what users have put into it.

        MessageError for one that does not say which topic it is from, if it has to go there.
        """
        of_letter = letter.properties
        origin = of_letter.get(PROPERTY_RETRY_TOPIC) or of_letter.get(PROPERTY_DLQ_ORIGIN_TOPIC)
        properties = {
            name: value for name, value in of_letter.items() if name in KEPT or name not in STRING_PROPERTY
        }
        topic = RETRY_GROUP_TOPIC_PREFIX + self.group
        if self.where == TOPIC:
            if not origin:
                raise MessageError(f"dead letter {letter.msg_id} does not say which topic it is from")
            topic = origin
        elif origin:
            properties[PROPERTY_RETRY_TOPIC] = origin
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = of_letter.get(PROPERTY_ORIGIN_MESSAGE_ID, letter.msg_id)
        return Message(topic, letter.body, flag=letter.flag, properties=properties)

    async def send(self, letter: MessageExt) -> None:
        """Sends the body as it was stored; the flags of its record say how it is compressed."""
        message = self.message(letter)
        if message.topic not in self._places:
            self._places[message.topic] = await self._find(message.topic)
        places = self._places[message.topic]
        self._turn += 1
        address, queue_id = places[self._turn % len(places)]
        compression = letter.sys_flag & MessageSysFlag.COMPRESSED_FLAG
        if compression:
            compression |= MessageSysFlag.compression_type(letter.sys_flag)
        await self._admin.brokers.send_message(address, message, queue_id, REDRIVE_GROUP, compression)

    async def send_all(self, ranges: Ranges, progress: Callable[[int, int], None]) -> int:
        """Sends those of waiting(); returns their number. `progress` gets how many of how many are sent.

        Each is sent before the offset passes it: after a failure none is missing, at most PULL_MESSAGES come twice.
        """
        done, total = 0, sum(end - begin for begin, end in ranges.values())
        progress(done, total)
        if REDRIVE_GROUP not in await self._admin.get_all_subscription_groups():
            await self._admin.create_subscription_group(SubscriptionGroupConfig(group_name=REDRIVE_GROUP))
        for queue, (begin, end) in ranges.items():
            address = await self._admin.broker_address(queue.broker_name)
            while begin < end:
                following = min(begin + PULL_MESSAGES, end)
                await asyncio.gather(*map(self.send, await self._admin.messages_in(queue, begin, following)))
                await self._admin.brokers.update_consumer_offset(
                    address, REDRIVE_GROUP, queue.topic, queue.queue_id, following
                )
                done += following - begin
                progress(done, total)
                begin = following
        return done

    async def _find(self, topic: str) -> list[tuple[str, int]]:
        route = await self._admin.examine_topic_route_info(topic)
        addresses = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
        found = [
            (address, queue.queue_id)
            for queue in queues_at_brokers(route, topic)
            if (address := addresses.get(queue.broker_name))
        ]
        if not found:
            raise MessageError(f"no broker takes messages of {topic}")
        return found
