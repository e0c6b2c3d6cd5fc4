from __future__ import annotations

import asyncio

import pytest

from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.message import create_message_id
from mqlake.remoting.bodies.admin import ConsumeStats, QuerySubscriptionResponseBody
from mqlake.remoting.bodies.client import CMResult, ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import (
    GetConsumeStatsRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
)
from tests.broker.live_broker import Client, live_broker, put, run
from tests.waiting import until_async

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def test_progress(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            api, at = BrokerAPI(client), controller.broker_addr
            for topic in ("T", "U"):
                controller.broker.topic_config_manager.create_topic_if_absent(
                    TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
                )
            for _ in range(3):
                put(controller)
            controller.broker.subscription_group_manager.find_subscription_group_config("G")
            offsets = controller.broker.consumer_offset_manager
            offsets.commit_offset("h", "G", "T", 0, 2)
            offsets.commit_offset("h", "G", "U", 0, 0)
            offsets.commit_pull_offset("h", "G", "T", 0, 3)

            stats = await api.get_consume_stats(at, "G", "T")
            wrapper = stats.offset_table[QUEUE]
            assert (wrapper.broker_offset, wrapper.consumer_offset, wrapper.pull_offset) == (3, 2, 3)
            assert wrapper.last_timestamp > 0
            assert {queue.topic for queue in (await api.get_consume_stats(at, "G")).offset_table} == {
                "T",
                "U",
            }
            header = GetConsumeStatsRequestHeader(consumer_group="G", topic_list="U;gone;")
            answer = await client.ask(RequestCode.GET_CONSUME_STATS, header)
            assert b'"topic":"U"' in answer.body_bytes() and b'"topic":"T"' not in answer.body_bytes()

            everything = await api.fetch_consume_stats_in_broker(at)
            assert (everything.total_diff, everything.total_inflight_diff) == (1, 1)
            ordered = await api.fetch_consume_stats_in_broker(at, is_order=True)
            assert ordered.total_diff == 0
            offsets.commit_offset("h", "G", "U", 0, 7)  # beyond the end: takes nothing off what T has
            everything = await api.fetch_consume_stats_in_broker(at)
            assert (everything.total_diff, everything.total_inflight_diff) == (1, 1)
            stats = await api.get_consume_stats(at, "G")
            assert (stats.behind, stats.beyond) == (1, 7)
            offsets.commit_offset("h", "G", "U", 0, 0)

            (span,) = await api.query_consume_time_span(at, "T", "G")
            assert span.message_queue == QUEUE
            assert 0 < span.min_time_stamp <= span.consume_time_stamp <= span.max_time_stamp
            assert span.delay_time >= 0
            with pytest.raises(ResponseError):
                await api.query_consume_time_span(at, "gone", "G")

            assert await api.query_topic_consume_by_who(at, "T") == {"G"}
            assert await api.query_topics_by_consumer(at, "G") == {"T", "U"}

            # a group that is connected and does not subscribe to U any more
            await client.heartbeat("G", ("T",))
            assert {queue.topic for queue in (await api.get_consume_stats(at, "G")).offset_table} == {"T"}

    run(scene())


def test_who_is_connected(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            api, at = BrokerAPI(client), controller.broker_addr
            with pytest.raises(ResponseError) as offline:
                await api.get_consumer_connection_list(at, "G")
            assert offline.value.code == ResponseCode.CONSUMER_NOT_ONLINE
            with pytest.raises(ResponseError):
                await api.get_producer_connection_list(at, "P")

            await client.heartbeat("G", ("T",), producer="P")
            told = await api.get_consumer_connection_list(at, "G")
            (connection,) = told.connection_set
            assert (connection.client_id, connection.language) == ("c", "PYTHON")
            assert set(told.subscription_table) == {"T"}
            assert [
                c.client_id for c in (await api.get_producer_connection_list(at, "P")).connection_set
            ] == ["c"]
            assert (await api.get_all_producer_info(at)).data["P"][0].client_id == "c"

            header = QuerySubscriptionByConsumerRequestHeader(group="G", topic="T")
            answer = await client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
            subscription = QuerySubscriptionResponseBody.from_json(answer.body_bytes()).subscription_data
            assert subscription is not None and subscription.sub_string == "*"

    run(scene())


def test_what_a_consumer_is_asked_is_passed_on(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            api, at = BrokerAPI(client), controller.broker_addr
            client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = lambda _: RemotingCommand.create_response(
                body=ConsumerRunningInfo(properties={"a": "b"}).to_json()
            )
            client.answers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = lambda _: RemotingCommand.create_response(
                body=ConsumeMessageDirectlyResult(consume_result=CMResult.CR_LATER).to_json()
            )
            with pytest.raises(ResponseError, match="not online"):
                await api.get_consumer_running_info(at, "G", "c")
            await client.heartbeat("G", ("T",))
            assert (await api.get_consumer_running_info(at, "G", "c")).properties == {"a": "b"}

            put(controller, body=b"the message")
            message_id = create_message_id(("127.0.0.1", controller.port), 0)
            result = await api.consume_message_directly(at, "G", "c", "T", message_id)
            assert result.consume_result is CMResult.CR_LATER
            (asked,) = client.told_of(RequestCode.CONSUME_MESSAGE_DIRECTLY)
            assert asked.ext_fields["brokerName"] == "broker-a" and b"the message" in asked.body_bytes()
            with pytest.raises(ResponseError, match="not a message id"):
                await api.consume_message_directly(at, "G", "c", "T", "nonsense")
            with pytest.raises(ResponseError, match="can not find message"):
                await api.consume_message_directly(at, "G", "c", "T", message_id[:-4] + "7000")

            client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = lambda _: RemotingCommand.create_response(
                ResponseCode.SYSTEM_ERROR, "not now"
            )
            with pytest.raises(ResponseError, match="not now"):
                await api.get_consumer_running_info(at, "G", "c")

    run(scene())


def test_a_consumer_that_is_too_old(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path) as controller, Client(controller, version=61) as client:
            await client.heartbeat("G", ("T",))
            with pytest.raises(ResponseError, match="too low"):
                await BrokerAPI(client).get_consumer_running_info(controller.broker_addr, "G", "c")

    run(scene())


def test_others_are_served_while_the_progress_of_many_topics_is_looked_up(tmp_path):
    async def scene() -> None:
        async with (
            live_broker(tmp_path) as controller,
            Client(controller) as asking,
            Client(controller) as other,
        ):
            await other.heartbeat("H")
            broker = controller.broker
            for number in range(3000):
                topic = TopicConfig(topic_name=f"T{number}", read_queue_nums=4, write_queue_nums=4)
                broker.topic_config_manager.topic_config_table[topic.topic_name] = topic
                broker.consumer_offset_manager.commit_offset("h", "G", topic.topic_name, 0, 1)
            header = GetConsumeStatsRequestHeader(consumer_group="G")
            asked = asyncio.create_task(asking.ask(RequestCode.GET_CONSUME_STATS, header))
            await until_async(lambda: controller.server.in_flight, "the request has begun")
            assert (await other.heartbeat("H")).code == ResponseCode.SUCCESS
            assert not asked.done()
            answer = await asked
            assert len(ConsumeStats.from_json(answer.body_bytes()).offset_table) == 12_000

    run(scene())


def test_offsets_are_read_once_for_all_groups(tmp_path, monkeypatch):
    reads = []
    keys = ConsumerOffsetManager._keys
    monkeypatch.setattr(ConsumerOffsetManager, "_keys", lambda self: reads.append(1) or keys(self))

    async def scene() -> None:
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            for number in range(20):
                controller.broker.subscription_group_manager.find_subscription_group_config(f"G{number}")
            reads.clear()
            everything = await BrokerAPI(client).fetch_consume_stats_in_broker(controller.broker_addr)
            assert len(everything.consume_stats_list) >= 20 and len(reads) == 1

    run(scene())
