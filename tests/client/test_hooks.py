"""Hooks of clients see each try and each call, and cannot break anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from mqlake.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
)
from mqlake.client.hooks import ConsumeMessageContext, SendMessageContext
from mqlake.errors import SendError
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker
from tests.waiting import until_async

REFUSED = {"DELAY": "1", "TRAN_MSG": "true"}


class Recorder:
    def __init__(self) -> None:
        self.sends: list[tuple[str, SendMessageContext]] = []
        self.consumes: list[tuple[str, ConsumeMessageContext]] = []

    def hook_name(self) -> str:
        return "Recorder"

    def send_message_before(self, context: SendMessageContext) -> None:
        assert context.send_result is None
        context.mq_trace_context = "kept"
        self.sends.append(("before", context))

    def send_message_after(self, context: SendMessageContext) -> None:
        self.sends.append(("after", context))

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        assert context.status == ""
        self.consumes.append(("before", context))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.consumes.append(("after", context))


class Broken(Recorder):
    def send_message_before(self, context: SendMessageContext) -> None:
        raise KeyError("broken")

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        raise KeyError("broken")


def test_sends(mqlake_broker: MqlakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        recorder = Recorder()
        config = ProducerConfig(send_message_hooks=[Broken(), recorder])
        async with Producer("hooked-producer", mqlake_broker.namesrv, config) as producer:
            message = Message("HookedSends", b"1")
            sent = await producer.send(message)
            (first, context), (then, same) = recorder.sends
            assert (first, then, context is same) == ("before", "after", True)
            assert (context.producer_group, context.message, context.batch) == (
                "hooked-producer",
                message,
                None,
            )
            assert (context.send_result, context.exception) == (sent, None)
            assert context.message_queue == sent.message_queue
            assert context.broker_addr == mqlake_broker.address
            assert context.mq_trace_context == "kept"

            batch = [Message("HookedSends", b"2"), Message("HookedSends", b"3")]
            await producer.send_batch(batch)
            assert recorder.sends[-1][1].batch == batch
            await producer.send_oneway(Message("HookedSends", b"4"))
            when, context = recorder.sends[-1]
            assert (when, context.send_result, context.exception) == ("after", None, None)

            tries = len(recorder.sends)
            with pytest.raises(SendError):
                await producer.send(Message("HookedSends", b"5", properties=REFUSED))
            assert len(recorder.sends) > tries
            assert recorder.sends[-1][1].send_result is None
            assert "delayed" in str(recorder.sends[-1][1].exception)

    run(main())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert set(errors) == {"hook Broken.send_message_before failed; messages are not affected"}


@pytest.mark.parametrize("is_async", [True, False])
def test_listeners(mqlake_broker: MqlakeBroker, is_async: bool) -> None:
    topic = f"HookedListener{is_async}"

    def listen(messages: list[Any], _: object) -> ConsumeResult:
        if messages[0].body == b"fails" and not messages[0].reconsume_times:
            raise ValueError("not this time")
        return ConsumeResult.SUCCESS

    async def listen_async(messages: list[Any], context: object) -> ConsumeResult:
        return listen(messages, context)

    async def main() -> None:
        recorder = Recorder()
        config = ConsumerConfig(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_message_hooks=[Broken(), recorder],
        )
        listener: Callable[..., Any] = listen_async if is_async else listen
        async with Producer("hooked-producer", mqlake_broker.namesrv) as producer:
            for body in (b"works", b"fails"):
                await producer.send(Message(topic, body))
        consumer = PushConsumer(f"hooked-{is_async}", mqlake_broker.namesrv, listener, config)
        consumer.subscribe(topic)
        async with consumer:

            def ended() -> list[ConsumeMessageContext]:
                return [context for when, context in recorder.consumes if when == "after"]

            await until_async(lambda: sum(context.success for context in ended()) == 2, "both are consumed")
            found = {(context.messages[0].body, context.success, context.status) for context in ended()}
            assert found == {
                (b"works", True, "SUCCESS"),
                (b"fails", False, "ValueError"),
                (b"fails", True, "SUCCESS"),
            }
            assert all(context.consumer_group == f"hooked-{is_async}" for context in ended())

    run(main())


def test_the_loop_is_not_needed_for_hooks_of_blocking_clients(mqlake_broker: MqlakeBroker) -> None:
    from mqlake.client import blocking

    recorder = Recorder()
    config = ProducerConfig(send_message_hooks=[recorder])
    with blocking.Producer("hooked-blocking", mqlake_broker.namesrv, config) as producer:
        sent = producer.send(Message("HookedBlocking", b"1"))
    assert [context.send_result for _, context in recorder.sends] == [sent, sent]
