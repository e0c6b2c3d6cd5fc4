"""PopState: what the parts of pop share: queues, order, checkpoints, waiters."""

from __future__ import annotations

import asyncio
import os

from mqlake.broker.broker import Broker
from mqlake.broker.pop.checkpoint import ReviveLog
from mqlake.broker.pop.order import ConsumerOrderInfoManager
from mqlake.broker.pop.polling import ANY_QUEUE, PopLongPollingService
from mqlake.broker.pop.queues import PopQueues
from mqlake.errors import ResponseError
from mqlake.message import pop_retry_topic, revive_topic
from mqlake.remoting.bodies.topic import PERM_READ, TopicConfig
from mqlake.remoting.codes import ResponseCode

WAKE_LATER_S = 0.002
"""A queue is free when its time is over, not before: wall clock and loop clock differ a little."""


class PopState:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.revive_log = ReviveLog(
            revive_topic(broker.config.broker_cluster_name),
            lambda: broker.store_host,
            broker.clock_ms,
            broker.store.async_put_message,
        )
        self.queues = PopQueues(broker.consumer_offset_manager, broker.clock_ms)
        self.order_info_manager = ConsumerOrderInfoManager(
            os.path.join(broker.store_config.config_dir, "consumerOrderInfo.json"), broker.clock_ms
        )
        self.pop_polling = PopLongPollingService(
            broker.clock_ms,
            lambda: broker.config.pop_polling_size,
            lambda: broker.config.max_pop_polling_size,
        )
        self.notification_polling = PopLongPollingService(
            broker.clock_ms,
            lambda: broker.config.pop_polling_size,
            lambda: broker.config.max_pop_polling_size,
            furthest_first=True,
        )
        self._wakes: set[tuple[str, str, int]] = set()
        self.started_at = broker.clock_ms()
        """Messages that were popped earlier are not counted as in flight."""
        broker.consumer_offset_manager.reset_listeners.append(self.forget)
        broker.consumer_offset_manager.before_write = self._flush_checkpoints

    def _flush_checkpoints(self) -> None:
        """An offset on the disk must not be past a checkpoint that a power cut takes away. OSError."""
        if self.queues.has_popped:
            self.queues.has_popped = False
            try:
                self.broker.store.flush()
            except BaseException:
                self.queues.has_popped = True
                raise

    def forget(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        """A topic or a group was deleted, or offsets were reset. None: any."""
        self.queues.forget(topic, group, queue_id)
        self.order_info_manager.forget(topic, group, queue_id)
        if topic is not None and group is not None:
            self.wake(topic, group)

    def wake(self, topic: str, group: str) -> None:
        """There may be messages for a group."""
        self.pop_polling.wake_group(topic, group)
        self.notification_polling.wake_group(topic, group)

    def wake_at(self, topic: str, group: str, at_ms: int) -> None:
        """Wakes a waiter of the group when a queue that is popped in order is free again."""
        key = topic, group, at_ms
        if key not in self._wakes:
            self._wakes.add(key)
            delay_s = max(at_ms - self.broker.clock_ms(), 0) / 1000
            asyncio.get_running_loop().call_later(delay_s + WAKE_LATER_S, self._wake_now, key)

    def _wake_now(self, key: tuple[str, str, int]) -> None:
        self._wakes.discard(key)
        self.wake(*key[:2])

    def check_invisible_time(self, invisible_time: int) -> None:
        """ResponseError if the timer could not bring a message back after so long."""
        if invisible_time < 0:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER, f"invisibleTime is {invisible_time}: it cannot be negative"
            )
        config = self.broker.store_config
        if not config.timer_wheel_enable:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self.broker.config.broker_ip1}] pop message is forbidden because timerWheelEnable "
                "is false: the timer brings back what is not acknowledged",
            )
        longest = config.timer_max_delay_sec * 1000
        if invisible_time > longest:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_time} ms: at most {longest} ms are possible (timerMaxDelaySec)",
            )

    def check_readable(self, topic: str, queue_id: int, group: str) -> TopicConfig:
        """The topic's configuration. ResponseError unless the group may read this queue (-1: any) of it."""
        topic_config = self.broker.topic_config_manager.existing_topic(topic)
        if not topic_config.perm & PERM_READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden"
            )
        if not ANY_QUEUE <= queue_id < topic_config.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}]",
            )
        if not self.broker.subscription_group_manager.existing_group(group).consume_enable:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic_config

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """The retry topics that the group may have messages in, and that are there."""
        config = self.broker.config
        names = [pop_retry_topic(topic, group, v2=config.enable_retry_topic_v2)]
        if config.enable_retry_topic_v2 and config.retrieve_message_from_pop_retry_topic_v1:
            names.append(pop_retry_topic(topic, group))
        find = self.broker.topic_config_manager.topic_config_table
        return [name for name in names if name in find]
