from __future__ import annotations

from mqlake.remoting.bodies.client import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.live_broker import Client, live_broker, put, run


async def commit(client, offset, *, group="G", topic="T", queue_id=0):
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def query(client, *, group="G", topic="T", queue_id=0, set_zero_if_not_found=None):
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=set_zero_if_not_found
    )
    return await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)


def prepare(controller, queues=2):
    controller.broker.topic_config_manager.update_topic_config(
        TopicConfig(topic_name="T", read_queue_nums=queues, write_queue_nums=queues)
    )
    controller.broker.subscription_group_manager.find_subscription_group_config("G")


def test_the_members_of_a_group(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller, "c") as c,
            Client(controller, "d") as d,
        ):
            header = GetConsumerListByGroupRequestHeader(consumer_group="G")
            answer = await c.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark.startswith("no consumer for this group, G")
            await c.heartbeat()
            await d.heartbeat()
            answer = await c.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            assert GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list == ["c", "d"]

    run(main())


def test_what_is_committed_is_answered_and_survives(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            prepare(controller)
            assert (await commit(client, 5)).code == ResponseCode.SUCCESS
            answer = await query(client)
            assert answer.code == ResponseCode.SUCCESS and answer.ext_fields == {"offset": "5"}
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            assert (await query(client)).ext_fields == {"offset": "5"}

    run(main())


def test_commits_that_are_refused(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            prepare(controller)
            for answer, code, words in (
                (
                    await commit(client, 5, group="H"),
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    "Group H not",
                ),
                (await commit(client, 5, topic="U"), ResponseCode.TOPIC_NOT_EXIST, "Topic U not exist"),
                (await commit(client, 5, queue_id=-1), ResponseCode.INVALID_PARAMETER, "queueId -1"),
                (await commit(client, 5, queue_id=2), ResponseCode.INVALID_PARAMETER, "of the 2 queues"),
                (await commit(client, -1), ResponseCode.INVALID_PARAMETER, "-1 is negative"),
            ):
                assert answer.code == code and words in answer.remark
            # headers without a field are system errors that name it, as in RocketMQ
            answer = await client.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", commitOffset="1"
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR and "queueId" in answer.remark
            assert controller.broker.consumer_offset_manager.offset_table == {}

    run(main())


def test_queues_a_topic_has_no_more_may_be_carried_on(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            prepare(controller, queues=4)
            await commit(client, 5, queue_id=3)
            prepare(controller, queues=1)
            assert (await commit(client, 6, queue_id=3)).code == ResponseCode.SUCCESS
            assert (await commit(client, 6, queue_id=2)).code == ResponseCode.INVALID_PARAMETER

    run(main())


def test_commits_from_before_a_reset_are_passed_over(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            prepare(controller)
            controller.broker.consumer_offset_manager.assign_reset_offset("T", "G", 0, 3)
            answer = await commit(client, 50)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.remark == "Offset has been previously reset"
            assert (await query(client)).ext_fields == {"offset": "3"}

    run(main())


def test_a_group_without_an_offset(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            prepare(controller)
            answer = await query(client)  # a queue without messages
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            await commit(client, 0, queue_id=1)  # 0 is an offset like any other
            assert (await query(client, queue_id=1)).ext_fields == {"offset": "0"}
            put(controller, "T", queue_id=0)
            answer = await query(client)  # all of it is there and young: nothing was missed
            assert answer.code == ResponseCode.SUCCESS and answer.ext_fields == {"offset": "0"}
            answer = await query(client, set_zero_if_not_found=True)
            assert answer.ext_fields == {"offset": "0"}
            answer = await query(client, set_zero_if_not_found=False)
            assert answer.code == ResponseCode.QUERY_NOT_FOUND and "do not set to zero" in answer.remark

    run(main())


QUEUES = {MessageQueue(topic="T", broker_name="broker-a", queue_id=number) for number in range(3)}


async def lock(client, queues, code=RequestCode.LOCK_BATCH_MQ):
    body = LockBatchRequestBody(consumer_group="G", client_id=client.client_id, mq_set=set(queues))
    answer = await client.ask(code, None, body.to_json())
    assert answer.code == ResponseCode.SUCCESS
    return LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set if answer.body else None


def test_locks(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller, "c") as c,
            Client(controller, "d") as d,
        ):
            first = sorted(QUEUES)[0]
            assert await lock(c, [first]) == {first}
            assert await lock(d, QUEUES) == QUEUES - {first}
            await lock(d, QUEUES, RequestCode.UNLOCK_BATCH_MQ)  # only its own
            assert await lock(c, QUEUES) == QUEUES
            assert not controller.broker.rebalance_lock_manager.is_lock_all_expired("G")
            answer = await c.ask(RequestCode.LOCK_BATCH_MQ, None, b'{"mqSet":[5]}')
            assert answer.code == ResponseCode.SYSTEM_ERROR and "mqSet[0]" in answer.remark
            for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                answer = await c.ask(code, None, b" " * 1024 * 1024 + b"{}")
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert "1048578 bytes, 1048576 are allowed" in answer.remark

    run(main())
