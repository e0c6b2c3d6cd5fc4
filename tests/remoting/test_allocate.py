"""Shares against RocketMQ's own arithmetic (AllocateMessageQueueAveragely, …AveragelyByCircle), written as there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.remoting.allocate import averagely, averagely_by_circle
from mqlake.remoting.bodies.topic import MessageQueue

QUEUES = st.integers(0, 40).map(
    lambda count: sorted(MessageQueue(topic="T", broker_name=f"b{i % 3}", queue_id=i) for i in range(count))
)
CLIENTS = st.sets(st.text("abc0", min_size=1, max_size=3), min_size=1, max_size=12).map(sorted)


def java_averagely(client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
    result: list[MessageQueue] = []
    index = client_ids.index(client_id)
    mod = len(queues) % len(client_ids)
    if len(queues) <= len(client_ids):
        average_size = 1
    elif mod > 0 and index < mod:
        average_size = len(queues) // len(client_ids) + 1
    else:
        average_size = len(queues) // len(client_ids)
    start_index = index * average_size if mod > 0 and index < mod else index * average_size + mod
    # the loop of the original takes none from beyond the end
    size = min(average_size, len(queues) - start_index)
    for i in range(size):
        result.append(queues[(start_index + i) % len(queues)])
    return result


def java_by_circle(client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
    result = []
    index = client_ids.index(client_id)
    for i in range(index, len(queues)):
        if i % len(client_ids) == index:
            result.append(queues[i])
    return result


@given(QUEUES, CLIENTS)
def test_averagely_is_rocketmqs(queues: list[MessageQueue], client_ids: list[str]) -> None:
    shares = [averagely(client_id, queues, client_ids) for client_id in client_ids]
    assert shares == [java_averagely(client_id, queues, client_ids) for client_id in client_ids]
    assert [queue for share in shares for queue in share] == queues


@given(QUEUES, CLIENTS)
def test_by_circle_is_rocketmqs(queues: list[MessageQueue], client_ids: list[str]) -> None:
    shares = [averagely_by_circle(client_id, queues, client_ids) for client_id in client_ids]
    assert shares == [java_by_circle(client_id, queues, client_ids) for client_id in client_ids]
    assert sorted(queue for share in shares for queue in share) == queues


def test_who_is_not_in_the_group_gets_nothing() -> None:
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=0)]
    assert averagely("x", queues, ["a"]) == averagely_by_circle("x", queues, ["a"]) == []
