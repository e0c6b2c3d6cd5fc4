"""QUERY_ASSIGNMENT: against the rules of RocketMQ's QueryAssignmentProcessor, and on a live broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.pop.assignment import ANY_QUEUE, shared
from mqlake.remoting.allocate import averagely, averagely_by_circle
from mqlake.remoting.bodies.client import (
    MessageModel,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from tests.broker.live_broker import Client, live_broker, put, run


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue(topic="T", broker_name=f"b{n % 2}", queue_id=n // 2) for n in range(count)]


@given(
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(-1, 12),
    st.sampled_from([averagely, averagely_by_circle]),
)
def test_every_queue_is_popped_by_as_many_as_asked(queue_count, client_count, share, strategy):
    queues = sorted(queues_of(queue_count))
    clients = [f"c{n:02}" for n in range(client_count)]
    chosen = {client: shared(strategy, client, queues, clients, share) for client in clients}
    if share <= 0 or share >= client_count - 1:
        brokers = {queue.broker_name for queue in queues}
        for of in chosen.values():
            assert {(queue.broker_name, queue.queue_id) for queue in of} == {(b, ANY_QUEUE) for b in brokers}
            assert len(of) == len(brokers)
        return
    poppers = {queue: sum(queue in of for of in chosen.values()) for queue in queues}
    if client_count <= queue_count:
        assert set(poppers.values()) == {share + 1}
    else:
        assert all(len(of) == 1 for of in chosen.values())
        assert max(poppers.values()) - min(poppers.values()) <= 1


async def ask(client: Client, **fields: object) -> QueryAssignmentResponseBody | int:
    body = QueryAssignmentRequestBody(
        **{
            "topic": "T",
            "consumer_group": "G",
            "client_id": client.client_id,
            "strategy_name": "AVG",
            "message_model": MessageModel.CLUSTERING,
            **fields,
        }
    )
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, None, body.to_json())
    if answer.code != ResponseCode.SUCCESS:
        return answer.code
    return QueryAssignmentResponseBody.from_json(answer.body_bytes())


def chosen(body: QueryAssignmentResponseBody) -> list[tuple[int, MessageRequestMode]]:
    return [(one.message_queue.queue_id, one.mode) for one in body.message_queue_assignments]


def test_members_get_their_share(tmp_path):
    pull, pop = MessageRequestMode.PULL, MessageRequestMode.POP

    async def main() -> None:
        async with (
            live_broker(tmp_path) as controller,
            Client(controller, "a") as a,
            Client(controller, "b") as b,
        ):
            put(controller)
            controller.broker.topic_config_manager.create_topic_in_send_message_back_method("T", 4, 6, 0)
            assert (await ask(a)).message_queue_assignments is None  # not a member yet
            for client in (a, b):
                await client.heartbeat("G", ("T",))
            assert chosen(await ask(a)) == [(0, pull), (1, pull)]
            assert chosen(await ask(b, strategy_name="AVG_BY_CIRCLE")) == [(1, pull), (3, pull)]
            assert await ask(a, strategy_name="OTHER") == ResponseCode.SYSTEM_ERROR
            assert len(chosen(await ask(a, message_model=MessageModel.BROADCASTING))) == 4
            assert (await ask(a, topic="unknown")).message_queue_assignments is None
            mode = SetMessageRequestModeRequestBody(
                topic="T", consumer_group="G", mode=pop, pop_share_queue_num=0
            )
            answer = await a.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.to_json())
            assert answer.code == ResponseCode.SUCCESS
            assert chosen(await ask(a)) == chosen(await ask(b)) == [(ANY_QUEUE, pop)]

    run(main())


@pytest.mark.parametrize("value", ["true", "false"])
def test_settings(tmp_path, value):
    async def main() -> None:
        settings = {"serverLoadBalancerEnable": value, "defaultMessageRequestMode": "POP"}
        async with live_broker(tmp_path, **settings) as controller, Client(controller, "a") as a:
            put(controller)
            controller.broker.topic_config_manager.create_topic_in_send_message_back_method("T", 2, 6, 0)
            await a.heartbeat("G", ("T",))
            expected = [ANY_QUEUE] if value == "true" else [0, 1]
            assert [queue_id for queue_id, _ in chosen(await ask(a))] == expected

    run(main())
