from __future__ import annotations

import pytest

from mqlake.broker.mqtrace.hooks import StatsType
from mqlake.broker.requests.send_back import handle_retry_and_dlq
from mqlake.errors import ResponseError
from mqlake.message import SCHEDULE_TOPIC, MessageExtBrokerInner
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import TOPIC_SYS_FLAG_UNIT_SUB, MessageQueue, TopicConfig
from mqlake.remoting.codes import CURRENT_VERSION, RequestCode, ResponseCode, Version
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader
from tests.broker.live_broker import Client, live_broker, put, run
from tests.broker.mqtrace.test_hooks import recorder_in
from tests.waiting import PATIENCE_S


async def send_back(client, message, *, delay_level=0, group="G", **fields):
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.physical_offset, group=group, delay_level=delay_level, origin_topic="T", **fields
    )
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert client.controller.broker.store.wait_until_dispatched(PATIENCE_S)
    return answer


def last(controller, topic, queue_id=0):
    end = controller.broker.store.max_offset_in_queue(topic, queue_id)
    (message,) = controller.broker.store.get_message("test", topic, queue_id, end - 1, 1).messages()
    return message


def test_it_comes_back_later_by_the_retry_topic(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            message = put(controller, "T", b"body", tags="tag", flag=3, born_host=("10.1.1.1", 9), queue_id=2)
            assert (await send_back(client, message)).code == ResponseCode.SUCCESS
            retry = controller.broker.topic_config_manager.select_topic_config("%RETRY%G")
            assert (retry.write_queue_nums, retry.perm) == (1, 6)
            delayed = last(controller, SCHEDULE_TOPIC, 2)  # level 3 + 0
            assert delayed.properties == {
                "TAGS": "tag",
                "RETRY_TOPIC": "T",
                "ORIGIN_MESSAGE_ID": message.msg_id,
                "DELAY": "3",
                "REAL_TOPIC": "%RETRY%G",
                "REAL_QID": "0",
            }
            assert (delayed.body, delayed.flag, delayed.reconsume_times) == (b"body", 3, 1)
            assert delayed.born_host == ("10.1.1.1", 9) and delayed.store_host == controller.broker.store_host
            # and once more: it waits longer, and still says where it came from
            assert (await send_back(client, delayed)).code == ResponseCode.SUCCESS
            again = last(controller, SCHEDULE_TOPIC, 3)
            assert again.reconsume_times == 2
            assert again.properties["RETRY_TOPIC"] == "T"
            assert again.properties["ORIGIN_MESSAGE_ID"] == message.msg_id
            stats = controller.broker.broker_stats_manager
            assert stats.item("SNDBCK_PUT_NUMS", "T@G").value == 2

    run(main())


def test_the_consumer_may_choose_the_delay(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            message = put(controller)
            await send_back(client, message, delay_level=5)
            assert last(controller, SCHEDULE_TOPIC, 4).properties["DELAY"] == "5"
            await send_back(client, message, delay_level=99)
            assert last(controller, SCHEDULE_TOPIC, 17).properties["DELAY"] == "18"

    run(main())


@pytest.mark.parametrize("unit_mode", [False, True])
def test_the_retry_topic_of_a_unit_says_so(tmp_path, unit_mode):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            await send_back(client, put(controller), unit_mode=unit_mode)
            topics = controller.broker.topic_config_manager
            flag = TOPIC_SYS_FLAG_UNIT_SUB if unit_mode else 0
            assert topics.select_topic_config("%RETRY%G").topic_sys_flag == flag

    run(main())


@pytest.mark.parametrize(
    ("reconsume_times", "fields", "version", "is_dead"),
    [
        (15, {}, CURRENT_VERSION, False),
        (16, {}, CURRENT_VERSION, True),
        (3, {"max_reconsume_times": 3}, CURRENT_VERSION, True),
        (16, {"max_reconsume_times": 17}, CURRENT_VERSION, False),
        (3, {"max_reconsume_times": 3}, Version.V3_4_9 - 1, False),  # too old to say so
        (0, {"delay_level": -1}, CURRENT_VERSION, True),
    ],
)
def test_dead_letters(tmp_path, reconsume_times, fields, version, is_dead):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller, version=version) as client:
            told = recorder_in(client).consumes
            message = put(
                controller, "%RETRY%G", properties={"RETRY_TOPIC": "T"}, reconsume_times=reconsume_times
            )
            assert (await send_back(client, message, **fields)).code == ResponseCode.SUCCESS
            # who hears of a dead letter finds its topic at the name servers
            assert not controller.broker.topic_config_manager.unsettled
            assert (controller.broker.store.max_offset_in_queue("%DLQ%G", 0) == 1) is is_dead
            ((when, context),) = told
            assert (when, context.topic, context.consumer_group) == ("after", "T", "G")
            assert context.rcv_stat is (StatsType.SEND_BACK_TO_DLQ if is_dead else StatsType.SEND_BACK)
            if is_dead:
                dead = last(controller, "%DLQ%G")
                assert dead.properties["DELAY"] == "0" and dead.reconsume_times == reconsume_times + 1
                topic = controller.broker.topic_config_manager.select_topic_config("%DLQ%G")
                assert (topic.read_queue_nums, topic.perm) == (1, 6)
                assert controller.broker.broker_stats_manager.item("DLQ_PUT_NUMS", "T@G").value == 1

    run(main())


def test_what_is_refused(tmp_path):
    async def main():
        async with live_broker(tmp_path, autoCreateSubscriptionGroup="false") as controller:
            groups = controller.broker.subscription_group_manager
            groups.update_subscription_group_config(SubscriptionGroupConfig(group_name="G"))
            groups.update_subscription_group_config(
                SubscriptionGroupConfig(group_name="no-retry", retry_queue_nums=0)
            )
            controller.broker.topic_config_manager.update_topic_config(
                TopicConfig(topic_name="%RETRY%closed", read_queue_nums=1, write_queue_nums=1, perm=4)
            )
            groups.update_subscription_group_config(SubscriptionGroupConfig(group_name="closed"))
            async with Client(controller) as client:
                message = put(controller)
                answer = await send_back(client, message, group="unknown")
                assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                assert "autoCreateSubscriptionGroup" in answer.remark
                answer = await send_back(client, message, group="closed")
                assert answer.code == ResponseCode.NO_PERMISSION and "%RETRY%closed" in answer.remark
                answer = await send_back(client, message, group="no-retry")
                assert answer.code == ResponseCode.SUCCESS  # it wants none
                for offset in (-1, message.physical_offset + 4, 1 << 40):
                    message.physical_offset = offset
                    answer = await send_back(client, message)
                    assert answer.code == ResponseCode.SYSTEM_ERROR
                    assert f"look message by offset failed, {offset}" in answer.remark
                assert controller.broker.store.max_offset_in_queue(SCHEDULE_TOPIC, 2) == 0

    run(main())


def test_a_broker_that_may_not_be_written_or_cannot_be(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            message = put(controller)
            controller.broker.store.running_flags.make_disk_full("test")
            answer = await send_back(client, message)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark.startswith("SERVICE_NOT_AVAILABLE") and "try again" in answer.remark
            controller.broker.store.running_flags.make_disk_ok()
        async with live_broker(tmp_path, brokerPermission="4") as controller, Client(controller) as client:
            answer = await send_back(client, message)
            assert answer.code == ResponseCode.NO_PERMISSION and "brokerPermission is 4" in answer.remark

    run(main())


def retried(reconsume_times):
    return MessageExtBrokerInner(
        "%RETRY%G", b"", properties={"RETRY_TOPIC": "T", "DELAY": "3"}, reconsume_times=reconsume_times
    )


def test_retries_that_are_sent(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller:
            message = retried(16)
            handle_retry_and_dlq(controller.broker, message, None, CURRENT_VERSION)
            assert message.topic == "%RETRY%G" and message.properties["DELAY"] == "3"
            for message, most in ((retried(17), None), (retried(3), 2)):
                handle_retry_and_dlq(controller.broker, message, most, CURRENT_VERSION)
                assert (message.topic, message.queue_id) == ("%DLQ%G", 0)
                assert message.properties["DELAY"] == "-1"
            message = retried(3)
            handle_retry_and_dlq(controller.broker, message, 2, Version.V3_4_9 - 1)
            assert message.topic == "%RETRY%G"
            # an orderly consumer has tried in place: it is dead at once
            controller.broker.rebalance_lock_manager.try_lock_batch("G", [MessageQueue(topic="T")], "c")
            message = retried(1)
            handle_retry_and_dlq(controller.broker, message, None, CURRENT_VERSION)
            assert message.topic == "%DLQ%G"
            bad = MessageExtBrokerInner("%RETRY%no group", b"")
            with pytest.raises(ResponseError, match="subscription group not exist"):
                handle_retry_and_dlq(controller.broker, bad, None, CURRENT_VERSION)

    run(main())
