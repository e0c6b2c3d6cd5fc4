"""Transactions between RocketMQ's producers and brokers and mqlake's, and stores that go from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlake.client.blocking import Admin
from mqlake.message import PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS
from mqlake.store.read_only import ReadOnlyStore
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.interop.mqlake_peer import contents
from tests.interop.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    JavaPeer,
    JavaTransactions,
    MqlakePeer,
    TransactionPeer,
    bodies,
)
from tests.waiting import until

CHECK_MAX = 3
SETTINGS = {
    "transactionTimeOut": 800,
    "transactionCheckInterval": 400,
    "transactionCheckMax": CHECK_MAX,
    "transactionOpBatchInterval": 50,
}
# RocketMQ's broker is told when it may ask, of anything
NEVER_MS, SOON_MS = 600_000, SETTINGS["transactionTimeOut"]
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"

Start = Callable[[str], TransactionPeer]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTransactions]:
    with JavaTransactions(tmp_path_factory.mktemp("java")) as java:
        yield java


def make_topic(broker: Broker, topic: str) -> None:
    with Admin(broker.namesrv) as admin:
        admin.create_topic(topic, queues=2)


def may_ask(broker: Broker, may: bool) -> None:
    """Of what is open, or not yet: the producer may be about to end it."""
    if isinstance(broker, JavaBroker):
        configure(broker, transactionTimeOut=SOON_MS if may else NEVER_MS)


def configure(broker: Broker, **settings: int) -> None:
    texts = {key: str(value) for key, value in settings.items()}
    with Admin(broker.namesrv) as admin:
        admin.ask(lambda each: each.brokers.update_broker_config(broker.address, texts))


def every_answer(broker: Broker, start: Start) -> None:
    """Commit, rollback, answers to the broker's question, another member of the group, none at all.

    RocketMQ's broker may ask for what has just ended, so those answer ROLLBACK_MESSAGE."""
    may_ask(broker, False)
    make_topic(broker, "T")
    producer = start("PG")
    assert producer.send("T", "committed", COMMIT, ROLLBACK) == COMMIT
    assert producer.send("T", "rolled back", ROLLBACK, ROLLBACK) == ROLLBACK
    assert producer.send("T", "asked, committed", UNKNOWN, COMMIT) == UNKNOWN
    producer.send("T", "asked, rolled back", UNKNOWN, ROLLBACK)
    producer.send("T", "asked for ever", UNKNOWN, UNKNOWN)
    until(lambda: "committed" in bodies(broker.namesrv, "T"))
    may_ask(broker, True)
    until(lambda: producer.asked().count("asked for ever") == CHECK_MAX)
    until(lambda: bodies(broker.namesrv, "T") == ["asked, committed", "committed"])
    with Admin(broker.namesrv) as admin:
        until(lambda: admin.topic_exists(DISCARDED))
    until(lambda: bodies(broker.namesrv, DISCARDED) == ["asked for ever"])
    if isinstance(broker, MqlakeBroker):
        assert set(producer.asked()) == {"asked, committed", "asked, rolled back", "asked for ever"}

    may_ask(broker, False)
    other = start("PG")
    other.send("T", "other", COMMIT, ROLLBACK)  # so that the broker knows it
    producer.send("T", "by another", UNKNOWN, COMMIT)
    producer.stop()
    until(lambda: "other" in bodies(broker.namesrv, "T"))
    may_ask(broker, True)
    until(lambda: "by another" in bodies(broker.namesrv, "T"))
    other.stop()
    assert bodies(broker.namesrv, "T") == ["asked, committed", "by another", "committed", "other"]


@pytest.mark.java
def test_rocketmqs_producer_at_mqlakes_broker(tmp_path: Path, java: JavaTransactions) -> None:
    with MqlakeBroker(tmp_path, SETTINGS) as broker:
        every_answer(broker, lambda group: JavaPeer(java, broker.namesrv, group))


def test_mqlakes_producer_at_mqlakes_broker(tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path, SETTINGS) as broker:
        every_answer(broker, lambda group: MqlakePeer(broker.namesrv, group))


@pytest.mark.java
def test_stores_go_from_one_broker_to_the_other_with_what_is_open(tmp_path: Path) -> None:
    """mqlake's producer at RocketMQ's broker, then RocketMQ's store at mqlake's broker, then back; each is killed."""
    java, store = JavaBroker(tmp_path, SETTINGS), tmp_path / "store"
    with java:
        every_answer(java, lambda group: MqlakePeer(java.namesrv, group, immune=False))
        # from now on nothing is discarded while a producer finds its next broker; RocketMQ keeps this in its file
        patient = {"transactionCheckMax": 1000}
        configure(java, **patient)
        leave_open(java, "java")
        java.kill()
        with MqlakeBroker(tmp_path / "serve", {**SETTINGS, **patient, "storePathRootDir": store}) as mqlake:
            settle(mqlake, "java")
            leave_open(mqlake, "mqlake")
        java.start()
        settle(java, "mqlake")
        java.kill()
    same_shapes(store)


def leave_open(broker: Broker, name: str) -> None:
    may_ask(broker, False)
    make_topic(broker, f"T-{name}")
    producer = MqlakePeer(broker.namesrv, f"PG-{name}", immune=isinstance(broker, MqlakeBroker))
    for number in range(3):
        producer.send(f"T-{name}", f"ended {number}", COMMIT, ROLLBACK)
        producer.send(f"T-{name}", f"open {number}", UNKNOWN, COMMIT)
    until(lambda: len(bodies(broker.namesrv, f"T-{name}")) >= 3)
    producer.stop()


def settle(broker: Broker, name: str) -> None:
    producer = MqlakePeer(broker.namesrv, f"PG-{name}", topics=(f"T-{name}",))
    may_ask(broker, True)
    until(lambda: len(bodies(broker.namesrv, f"T-{name}")) >= 6)
    found = bodies(broker.namesrv, f"T-{name}")
    assert set(found) == {f"{what} {number}" for what in ("ended", "open") for number in range(3)}
    producer.stop()


def same_shapes(root: Path) -> None:
    """What mqlake stored for a message, and for its half message and its end, is what RocketMQ did."""
    with ReadOnlyStore(root) as store:
        records = list(contents(store).records)
    by_broker = {
        name: [
            next(each for each in records if is_of(each) and each["body"] == b"ended 0")
            for is_of in (
                lambda each, name=name: (
                    each["properties"].get("REAL_TOPIC") == f"T-{name}"
                    and each["topic"].startswith("RMQ_SYS")
                ),
                lambda each, name=name: each["topic"] == f"T-{name}",
            )
        ]
        for name in ("java", "mqlake")
    }
    for theirs, ours in zip(by_broker["java"], by_broker["mqlake"], strict=True):
        own = {PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS}
        assert ours["properties"].keys() - own == theirs["properties"].keys()
        for field in ("sysFlag", "flag", "reconsumeTimes", "bodyCrc", "magicCode"):
            assert ours[field] == theirs[field], field
    for half, final in by_broker.values():
        assert final["preparedTransactionOffset"] == half["physicalOffset"]
        assert half["queueId"] == 0 and half["preparedTransactionOffset"] == 0
    ops = [each for each in records if each["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    assert {tuple(sorted(op["properties"].items())) for op in ops} == {(("TAGS", "d"), ("WAIT", "true"))}
    assert {(op["sysFlag"], op["flag"], op["queueId"]) for op in ops} == {(0, 0, 0)}
    assert all(op["body"].endswith(b",") for op in ops)


def test_a_broker_that_is_killed_between_the_two_steps_asks(tmp_path: Path) -> None:
    # what has ended is noted in memory only, and nothing is discarded while the producer finds the broker again
    settings = {**SETTINGS, "transactionOpBatchInterval": 60_000, "transactionCheckMax": 1000}
    with MqlakeBroker(tmp_path, settings) as broker:
        make_topic(broker, "T")
        producer = MqlakePeer(broker.namesrv, "PG", topics=("T",))
        for number in range(20):
            producer.send("T", f"ended {number}", COMMIT)
            producer.send("T", f"open {number}", UNKNOWN, COMMIT if number % 2 else ROLLBACK)
        until(lambda: sum(each.startswith("ended") for each in bodies(broker.namesrv, "T")) == 20)
        broker.kill()
        broker.start()
        producer.send("T", "last", UNKNOWN, COMMIT)
        expected = ["last", *(f"ended {n}" for n in range(20)), *(f"open {n}" for n in range(1, 20, 2))]
        until(lambda: len(bodies(broker.namesrv, "T")) >= len(expected))
        assert bodies(broker.namesrv, "T") == sorted(expected)
        assert not any(body.startswith("ended") for body in producer.asked())
        producer.stop()
