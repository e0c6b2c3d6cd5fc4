"""QueryAssignmentProcessor: 400 QUERY_ASSIGNMENT, which queues a member of a group reads, and how.

    mode PULL    its share of the queues, by the strategy that it names
    mode POP     every broker (queue -1: any of its queues): all members share everything
                 with popShareQueueNum n > 0: its own share, and those of the n members after it

The mode is what an operator has set (401, mqadmin setConsumeMode), else defaultMessageRequestMode. A broker divides by
the members that it knows itself; they are connected to every broker of the topic.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from mqlake.broker.broker import Broker
from mqlake.errors import MqlakeError, ResponseError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.allocate import AllocateMessageQueueStrategy, averagely, averagely_by_circle
from mqlake.remoting.bodies.client import (
    MessageModel,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from mqlake.remoting.bodies.route import TopicRouteData, numbered_queues, readable_queues
from mqlake.remoting.bodies.topic import PERM_READ, MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.processors import answers

ANY_QUEUE = -1
ROUTES_MAX = 10_000

STRATEGIES: dict[str, AllocateMessageQueueStrategy] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": averagely_by_circle,
}

TopicRoute = Callable[[str], Awaitable[TopicRouteData | None]]
"""The route of a topic from the name servers; None without them, or if they do not know it."""


class QueryAssignmentProcessor:
    def __init__(self, broker: Broker, topic_route: TopicRoute) -> None:
        self._broker = broker
        self._topic_route = topic_route
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}

    @answers(RequestCode.QUERY_ASSIGNMENT)
    async def query_assignment(self, request: RemotingCommand) -> RemotingCommand:
        """400 QUERY_ASSIGNMENT. Without assignments in the answer the client keeps what it has."""
        body = QueryAssignmentRequestBody.from_json(request.body_bytes())
        topic, group = body.topic, body.consumer_group
        mode, share = self._mode(topic, group)
        queues = await self._queues(topic)
        chosen = self._choose(body, mode, share, queues)
        answer = QueryAssignmentResponseBody()
        if chosen is not None:
            answer.message_queue_assignments = [
                MessageQueueAssignment(message_queue=queue, mode=mode) for queue in sorted(set(chosen))
            ]
        return RemotingCommand.create_response(body=answer.to_json())

    def _mode(self, topic: str, group: str) -> tuple[MessageRequestMode, int]:
        config = self._broker.config
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return MessageRequestMode.PULL, -1
        modes = self._broker.message_request_mode_manager.modes.message_request_mode_map
        known = modes.get(topic, {}).get(group)
        if known is not None:
            return known.mode, known.pop_share_queue_num
        return config.default_message_request_mode, config.default_pop_share_queue_num

    def _choose(
        self,
        body: QueryAssignmentRequestBody,
        mode: MessageRequestMode,
        share: int,
        queues: list[MessageQueue],
    ) -> Sequence[MessageQueue] | None:
        if not queues:
            return None
        if body.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._broker.config.server_load_balancer_enable:
            return queues
        strategy = STRATEGIES.get(body.strategy_name or "")
        if strategy is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"AllocateMessageQueueStrategy[{body.strategy_name}] not support: it can be "
                f"{' or '.join(STRATEGIES)}",
            )
        group_info = self._broker.consumer_manager.get_consumer_group_info(body.consumer_group)
        client_ids = sorted(set(group_info.all_client_ids())) if group_info is not None else []
        if body.client_id not in client_ids:
            return None
        if mode is MessageRequestMode.PULL:
            return strategy(body.client_id, queues, client_ids)
        return shared(strategy, body.client_id, queues, client_ids, share)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """All queues that can be read, on all brokers."""
        interval_s = self._broker.config.load_balance_poll_name_server_interval / 1000
        known = self._routes.get(topic)
        now = time.monotonic()
        if known is not None and now - known[0] < interval_s:
            return known[1]
        try:
            route = await self._topic_route(topic)
        except MqlakeError:
            route = None
        queues = readable_queues(route, topic) if route is not None else self._own_queues(topic)
        if queues:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = now, queues
        return queues

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        config = self._broker.topic_config_manager.select_topic_config(topic)
        if config is None or not config.perm & PERM_READ:
            return []
        return numbered_queues(topic, self._broker.config.broker_name, config.read_queue_nums)


def shared(
    strategy: AllocateMessageQueueStrategy,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share: int,
) -> list[MessageQueue]:
    """The queues that a member pops from; both lists are sorted."""
    if share <= 0 or share >= len(client_ids) - 1:
        brokers = sorted({queue.broker_name for queue in queues})
        topic = queues[0].topic
        return [MessageQueue(topic=topic, broker_name=broker, queue_id=ANY_QUEUE) for broker in brokers]
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]]
    return [
        queue
        for i in range(share + 1)
        for queue in strategy(client_ids[(index + i) % len(client_ids)], queues, client_ids)
    ]
