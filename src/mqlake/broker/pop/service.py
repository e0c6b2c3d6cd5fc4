"""PopService: pop on one broker, from its requests to its revive, and when each part runs."""

from __future__ import annotations

import logging

from mqlake.base.background import BackgroundTask, repeat
from mqlake.broker.broker import Broker
from mqlake.broker.pop.ack import AckMessageProcessor
from mqlake.broker.pop.assignment import QueryAssignmentProcessor, TopicRoute
from mqlake.broker.pop.notification import NotificationProcessor
from mqlake.broker.pop.pop_message import PopMessageProcessor
from mqlake.broker.pop.recover import recover_offsets, recover_revived
from mqlake.broker.pop.revive import PopReviveService
from mqlake.broker.pop.state import PopState
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

CLEAN_S = 30.0
PROMOTION_OVERLAP_MS = 180_000
"""A slave asks its master for its offsets once a minute."""


class PopService:
    """Call load() when the store has recovered and before it listens, then start(); both parts of the latter again
    when the broker's role changes."""

    def __init__(self, broker: Broker, timers: TimerMessageStore | None, topic_route: TopicRoute) -> None:
        self._broker = broker
        self.state = PopState(broker)
        self.pop_message_processor = PopMessageProcessor(self.state)
        self.ack_message_processor = AckMessageProcessor(self.state)
        self.notification_processor = NotificationProcessor(self.state)
        self.query_assignment_processor = QueryAssignmentProcessor(broker, topic_route)
        self.revive_service = PopReviveService(self.state, timers)
        self._cleaning = BackgroundTask(self._keep_clean, "PopService")
        broker.store.message_arriving_listeners += (
            self.state.pop_polling.on_arrival,
            self.state.notification_polling.on_arrival,
        )

    @property
    def config_managers(self) -> list[ConfigManager]:
        return [self.state.order_info_manager]

    # --- life

    def load(self) -> None:
        """Takes up what the last broker on this directory has left. Blocks."""
        recover_offsets(self.state)
        recover_revived(self.state, self.revive_service.revived_before)

    def start(self) -> None:
        """Requests may wait from now on."""
        state = self.state
        state.pop_polling.start()
        state.notification_polling.start()
        self._cleaning.start()

    def become_master(self) -> None:
        """The broker was a slave, whose offsets may be some time behind its log."""
        recover_offsets(self.state, PROMOTION_OVERLAP_MS)
        self.start_revive()

    def start_revive(self) -> None:
        """The broker is a master."""
        if not self.revive_service.is_running:
            self.revive_service.start()

    async def stop_revive(self) -> None:
        """The broker stops, or is a slave from now on."""
        await self.revive_service.shutdown()

    def answer_all(self) -> None:
        """Answers the requests that wait; from now on none does."""
        self.state.pop_polling.shutdown()
        self.state.notification_polling.shutdown()

    async def shutdown(self) -> None:
        """Ends what runs in the background. Idempotent."""
        await self._cleaning.stop()
        await self.stop_revive()

    async def _keep_clean(self) -> None:
        await repeat("cleaning of pop's state", logger, CLEAN_S, self._clean)

    async def _clean(self) -> None:
        broker, state = self._broker, self.state
        state.queues.forget_idle()
        state.order_info_manager.clean(
            self._read_queue_nums, broker.subscription_group_manager.contains_subscription_group
        )

    def _read_queue_nums(self, topic: str) -> int:
        config = self._broker.topic_config_manager.select_topic_config(topic)
        return 0 if config is None else config.read_queue_nums
