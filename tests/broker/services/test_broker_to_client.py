from __future__ import annotations

import json

from mqlake.remoting.bodies.client import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from tests.broker.live_broker import Client, live_broker, put, run
from tests.waiting import until_async


def queue(number):
    return MessageQueue(topic="T", broker_name="broker-a", queue_id=number)


def prepare(controller, queues=2, committed=3):
    controller.broker.topic_config_manager.update_topic_config(
        TopicConfig(topic_name="T", read_queue_nums=queues, write_queue_nums=queues)
    )
    for number in range(queues):
        controller.broker.consumer_offset_manager.commit_offset("", "G", "T", number, committed)
        for _ in range(5):
            put(controller, "T", queue_id=number)


def test_members_are_told_where_to_consume_from(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller, "c") as c,
            Client(controller, "d") as d,
        ):
            prepare(controller)
            await c.heartbeat()
            await d.heartbeat()
            ask = controller.broker_to_client.reset_offset
            answer = ask("T", "G", 0, is_force=False)
            assert answer.code == ResponseCode.SUCCESS
            assert ResetOffsetBody.from_json(answer.body).offset_table == {queue(0): 0, queue(1): 0}
            await until_async(
                lambda: all(m.told_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET) for m in (c, d))
            )
            (told,) = c.told_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            assert told.is_oneway and told.ext_fields["topic"] == "T" and told.ext_fields["group"] == "G"
            assert ResetOffsetBody.from_json(told.body).offset_table == {queue(0): 0, queue(1): 0}
            # to the end, which is further: only with force
            answer = ask("T", "G", -1, is_force=False)
            assert ResetOffsetBody.from_json(answer.body).offset_table == {queue(0): 3, queue(1): 3}
            answer = ask("T", "G", -1, is_force=True, is_c=True)
            assert ResetOffsetBody.from_json(answer.body).offset_table == {queue(0): 5, queue(1): 5}
            await until_async(lambda: len(d.told_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)) == 3)
            body = d.told_of(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)[2].body
            assert {entry.offset for entry in ResetOffsetBodyForC.from_json(body).offset_table} == {5}

    run(main())


def test_resets_that_cannot_be(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller, version=5) as old:
            ask = controller.broker_to_client.reset_offset
            assert ask("T", "G", 0, is_force=True).code == ResponseCode.TOPIC_NOT_EXIST
            prepare(controller)
            assert "H> not exist" in ask("T", "H", 0, is_force=True).remark
            answer = ask("T", "G", 0, is_force=True)
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            await old.heartbeat()
            answer = ask("T", "G", 0, is_force=True)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "does not support" in answer.remark

    run(main())


def test_members_say_how_far_they_are(tmp_path):
    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller, "c") as c,
            Client(controller, "d") as d,
        ):
            ask = controller.broker_to_client.get_consume_status
            answer = await ask("T", "G", None)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "No Any Consumer online" in answer.remark

            def status(_):
                body = GetConsumerStatusBody(message_queue_table={queue(0): 7})
                return RemotingCommand.create_response(body=body.to_json())

            c.answers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = status
            d.answers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = lambda _: (
                RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, "no")
            )
            await c.heartbeat()
            await d.heartbeat()
            answer = await ask("T", "G", None)
            assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {"c": {queue(0): 7}}
            answer = await ask("T", "G", "d")
            assert GetConsumerStatusBody.from_json(answer.body).consumer_table == {}

    run(main())


def test_any_request_can_be_passed_on(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            await client.heartbeat()
            client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = lambda _: RemotingCommand.create_response(
                body=json.dumps({"x": 1}).encode()
            )
            connection = controller.broker.consumer_manager.find_channel("G", "c").connection
            request = RemotingCommand.create_request(RequestCode.GET_CONSUMER_RUNNING_INFO)
            answer = await controller.broker_to_client.call_client(connection, request)
            assert json.loads(answer.body) == {"x": 1}
            # one that has gone is no error of the others
            await client.close()
            controller.broker_to_client.notify_consumer_ids_changed([connection], "G")

    run(main())
