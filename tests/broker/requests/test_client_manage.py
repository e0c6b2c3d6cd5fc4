from __future__ import annotations

import asyncio
import json

import pytest

from mqlake.remoting.bodies.client import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from mqlake.remoting.bodies.topic import TOPIC_SYS_FLAG_UNIT_SUB
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import UnregisterClientRequestHeader
from tests.broker.live_broker import Client, live_broker, run
from tests.waiting import until_async


def test_a_heartbeat_makes_the_group_and_its_retry_topic(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            answer = await client.heartbeat(producer="P")
            assert answer.code == ResponseCode.SUCCESS
            assert answer.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
            assert controller.broker.subscription_group_manager.contains_subscription_group("G")
            retry = controller.broker.topic_config_manager.select_topic_config("%RETRY%G")
            assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
            assert retry.topic_sys_flag == 0
            info = controller.broker.consumer_manager.find_channel("G", "c")
            assert info.version == client.version
            assert controller.broker.producer_manager.find_channel("c") is info.connection
            assert controller.broker.consumer_manager.find_subscription_data("G", "T").sub_string == "*"

    run(main())


def test_a_client_that_closes_is_forgotten_and_the_others_are_told(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller, "stays") as stays:
            await stays.heartbeat()
            async with Client(controller, "goes") as goes:
                await goes.heartbeat(producer="P")
                await until_async(lambda: len(stays.told_of(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)) >= 1)
                await until_async(lambda: goes.told)
                info = controller.broker.consumer_manager.get_consumer_group_info("G")
                assert sorted(info.all_client_ids()) == ["goes", "stays"]
            stays.told.clear()
            await until_async(lambda: info.all_client_ids() == ["stays"])
            await until_async(lambda: stays.told)
            notice = stays.told[-1]
            assert notice.is_oneway and notice.ext_fields == {"consumerGroup": "G"}
            assert not controller.broker.producer_manager.group_channel_table.get("P")

    run(main())


def test_goodbye(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            await client.heartbeat(producer="P")
            header = UnregisterClientRequestHeader(client_id="c", producer_group="P", consumer_group="G")
            assert (await client.ask(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
            assert controller.broker.consumer_manager.get_consumer_group_info("G") is None
            assert not controller.broker.producer_manager.group_channel_table.get("P")
            # and of nothing it never was in
            header = UnregisterClientRequestHeader(client_id="c", producer_group="x", consumer_group="y")
            assert (await client.ask(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
            assert not controller.broker.subscription_group_manager.contains_subscription_group("y")

    run(main())


def test_heartbeats_of_the_second_version(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller) as client,
            Client(controller, "d") as other,
        ):

            def sub_change(answer):
                return answer.ext_fields["IS_SUB_CHANGE"]

            # a broker that has not heard the subscriptions asks for them
            assert sub_change(await client.heartbeat(heartbeat_fingerprint=7, without_sub=True)) == "true"
            assert sub_change(await client.heartbeat(heartbeat_fingerprint=7)) == "false"
            assert sub_change(await client.heartbeat(heartbeat_fingerprint=7, without_sub=True)) == "false"
            assert controller.broker.consumer_manager.find_subscription_data("G", "T") is not None
            # members disagree
            assert sub_change(await other.heartbeat(topics=("U",), heartbeat_fingerprint=8)) == "true"
            assert sub_change(await client.heartbeat(heartbeat_fingerprint=7, without_sub=True)) == "true"

    run(main())


@pytest.mark.parametrize("refused", [True, False])
def test_pull_consumers_may_be_refused(tmp_path, refused):
    async def main():
        async with (
            live_broker(tmp_path, rejectPullConsumerEnable=str(refused).lower()) as controller,
            Client(controller) as client,
        ):
            consumer = {"groupName": "G", "consumeType": "CONSUME_ACTIVELY", "subscriptionDataSet": []}
            body = {"clientID": "c", "consumerDataSet": [consumer | {"unitMode": True}]}
            answer = await client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())
            assert answer.code == ResponseCode.SUCCESS
            assert (controller.broker.consumer_manager.get_consumer_group_info("G") is None) is refused
            retry = controller.broker.topic_config_manager.select_topic_config("%RETRY%G")
            assert refused or retry.topic_sys_flag == TOPIC_SYS_FLAG_UNIT_SUB

    run(main())


def test_groups_that_may_not_be_are_left_out(tmp_path):
    async def main():
        settings = {"autoCreateSubscriptionGroup": "false"}
        async with live_broker(tmp_path, **settings) as controller, Client(controller) as client:
            assert (await client.heartbeat(producer="P")).code == ResponseCode.SUCCESS
            assert controller.broker.consumer_manager.get_consumer_group_info("G") is None
            assert controller.broker.topic_config_manager.select_topic_config("%RETRY%G") is None
            assert controller.broker.producer_manager.group_channel_table.get("P")

    run(main())


def test_bodies_that_are_none(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            for body in (b"", b"{", b"[]", b'{"consumerDataSet":5}', b'{"clientID":""}'):
                answer = await client.ask(RequestCode.HEART_BEAT, None, body)
                assert answer.code != ResponseCode.SUCCESS and answer.remark
            assert (await client.heartbeat()).code == ResponseCode.SUCCESS  # the connection lives

    run(main())


def test_sql_subscriptions_are_kept_for_pulls(tmp_path):
    async def main():
        async with live_broker(tmp_path, enablePropertyFilter="true") as controller:
            async with Client(controller) as client:
                await client.heartbeat(sql="a > 5")
                data = controller.broker.consumer_filter_manager.get("T", "G")
                assert data.compiled_expression.text == "a > 5" and not data.is_dead
            await until_async(lambda: data.is_dead)

    run(main())


async def checked(client, kind, expression):
    subscription = SubscriptionData(topic="T", sub_string=expression, expression_type=kind)
    body = CheckClientRequestBody(client_id="c", group="G", subscription_data=subscription)
    return await client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, body.to_json())


def test_checking_a_consumers_filter(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path, enablePropertyFilter="true") as controller,
            Client(controller) as client,
        ):
            for kind, expression in (("TAG", "a >"), (None, "a"), ("SQL92", "a > 5")):
                assert (await checked(client, kind, expression)).code == ResponseCode.SUCCESS
            for kind, expression in (("SQL92", "a >"), ("SQL92", ""), ("XPATH", "a")):
                answer = await checked(client, kind, expression)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and answer.remark
            empty = CheckClientRequestBody(client_id="c", group="G").to_json()
            assert (await client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, empty)).code == 0

    run(main())


def test_checking_where_filters_are_off(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            answer = await checked(client, "SQL92", "a > 5")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "does not support consumer to filter message by SQL92" in answer.remark
            assert "enablePropertyFilter=true" in answer.remark
            assert (await checked(client, "TAG", "a")).code == ResponseCode.SUCCESS

    run(main())


def many_groups(count: int, subscriptions: int = 1) -> bytes:
    return HeartbeatData(
        client_id="many",
        consumer_data_set=[
            ConsumerData(
                group_name=f"many-{i}",
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
                subscription_data_set=[
                    SubscriptionData(topic=f"T{j}", sub_string="*") for j in range(subscriptions)
                ],
            )
            for i in range(count)
        ],
        producer_data_set=[ProducerData(group_name=f"many-{i}") for i in range(count)],
    ).to_json()


def test_others_are_served_while_a_long_heartbeat_is_taken(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller) as many,
            Client(controller) as other,
        ):
            await other.heartbeat("G")
            broker = controller.broker
            taken = asyncio.create_task(many.ask(RequestCode.HEART_BEAT, None, many_groups(3000)))
            await until_async(lambda: "many-0" in broker.consumer_manager.consumer_table)
            assert (await other.heartbeat("G")).code == ResponseCode.SUCCESS
            assert not taken.done() and "many-2999" not in broker.consumer_manager.consumer_table
            assert (await taken).code == ResponseCode.SUCCESS
            assert not broker.topic_config_manager.unsettled
            assert '"%RETRY%many-2999"' in (tmp_path / "store" / "config" / "topics.json").read_text()
            assert len(broker.consumer_manager.consumer_table) == 3001
            assert len(broker.producer_manager.group_channel_table) == 3000

    run(main())


def test_a_client_that_closes_during_a_long_heartbeat_leaves_nothing(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as other:
            consumers, producers = controller.broker.consumer_manager, controller.broker.producer_manager
            await other.heartbeat("G")
            async with Client(controller) as many:
                taken = asyncio.create_task(many.ask(RequestCode.HEART_BEAT, None, many_groups(3000)))
                await until_async(lambda: "many-0" in consumers.consumer_table)
                assert "many-2999" not in consumers.consumer_table
            await asyncio.wait([taken])
            assert taken.exception() is not None
            await until_async(lambda: not controller.server.in_flight, "the heartbeat has ended")
            await until_async(lambda: list(consumers.consumer_table) == ["G"])
            assert not producers.group_channel_table
            assert (await other.heartbeat("G")).code == ResponseCode.SUCCESS

    run(main())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: many_groups(5001), "names 10002 groups, 10000 groups are allowed"),
        (lambda: many_groups(101, 199), "names 20099 subscriptions, 20000 subscriptions are allowed"),
        (lambda: b"[" + b" " * 4 * 1024 * 1024 + b"]", "has 4194306 bytes, 4194304 bytes are allowed"),
    ],
    ids=["groups", "subscriptions", "bytes"],
)
def test_a_heartbeat_has_limits(tmp_path, body, words):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            refused = await client.ask(RequestCode.HEART_BEAT, None, body())
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert words in refused.remark and "several client instances" in refused.remark
            assert not controller.broker.consumer_manager.consumer_table
            assert (await client.heartbeat()).code == ResponseCode.SUCCESS

    run(main())
