"""Shares the queues among the consumers of a group: every consumer computes it alone, from the same two sorted lists.

    averagely   contiguous shares, the first ones one longer       [0 1 2] [3 4] [5 6]
    circle      one after the other                                [0 3 6] [1 4] [2 5]

The shares equal RocketMQ's AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle, so groups
may mix clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqlake.remoting.bodies.topic import MessageQueue

AllocateMessageQueueStrategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, sorted queues, sorted client ids) → own queues; none when the id is not in the list."""


def averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, longer = divmod(len(queues), len(client_ids))
    start = index * share + min(index, longer)
    return list(queues[start : start + share + (index < longer)])


def averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
