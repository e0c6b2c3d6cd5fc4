"""Messages that cannot be decoded, at `mqlake serve`: every kind of consumer gets all the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mqlake.client import (
    Admin,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageClientExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from mqlake.client.blocking import PullConsumer as BlockingPullConsumer
from mqlake.client.consume import undecodable
from mqlake.client.consume.consume_service import REFUSALS_MAX
from mqlake.client.consume.undecodable import OnUndecodable, apply_policy, delivered_message
from mqlake.errors import ConfigError, UndecodableMessageError, UnknownKeyError
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.live import send_header
from tests.interop.brokers import Broker, MqlakeBroker
from tests.store.small_store import change, log_file
from tests.waiting import PATIENCE_S, until_async

NOT_COMPRESSED, UNKNOWN_TYPE = (b"not compressed", 0x1), (b"unknown", 0x501)
BOMB = (zlib.compress(bytes(4 << 20)), 0x1)
BAD_AT = {2: NOT_COMPRESSED, 5: UNKNOWN_TYPE, 6: BOMB}
COUNT = 9
GOOD = [number for number in range(COUNT) if number not in BAD_AT]


async def poisoned(broker: Broker, topic: str, queues: int = 1) -> None:
    """Messages 0 to 8 in queue 0; three of them say that they are compressed and are not as they say."""
    async with Admin(broker.namesrv) as admin, Producer("PG", broker.namesrv) as producer:
        await admin.create_topic(topic, queues=queues)
        route = await producer.client.topic_route(topic)
        address = route.broker_datas[0].broker_addrs[0]
        for number in range(COUNT):
            body, sys_flag = BAD_AT.get(number, (b"%d" % number, 0))
            properties = f"UNIQ_KEY\x01ID{number}\x02"
            header = send_header(topic, queue_id=0, sys_flag=sys_flag, properties=properties)
            request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, header, body)
            answer = await producer.client.api._client.invoke(address, request, PATIENCE_S)
            assert answer.code == 0, answer.remark
        queue = MessageQueue(topic=topic, broker_name=route.broker_datas[0].broker_name, queue_id=0)
        async with asyncio.timeout(PATIENCE_S):
            while await producer.client.api.get_max_offset(address, queue) < COUNT:
                await asyncio.sleep(0.01)


def config(on_undecodable: OnUndecodable = "raise", **more: Any) -> ConsumerConfig:
    return ConsumerConfig(
        on_undecodable=on_undecodable,
        max_body_size=1 << 20,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        pull_time_delay_when_exception_s=0.05,
        **more,
    )


@pytest.fixture(scope="module")
def topic(mqlake_broker: MqlakeBroker) -> str:
    run(poisoned(mqlake_broker, "Poisoned"))
    return "Poisoned"


def pulling(
    broker: MqlakeBroker,
    topic: str,
    settings: ConsumerConfig,
    scene: Callable[[PullConsumer, MessageQueue], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            PullConsumer("GID_pull", broker.namesrv, settings) as consumer,
        ):
            (queue,) = await consumer.fetch_message_queues(topic)
            await consumer.assign([queue], offsets={queue: 0})
            await scene(consumer, queue)

    run(main())


async def all_of(consumer: PullConsumer, queue: MessageQueue) -> list[MessageClientExt]:
    found: list[MessageClientExt] = []
    while consumer.position(queue) < COUNT:
        found += await consumer.poll()
    return found


def test_what_precedes_is_given_then_it_is_raised_until_it_is_passed(
    mqlake_broker: MqlakeBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []
    real = undecodable.apply_policy

    def counting(messages: list[MessageClientExt], *rest: Any) -> Any:
        unpacked.extend(message.body for message in messages)
        return real(messages, *rest)

    monkeypatch.setattr("mqlake.client.consume.pull_consumer.apply_policy", counting)

    async def scene(consumer: PullConsumer, queue: MessageQueue) -> None:
        assert [message.body for message in await consumer.poll()] == [b"0", b"1"]
        for _ in range(3):
            with pytest.raises(UndecodableMessageError) as error:
                await consumer.poll()
            assert consumer.position(queue) == 2
        assert len(unpacked) == len(set(unpacked)), "decoded once, however often it is raised"
        says = str(error.value)
        assert (
            "message ID2 of topic Poisoned, broker broker-0, queue 0, queue offset 2 cannot be decoded"
            in says
        )
        assert error.value.message.body == b"not compressed"
        await consumer.seek(queue, error.value.next_offset)
        assert [message.body for message in await consumer.poll()] == [b"3", b"4"]
        with pytest.raises(UndecodableMessageError, match="compression type 5 is not one of 0 to 3"):
            await consumer.poll()
        await consumer.seek(queue, 6)
        with pytest.raises(UndecodableMessageError, match=f"more than {1 << 20} bytes"):
            await consumer.poll()
        await consumer.seek(queue, 7)
        assert [message.body for message in await all_of(consumer, queue)] == [b"7", b"8"]

    pulling(mqlake_broker, topic, config(), scene)


def test_other_queues_go_on(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        await poisoned(mqlake_broker, "PoisonedOne", queues=2)
        async with (
            asyncio.timeout(PATIENCE_S),
            Producer("PG", mqlake_broker.namesrv) as producer,
            PullConsumer("GID_others", mqlake_broker.namesrv, config()) as consumer,
        ):
            bad, good = await consumer.fetch_message_queues("PoisonedOne")
            await consumer.assign([bad, good], offsets={bad: 0, good: 0})
            raised: list[int] = []
            bodies: list[bytes] = []
            for number in range(3):
                await producer.send(Message("PoisonedOne", b"other %d" % number), queue=good)
                while b"other %d" % number not in bodies or len(raised) <= number:
                    try:
                        bodies += [message.body for message in await consumer.poll()]
                    except UndecodableMessageError as error:
                        raised.append(error.queue_offset)
            assert set(raised) == {2}, "said again and again, and the others come"

    run(main())


def test_it_is_skipped(mqlake_broker: MqlakeBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(consumer: PullConsumer, queue: MessageQueue) -> None:
        assert [message.queue_offset for message in await all_of(consumer, queue)] == GOOD

    pulling(mqlake_broker, topic, config("skip"), scene)
    lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [f"message ID{number} of" in line for number, line in zip(BAD_AT, lines, strict=True)] == [
        True
    ] * 3


def test_it_is_given_as_it_is(mqlake_broker: MqlakeBroker, topic: str) -> None:
    async def scene(consumer: PullConsumer, queue: MessageQueue) -> None:
        found = await all_of(consumer, queue)
        assert [message.queue_offset for message in found] == list(range(COUNT))
        assert {m.queue_offset: m.body for m in found if m.undecodable} == {
            number: body for number, (body, _) in BAD_AT.items()
        }

    pulling(mqlake_broker, topic, config("raw"), scene)


def test_a_function_decides(mqlake_broker: MqlakeBroker, topic: str) -> None:
    def decide(message: MessageClientExt) -> MessageClientExt | None:
        if message.queue_offset == 6:
            raise ValueError("no idea")
        message.body = b"mended"
        return message if message.queue_offset == 5 else None

    async def scene(consumer: PullConsumer, _: MessageQueue) -> None:
        assert [message.body for message in await consumer.poll()] == [b"0", b"1", b"3", b"4", b"mended"]
        with pytest.raises(UndecodableMessageError, match="queue offset 6 ") as error:
            await consumer.poll()
        assert isinstance(error.value.__cause__, ValueError)

    pulling(mqlake_broker, topic, config(decide), scene)


def test_without_an_event_loop_and_by_hand(mqlake_broker: MqlakeBroker, topic: str) -> None:
    with BlockingPullConsumer("GID_blocking", mqlake_broker.namesrv, config()) as consumer:
        (queue,) = consumer.fetch_message_queues(topic)
        consumer.assign([queue])
        consumer.seek_to_begin(queue)
        assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"0", b"1"]
        with pytest.raises(UndecodableMessageError, match="queue offset 2 "):
            consumer.poll(PATIENCE_S)
        result = consumer.pull(queue, 0)
        with pytest.raises(UndecodableMessageError, match="queue offset 2 "):
            result.messages()
        assert [bool(message.undecodable) for message in result.decode(max_body_size=1 << 20)] == [
            number in BAD_AT for number in range(COUNT)
        ]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("on_undecodable", ["raise", "raw", "skip"])
def test_listeners_get_the_others_and_dead_letters_keep_it(
    mqlake_broker: MqlakeBroker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
    on_undecodable: OnUndecodable,
) -> None:
    group = f"GID_{on_undecodable}_{orderly}"
    seen: list[MessageClientExt] = []

    async def listener(messages: list[MessageClientExt], _: object) -> None:
        seen.extend(messages)

    async def main() -> None:
        settings = config(on_undecodable, consume_message_batch_max_size=4)
        consumer = PushConsumer(group, mqlake_broker.namesrv, listener, settings, orderly=orderly)
        consumer.subscribe(topic)
        expected = list(range(COUNT)) if on_undecodable == "raw" else GOOD
        async with asyncio.timeout(PATIENCE_S), consumer, Admin(mqlake_broker.namesrv) as admin:
            await until_async(lambda: COUNT in consumer.offset_store.offset_table.values())
            offsets = [message.queue_offset for message in seen]
            assert (offsets if orderly else sorted(offsets)) == expected
            if on_undecodable == "raise":
                await dead_letters(admin, group)

    run(main())
    lines = [record.getMessage() for record in caplog.records if "cannot be decoded" in record.getMessage()]
    assert len(lines) == (0 if on_undecodable == "raw" else len(BAD_AT))


async def dead_letters(admin: Admin, group: str) -> None:
    """As the broker has them; what cannot be unpacked is shown to operators as it is stored."""
    bodies = {}
    for number in BAD_AT:
        while number not in bodies:
            with contextlib.suppress(UnknownKeyError):  # the name server does not know it yet
                for found in await admin.query_message_by_uniq_key(f"%DLQ%{group}", f"ID{number}"):
                    bodies[number] = found.body
            await asyncio.sleep(0.01)
    assert bodies == {2: NOT_COMPRESSED[0], 5: UNKNOWN_TYPE[0], 6: bytes(4 << 20)}


def test_broadcast_ones_are_passed_over_and_said(
    mqlake_broker: MqlakeBroker, topic: str, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    seen: list[int] = []

    async def listener(messages: list[MessageClientExt], _: object) -> None:
        seen.extend(message.queue_offset for message in messages)

    async def main() -> None:
        settings = config(
            message_model=MessageModel.BROADCASTING,
            local_offset_store_dir=str(tmp_path),
        )
        consumer = PushConsumer("GID_broadcast", mqlake_broker.namesrv, listener, settings)
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), consumer:
            await until_async(lambda: COUNT in consumer.offset_store.offset_table.values())

    with caplog.at_level(logging.ERROR):
        run(main())
    assert sorted(seen) == GOOD
    assert sum("passed over: message ID" in record.getMessage() for record in caplog.records) == len(BAD_AT)


@pytest.mark.parametrize("orderly", [False, True])
def test_what_the_broker_refuses_to_keep_is_left_to_the_log(
    mqlake_broker: MqlakeBroker, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """A body that the disk has changed: the broker gives it out, but does not store it again."""
    topic, seen = f"Changed{orderly}", list[bytes]()

    async def listener(messages: list[MessageClientExt], _: object) -> None:
        seen.extend(message.body for message in messages)

    async def main() -> None:
        async with Admin(mqlake_broker.namesrv) as admin, Producer("PG", mqlake_broker.namesrv) as producer:
            await admin.create_topic(topic, queues=1)
            places = [
                int((await producer.send(Message(topic, b"body %d" % n))).offset_msg_id[-16:], 16)
                for n in range(3)
            ]
        log = log_file(mqlake_broker.log.parent / "store" / "broker-0")
        change(log, places[1] + 88, b"B")
        consumer = PushConsumer(f"GID_{topic}", mqlake_broker.namesrv, listener, config(), orderly=orderly)
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), consumer:
            await until_async(lambda: 3 in consumer.offset_store.offset_table.values())

    run(main())
    assert sorted(seen) == [b"body 0", b"body 2"]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("no dead letter yet" in line for line in lines) == REFUSALS_MAX
    assert (
        sum("passed over, the broker does not keep it" in line and "body CRC" in line for line in lines) == 1
    )


def test_settings_are_checked() -> None:
    with pytest.raises(
        ConfigError, match="on_undecodable is 'ignore': one of raise, skip, raw or a function"
    ):
        ConsumerConfig(on_undecodable="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_body_size is 0"):
        ConsumerConfig(max_body_size=0)


def test_what_is_not_asked_for_is_as_it_was() -> None:
    message = MessageClientExt("T", b"x")
    assert apply_policy([message], "skip", "G") == [message] and delivered_message(message) is message
