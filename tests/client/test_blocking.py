"""The blocking classes against `mqlake serve`: from several threads, with a listener in threads."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.base.clock import now_ms
from mqlake.cli.main import cli
from mqlake.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageClientExt,
    blocking,
)
from mqlake.client.produce.request_reply import create_reply_message
from mqlake.errors import ClientClosedError, ClientError, NoNameServerError
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S, until

FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


def test_from_many_threads(mqlake_broker: MqlakeBroker) -> None:
    got: set[bytes] = set()
    threads: set[int] = set()
    done = threading.Event()

    def listener(messages: list[MessageClientExt], _: ConsumeContext) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.001)
        got.update(message.body for message in messages)
        if len(got) == 100:
            done.set()

    with blocking.Producer("G", mqlake_broker.namesrv) as producer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: producer.send(Message("many_threads", b"%d" % i)), range(50)))
        futures = [producer.send_async(Message("many_threads", b"%d" % i)) for i in range(50, 90)]
        producer.send_batch([Message("many_threads", b"%d" % i) for i in range(90, 99)])
        producer.send_oneway(Message("many_threads", b"99"))
        assert all(future.result(PATIENCE_S).send_status.name == "SEND_OK" for future in futures)
        with blocking.PushConsumer("C", mqlake_broker.namesrv, listener, FIRST) as consumer:
            consumer.subscribe("many_threads")
            assert done.wait(PATIENCE_S)
            consumer.suspend()
            consumer.resume()
            consumer.unsubscribe("many_threads")
    assert got == {b"%d" % i for i in range(100)} and len(threads) > 1


def test_pulling(mqlake_broker: MqlakeBroker) -> None:
    with blocking.Producer("G", mqlake_broker.namesrv) as producer:
        producer.send(Message("blocking_pull", b"x"))
        queue = producer.fetch_publish_message_queues("blocking_pull")[0]
        for i in range(3):
            producer.send(Message("blocking_pull", b"%d" % i), queue=queue)
    with blocking.PullConsumer("P", mqlake_broker.namesrv, FIRST) as consumer:
        assert queue in consumer.fetch_message_queues("blocking_pull")
        consumer.assign([queue])
        assert consumer.assignment() == {queue}
        consumer.seek_to_begin(queue)
        while (end := consumer.max_offset(queue)) < 3:
            pass  # what was sent is in its queue a moment after the answer
        found: list[MessageClientExt] = []
        while len(found) < end:
            found += consumer.poll(1)
        assert [message.queue_offset for message in found] == list(range(end)) and consumer.position(
            queue
        ) == end
        consumer.commit({queue: 1})
        assert consumer.committed(queue) == 1
        consumer.seek(queue, end - 1)
        consumer.pause([queue])
        assert consumer.poll(0.05) == []
        consumer.resume([queue])
        assert [message.queue_offset for message in consumer.poll(PATIENCE_S)] == [end - 1]
        consumer.seek_to_end(queue)
        assert consumer.begin_offset(queue) == consumer.offset_for_timestamp(queue, 0) == 0
        assert len(consumer.pull(queue, 0).messages()) == end
        with pytest.raises(ClientError):
            consumer.seek(queue, end + 1)
    with blocking.PullConsumer("P2", mqlake_broker.namesrv, FIRST) as consumer:
        consumer.subscribe("blocking_pull")
        assert consumer.poll(PATIENCE_S)
        consumer.unsubscribe("blocking_pull")


def test_asking(mqlake_broker: MqlakeBroker) -> None:
    with (
        blocking.Producer("A", mqlake_broker.namesrv) as asker,
        blocking.Producer("B", mqlake_broker.namesrv) as replier,
    ):
        asker.send(Message("blocking_ask", b"not a question"))

        def answer(messages: list[MessageClientExt], _: ConsumeContext) -> None:
            for message in messages:
                if message.body == b"?":
                    replier.send(create_reply_message(message, b"!"))

        with blocking.PushConsumer("R", mqlake_broker.namesrv, answer, FIRST) as consumer:
            consumer.subscribe("blocking_ask")
            assert asker.request(Message("blocking_ask", b"?"), timeout_s=PATIENCE_S).body == b"!"


def test_errors_come_through() -> None:
    producer = blocking.Producer("G", "127.0.0.1:1")
    with pytest.raises(ClientClosedError):
        producer.send(Message("T", b"x"))
    with producer, pytest.raises(NoNameServerError):
        producer.send(Message("T", b"x"))


def test_timer_messages_and_their_recall(tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path, {"recallMessageEnable": "true"}) as broker:
        with blocking.Producer("G", broker.namesrv) as producer:
            messages = [Message("Later", b"%d" % number) for number in range(3)]
            due = now_ms() + 3_600_000
            messages[0].delay_time_ms = 1500
            for message in messages[1:]:
                message.deliver_time_ms = due
            begun = now_ms()
            sent = [producer.send(message) for message in messages]
            assert all(each.recall_handle for each in sent)
            assert producer.recall_message("Later", sent[1].recall_handle or "") == sent[1].msg_id

            def mqlake(*arguments: str) -> Any:
                done = CliRunner().invoke(cli, [*arguments, "--json"], env={"MQLAKE_NAMESRV": broker.namesrv})
                assert done.exit_code == 0, done.output
                return [json.loads(line) for line in done.stdout.splitlines()]

            def waiting() -> dict[str, bool]:
                found = mqlake(
                    "store", "timers", str(tmp_path / "store" / "broker-0"), "--from", str(due - 1000)
                )
                return {each["uniqKey"]: each["isRecalled"] for each in found}

            until(lambda: waiting() == {sent[1].msg_id: True, sent[2].msg_id: False})
            listed = mqlake("admin", "timer", "list", "-n", broker.namesrv)
            assert {each["uniqKey"] for each in listed} >= {sent[1].msg_id, sent[2].msg_id}
            handle = sent[2].recall_handle or ""
            done = CliRunner().invoke(
                cli, ["admin", "timer", "recall", "Later", handle, "-n", broker.namesrv]
            )
            assert done.stdout.strip() == f"recalled {sent[2].msg_id}"
            until(lambda: waiting() == {sent[1].msg_id: True, sent[2].msg_id: True})
        with blocking.PullConsumer("P", broker.namesrv, FIRST) as consumer:
            queues = consumer.fetch_message_queues("Later")
            consumer.assign(queues)
            for queue in queues:
                consumer.seek_to_begin(queue)
            found: list[MessageClientExt] = until(lambda: consumer.poll(1))
        assert [message.body for message in found] == [b"0"]
        assert found[0].store_timestamp >= begun + 1500
        status = CliRunner().invoke(cli, ["admin", "timer", "status", "-n", broker.namesrv, "--json"])
        (figures,) = json.loads(status.stdout)
        assert figures["timerReadBehind"] == "0"
