"""RocketMQ's own clients send and consume in every way they know.

The same tests hold against RocketMQ's broker: MQLAKE_TEST_BROKER=java pytest tests/interop/test_broker_java_client.py
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.client.blocking import PushConsumer
from mqlake.client.config import ClientConfig
from mqlake.client.consume.listener import ConsumeResult
from mqlake.console.app import ConsoleConfig
from tests.console.live import serving
from tests.interop.brokers import Broker, any_broker
from tests.interop.java_client import JavaClients, JavaProducer, message
from tests.interop.java_peer import JavaPeerError, seeded_body
from tests.interop.java_wire import Json
from tests.waiting import until

QUEUES = 4
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with any_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def producer(broker: Broker, java_clients: JavaClients) -> Iterator[JavaProducer]:
    with java_clients.producer(broker) as producer:
        yield producer


@pytest.fixture
def topic(broker: Broker, java_clients: JavaClients) -> str:
    name = f"Topic{next(_names)}"
    java_clients.topic(broker, name, QUEUES)
    return name


@pytest.fixture
def group() -> str:
    return f"GID_{next(_names)}"


def bodies(messages: Iterable[Json]) -> list[bytes]:
    return [each["body"] for each in messages]


def numbered(count: int, **fields: object) -> list[Json]:
    return [message(b"%d" % n, **fields) for n in range(count)]


def same(found: Iterable[Json], sent: Iterable[bytes]) -> None:
    """Each exactly once, in whatever order."""
    assert Counter(bodies(found)) == Counter(sent)


def in_order(queue: list[Json]) -> None:
    assert [each["queueOffset"] for each in queue] == list(range(len(queue)))


# --- sending


def test_sync_sends_are_stored_as_they_were_answered(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str
):
    bodies = [b"x", bytes(range(256)), "中文 ✓".encode(), seeded_body("large", 200_000), b" " * 50_000]
    sent = [
        message(
            body,
            tags=f"tag{n}",
            keys=f"key{n} other",
            properties={"color": "red", "x": "y z", "text": "\u00e9 =:{}"},
            flag=n,
        )
        for n, body in enumerate(bodies)
    ]
    results = producer.send(topic, "sync", sent)
    assert [result["status"] for result in results] == ["SEND_OK"] * len(sent)

    queues = java_clients.all_of(broker, topic, len(sent))
    for queue in queues.values():
        in_order(queue)
    for n, result in enumerate(results):
        stored = queues[result["queueId"]][result["queueOffset"]]
        assert stored["body"] == bodies[n]
        assert (stored["tags"], stored["keys"], stored["flag"]) == (f"tag{n}", f"key{n} other", n)
        assert stored["properties"]["UNIQ_KEY"] == result["msgId"]
        for name, value in {"color": "red", "x": "y z", "text": "\u00e9 =:{}"}.items():
            assert stored["properties"][name] == value


def test_async_and_oneway(java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str):
    results = producer.send(topic, "async", [message(b"a%d" % n) for n in range(500)])
    places = {(result["queueId"], result["queueOffset"]) for result in results}
    assert len(places) == 500
    producer.send(topic, "oneway", [message(b"o%d" % n) for n in range(100)])
    queues = java_clients.all_of(broker, topic, 600)
    for queue in queues.values():
        in_order(queue)
    same(
        itertools.chain(*queues.values()),
        [*(b"a%d" % n for n in range(500)), *(b"o%d" % n for n in range(100))],
    )


def test_to_a_queue_and_by_a_selector(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str
):
    producer.send(topic, "queue", [message(b"%d" % n, queueId=n % QUEUES) for n in range(40)])
    producer.send(topic, "ordered", [message(b"%d" % (40 + n), shard=n % 2) for n in range(20)])
    queues = java_clients.all_of(broker, topic, 60)
    assert {queue_id: bodies(queue) for queue_id, queue in queues.items()} == {
        queue_id: [
            *(b"%d" % n for n in range(40) if n % QUEUES == queue_id),
            *(b"%d" % (40 + n) for n in range(20) if n % 2 == queue_id),
        ]
        for queue_id in range(QUEUES)
    }


def test_batches_stay_together(java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str):
    batches = [
        [message(b"%d.%d" % (b, n), tags=f"t{n}", properties={"n": f"{n}"}) for n in range(32)]
        for b in range(5)
    ]
    results = [producer.send(topic, "batch", batch, queueId=1)[0] for batch in batches]
    assert [result["queueOffset"] for result in results] == [0, 32, 64, 96, 128]
    assert all(len(result["offsetMsgId"].split(",")) == 32 for result in results)
    queues = java_clients.all_of(broker, topic, 160)
    in_order(queues[1])
    assert bodies(queues[1]) == [b"%d.%d" % (b, n) for b in range(5) for n in range(32)]
    assert [(each["tags"], each["properties"]["n"]) for each in queues[1]] == [
        (f"t{n}", f"{n}") for _ in range(5) for n in range(32)
    ]


def test_a_topic_is_made_by_the_first_send(java_clients: JavaClients, broker: Broker, producer: JavaProducer):
    topic = f"MadeBySend{next(_names)}"
    (result,) = producer.send(topic, "sync", [message(b"first")])
    assert result["status"] == "SEND_OK"
    until(lambda: producer.queues(topic) == [0, 1, 2, 3])
    same(itertools.chain(*java_clients.all_of(broker, topic, 1).values()), [b"first"])


def test_a_delayed_message_comes_later(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with java_clients.push(broker, group, topic) as consumer:
        # a Java consumer pulls from a new queue for the first time after half a second, or after one and a half
        producer.send(topic, "queue", [message(b"pulled", queueId=n) for n in range(QUEUES)])
        consumer.take(QUEUES)
        (now, later) = producer.send(topic, "sync", [message(b"now"), message(b"later", delayLevel=1)])
        assert (now["status"], later["status"]) == ("SEND_OK", "SEND_OK")
        first, second = consumer.take(QUEUES + 2)[QUEUES:]
    assert (first["body"], second["body"]) == (b"now", b"later")
    assert second["topic"] == topic
    assert second["receivedAt"] - second["bornTimestamp"] >= 1000


# --- consuming


def test_tags_and_sql_choose(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    all_of_it = [
        message(
            b"%d" % n, tags=f"T{n % 3}", properties={"n": str(n), **({"even": "yes"} if n % 2 == 0 else {})}
        )
        for n in range(60)
    ]
    with (
        java_clients.push(broker, f"{group}_tags", topic, tags="T0 || T2") as by_tags,
        java_clients.push(
            broker, f"{group}_sql", topic, sql="n BETWEEN 10 AND 19 AND even IS NOT NULL"
        ) as by_sql,
        java_clients.pull(broker, f"{group}_pull", topic=topic, sql="TAGS = 'T1' OR n > 57") as pulled_by_sql,
    ):
        producer.send(topic, "sync", all_of_it)
        tagged, chosen = by_tags.take(40), by_sql.take(5)
        pulled = pulled_by_sql.poll(21)
        producer.send(topic, "sync", [message(b"end", tags="T0", properties={"n": "12"})])
        by_tags.take(41)
    same(tagged, [b"%d" % n for n in range(60) if n % 3 != 1])
    same(chosen, [b"%d" % n for n in range(10, 20, 2)])
    same(pulled, [b"%d" % n for n in range(60) if n % 3 == 1 or n > 57])


def test_orderly_consumers_keep_the_order_of_each_queue(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with (
        java_clients.push(broker, group, topic, orderly=True, failures=1) as one,
        java_clients.push(broker, group, topic, orderly=True, failures=1) as other,
    ):
        until(lambda: len(one.queues(topic)) == len(other.queues(topic)) == QUEUES // 2)
        producer.send(topic, "ordered", [message(b"%d" % n, shard=n % QUEUES) for n in range(40)])
        until(lambda: len(one.take(0)) + len(other.take(0)) >= 80)
        found = [*one.take(0), *other.take(0)]
    # each fails once, where it stands: it comes again before the next
    for queue_id in range(QUEUES):
        wanted = [b"%d" % n for n in range(queue_id, 40, QUEUES) for _ in range(2)]
        assert bodies(each for each in found if each["queueId"] == queue_id) == wanted


def test_every_broadcasting_consumer_gets_every_message(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with (
        java_clients.push(broker, group, topic, broadcasting=True) as one,
        java_clients.push(broker, group, topic, broadcasting=True) as other,
    ):
        producer.send(topic, "sync", numbered(30))
        for consumer in (one, other):
            same(consumer.take(30), [b"%d" % n for n in range(30)])


def test_what_fails_comes_again_and_ends_in_the_dead_letter_queue(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with (
        java_clients.push(broker, group, topic, failures=99, maxReconsumeTimes=1) as failing,
        java_clients.push(broker, f"{group}_once", topic, failures=1) as recovering,
    ):
        producer.send(topic, "sync", [message(b"bad", tags="t", keys="k", properties={"p": "v"})])
        attempts, recovered = failing.take(2), recovering.take(2)
        dead = java_clients.all_of(broker, f"%DLQ%{group}", 1)[0]
    for each in (attempts, recovered):
        assert [(one["body"], one["reconsumeTimes"]) for one in each] == [(b"bad", 0), (b"bad", 1)]
        assert each[1]["receivedAt"] - each[0]["receivedAt"] >= 900
        # a retried message is shown under its own topic
        assert [one["topic"] for one in each] == [topic, topic]
        assert each[1]["properties"]["ORIGIN_MESSAGE_ID"]
    assert [(one["body"], one["tags"], one["keys"], one["properties"]["p"]) for one in dead] == [
        (b"bad", "t", "k", "v")
    ]
    assert dead[0]["properties"]["RETRY_TOPIC"] == topic


def test_request_and_reply(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with java_clients.push(broker, group, topic, reply=True) as replying:
        until(lambda: len(replying.queues(topic)) == QUEUES)
        replies = [producer.ask_for_reply(topic, b"question %d" % n) for n in range(3)]
    assert bodies(replies) == [b"QUESTION %d" % n for n in range(3)]


def test_lite_pull_seeks_and_goes_on_where_it_committed(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    producer.send(topic, "queue", numbered(100, queueId=2))
    with java_clients.pull(broker, group) as consumer:
        consumer.assign(topic, [2], begin=True)
        assert bodies(consumer.poll(100)) == [b"%d" % n for n in range(100)]
        consumer.ask("seek", topic=topic, queueId=2, offset=90)
        assert bodies(consumer.poll(10)) == [b"%d" % n for n in range(90, 100)]
        consumer.ask("seek", topic=topic, queueId=2, offset=0)
        got = consumer.poll(1)
        consumer.ask("commit")
        until(lambda: consumer.ask("committed", topic=topic, queueId=2)["offset"] >= len(got))
        committed = consumer.ask("committed", topic=topic, queueId=2)["offset"]
    with java_clients.pull(broker, group, topic=topic) as again:
        found = again.poll(100 - committed) if committed < 100 else []
    assert bodies(found) == [b"%d" % n for n in range(committed, 100)]


def test_a_consumer_waits_at_the_beginning_of_an_empty_queue(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    with java_clients.pull(broker, group) as consumer:
        consumer.assign(topic, begin=True)
        producer.send(topic, "queue", numbered(10, queueId=3))
        assert bodies(consumer.poll(10)) == [b"%d" % n for n in range(10)]


def test_offsets_by_time(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    producer.send(topic, "queue", numbered(10, queueId=0))
    stored = java_clients.all_of(broker, topic, 10)[0]
    times = [each["storeTimestamp"] for each in stored]
    with java_clients.pull(broker, group) as consumer:
        for timestamp in (0, *times, times[-1] + 1000):
            found = consumer.ask("offset", topic=topic, queueId=0, timestamp=timestamp)["offset"]
            if timestamp <= times[-1]:
                assert times[found] >= timestamp and (found == 0 or times[found - 1] < timestamp)


def test_queues_move_as_consumers_come_and_go(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str, group: str
):
    everything = set(range(QUEUES))
    sent: list[bytes] = []

    def send() -> None:
        messages = [b"%d" % (len(sent) + n) for n in range(40)]
        producer.send(topic, "sync", [message(body) for body in messages])
        sent.extend(messages)

    with java_clients.push(broker, group, topic) as one:
        until(lambda: one.queues(topic) == everything)
        send()
        with java_clients.push(broker, group, topic) as two:
            until(lambda: len(one.queues(topic)) == len(two.queues(topic)) == 2)
            assert one.queues(topic) | two.queues(topic) == everything
            send()
            with java_clients.push(broker, group, topic) as three:
                until(lambda: sorted(len(each.queues(topic)) for each in (one, two, three)) == [1, 1, 2])
                send()
                until(
                    lambda: len({*bodies(one.take(0)), *bodies(two.take(0)), *bodies(three.take(0))}) == 120
                )
                of_three = three.take(0)
            until(lambda: len(one.queues(topic)) == len(two.queues(topic)) == 2)
            of_two = two.take(0)
        until(lambda: one.queues(topic) == everything)
        send()
        until(lambda: len({*bodies(one.take(0)), *bodies(of_two), *bodies(of_three)}) == 160)
        of_one = one.take(0)
    assert of_two and of_three
    assert {*bodies(of_one), *bodies(of_two), *bodies(of_three)} == set(sent)


# --- what is refused


def test_members_that_subscribe_differently_are_shown(
    java_clients: JavaClients, broker: Broker, topic: str, group: str
) -> None:
    """By the console as a page and as JSON, and by `admin group connections`: a Java member and one of ours."""
    ours = PushConsumer(group, broker.namesrv, lambda *_: ConsumeResult.SUCCESS)
    ours.subscribe(topic, "Red || Green")

    def shown() -> Any:
        text = CliRunner().invoke(
            cli, ["admin", "group", "connections", "-n", broker.namesrv, group, "--json"]
        )
        return json.loads(text.stdout)["mismatches"]

    with (
        java_clients.push(broker, group, topic, tags="Blue"),
        ours,
        serving(ConsoleConfig(ClientConfig(namesrv_addr=broker.namesrv))) as served,
    ):
        [different] = until(shown, "both members are connected and have reported")
        assert different["topic"] == topic
        assert sorted(different["members"].values()) == ["TAG Blue", "TAG Red || Green"]
        browser = served.browser()
        assert browser.data(f"/groups/{group}")["mismatches"] == [different]
        page = browser.get(f"/groups/{group}").text
        assert f"Members subscribe to {topic} differently" in page
        assert all(client in page for client in different["members"])
        text = CliRunner().invoke(cli, ["admin", "group", "connections", "-n", broker.namesrv, group]).stdout
        assert f"{topic}: members subscribe differently" in text and "TAG Red || Green" in text
    with java_clients.push(broker, group, topic, tags="Blue"):
        until(lambda: shown() == [], "one member alone agrees with itself")


def test_what_cannot_be_sent_is_said(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer, topic: str
):
    (result,) = producer.send("no such:topic", "sync", [message(b"x")])
    assert "error" in result
    (result,) = producer.send(topic, "sync", [message(b"x" * (4 << 20), properties={"p": "x" * 40_000})])
    assert "CODE: 13" in result["error"]
    with pytest.raises(JavaPeerError, match="CODE"):
        java_clients.topic(broker, "no/such/topic")
    # and nothing else is disturbed
    (result,) = producer.send(topic, "sync", [message(b"x")])
    assert result["status"] == "SEND_OK"
