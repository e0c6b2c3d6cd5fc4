"""A message that the disk has changed: RocketMQ's consumers at mqlake's broker, and mqlake's at RocketMQ's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.client import ConsumerConfig, Message, MessageClientExt, Producer, PullConsumer
from mqlake.remoting.loop import run
from mqlake.store import ReadOnlyStore
from tests.interop.brokers import JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaClients, message
from tests.store.small_store import flip
from tests.waiting import PATIENCE_S, until

COUNT, HIT = 60, 16
OTHERS = [b"body %d" % number for number in range(COUNT) if number != HIT]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def place_of(store: Path, topic: str, number: int) -> tuple[Path, int]:
    """File and position of a message of queue 0, once all have come."""
    with ReadOnlyStore(store) as view:

        def all_there() -> bool:
            view.refresh()
            return view.max_offset_in_queue(topic, 0) == COUNT

        until(all_there)
        unit = view.consume_queues.get(topic, 0).get(number)  # type: ignore[union-attr]
        file = view.commit_log_files.find_mapped_file_by_offset(unit.physical_offset)
        assert file is not None
        return Path(file.path), unit.physical_offset - file.file_from_offset


@pytest.mark.parametrize("position", [15, 7, 87], ids=["queue", "magic", "body length"])
def test_javas_push_consumer_gets_all_others(
    java_clients: JavaClients, broker: MqlakeBroker, position: int
) -> None:
    topic = f"Damaged{position}"
    java_clients.topic(broker, topic, 1)
    with java_clients.producer(broker) as producer:
        producer.send(topic, "sync", [message(b"body %d" % number) for number in range(COUNT)])
    path, at = place_of(broker.log.parent / "store" / "broker-0", topic, HIT)
    flip(path, at + position)
    with java_clients.push(broker, f"GID_{topic}", topic) as consumer:
        found = consumer.take(COUNT - 1)
        assert sorted(each["body"] for each in found) == sorted(OTHERS)
    line = f"{path}: corrupt at byte {at}: message {HIT} of {topic}-0 should be here"
    assert broker.log.read_text().count(line) == 1


def test_mqlakes_consumers_get_all_others_from_a_broker_that_gives_out_what_it_has(
    java_clients: JavaClients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(broker: JavaBroker) -> None:
        async with Producer("PG", broker.namesrv) as producer:
            for number in range(COUNT):
                await producer.send(Message("Damaged", b"body %d" % number))

    async def read(broker: JavaBroker) -> list[MessageClientExt]:
        config, found = ConsumerConfig(on_undecodable="skip"), []
        async with (
            asyncio.timeout(PATIENCE_S),
            PullConsumer("GID_reader", broker.namesrv, config) as consumer,
        ):
            (queue,) = await consumer.fetch_message_queues("Damaged")
            await consumer.assign([queue], offsets={queue: 0})
            while consumer.position(queue) < COUNT:
                found += await consumer.poll()
        return found

    with JavaBroker(tmp_path) as broker:
        java_clients.topic(broker, "Damaged", 1)
        run(send(broker))
        path, at = place_of(tmp_path / "store", "Damaged", HIT)
        for position in (7, 3, 87):  # magic, size, body length
            flip(path, at + position)
            assert [each.body for each in run(read(broker))] == OTHERS
            flip(path, at + position)
    skipped = [record.getMessage() for record in caplog.records if "skipped: message" in record.getMessage()]
    assert len(skipped) == 3 and all(f"queue 0, queue offset {HIT} cannot" in line for line in skipped)
