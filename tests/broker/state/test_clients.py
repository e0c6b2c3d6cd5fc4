from __future__ import annotations

from mqlake.broker.state.clients import ClientChannelInfo, ConsumerManager, ProducerManager, monotonic_ms
from mqlake.remoting.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from mqlake.remoting.codes import LanguageCode
from tests.clock import Clock

FROM_FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class FakeConnection:
    """As much of a connection as these managers use."""

    def __init__(self, name: str) -> None:
        self.remote_address = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def on_change(self, group, connections) -> None:
        self.events.append(("change", group, {c.remote_address for c in connections}))

    def on_register(self, group, subscriptions) -> None:
        self.events.append(("register", group, {s.topic for s in subscriptions}))

    def on_unregister(self, group) -> None:
        self.events.append(("unregister", group))

    def take(self, kind: str) -> list[tuple[object, ...]]:
        taken = [event[1:] for event in self.events if event[0] == kind]
        self.events = [event for event in self.events if event[0] != kind]
        return taken


class Consumers:
    def __init__(self) -> None:
        self.clock, self.wall, self.heard = Clock(1_000_000), Clock(1_000_000), Heard()
        self.manager = ConsumerManager(120_000, 600_000, self.wall, self.clock)
        self.manager.append_consumer_ids_change_listener(self.heard)

    def heartbeat(
        self,
        connection: FakeConnection,
        group: str = "G",
        topics: tuple[str, ...] | None = ("T",),
        *,
        client_id: str = "",
        model: MessageModel = MessageModel.CLUSTERING,
        version: int = 1,
        notify: bool = True,
    ) -> bool:
        info = ClientChannelInfo(
            connection, client_id or connection.remote_address, LanguageCode.JAVA, 479, self.clock.now
        )
        subscriptions = None
        if topics is not None:
            subscriptions = [SubscriptionData(topic=topic, sub_version=version) for topic in topics]
        return self.manager.register_consumer(
            group, info, ConsumeType.CONSUME_PASSIVELY, model, FROM_FIRST, subscriptions, notify
        )


def test_members_come_and_the_others_are_told():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    assert consumers.heartbeat(c)
    assert not consumers.heartbeat(c)  # nothing new
    assert consumers.heartbeat(d)
    assert consumers.heard.take("change") == [("G", {"c"}), ("G", {"c", "d"})]
    info = consumers.manager.get_consumer_group_info("G")
    assert info.all_client_ids() == ["c", "d"] and info.consume_from_where is FROM_FIRST
    assert consumers.manager.find_channel("G", "d").connection is d
    assert consumers.manager.find_channel("G", "x") is None


def test_subscriptions_change_with_heartbeats():
    consumers = Consumers()
    c = FakeConnection("c")
    consumers.heartbeat(c, topics=("T", "U"))
    consumers.heard.events.clear()
    assert consumers.heartbeat(c, topics=("U", "V"))
    assert consumers.heard.take("change") == [("G", {"c"})]
    assert consumers.heard.take("register") == [("G", {"U", "V"})]
    manager = consumers.manager
    assert manager.find_subscription_data("G", "T") is None
    assert manager.find_subscription_data("G", "V").topic == "V"
    assert manager.find_subscription_data_count("G") == 2
    assert manager.query_topic_consume_by_who("V") == {"G"}
    assert manager.query_topic_consume_by_who("T") == set()


def test_only_a_younger_subscription_replaces_the_known_one():
    consumers = Consumers()
    c = FakeConnection("c")
    consumers.heartbeat(c, version=5)
    consumers.heartbeat(c, version=4)
    assert consumers.manager.find_subscription_data("G", "T").sub_version == 5
    assert not consumers.heartbeat(c, version=6)  # the topics are the same, nobody need share anew
    assert consumers.manager.find_subscription_data("G", "T").sub_version == 6


def test_a_heartbeat_without_subscriptions_leaves_them():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    consumers.heartbeat(c)
    assert not consumers.heartbeat(c, topics=None)
    assert consumers.heartbeat(d, topics=None)
    assert consumers.manager.find_subscription_data("G", "T") is not None


def test_goodbye():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    consumers.heartbeat(c)
    consumers.heartbeat(d)
    consumers.heard.events.clear()
    consumers.manager.unregister_consumer("G", c)
    consumers.manager.unregister_consumer("G", c)
    consumers.manager.unregister_consumer("none", c)
    assert consumers.heard.events == [("change", "G", {"d"})]
    consumers.manager.unregister_consumer("G", d)
    assert consumers.heard.take("unregister") == [("G",)]
    assert consumers.manager.get_consumer_group_info("G") is None
    assert consumers.manager.query_topic_consume_by_who("T") == set()


def test_a_closed_connection_leaves_all_its_groups():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    consumers.heartbeat(c, "G")
    consumers.heartbeat(c, "H")
    consumers.heartbeat(d, "G")
    consumers.heard.events.clear()
    assert consumers.manager.do_channel_close_event(c)
    assert not consumers.manager.do_channel_close_event(c)
    assert sorted(consumers.heard.events) == [("change", "G", {"d"}), ("unregister", "H")]


def test_the_silent_are_closed_after_120_s():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    consumers.heartbeat(c)
    consumers.heartbeat(d)
    consumers.clock.now += 120_000
    consumers.heartbeat(d)
    consumers.manager.scan_not_active_channel()
    assert not c.closed
    consumers.heard.events.clear()
    consumers.clock.now += 1
    consumers.manager.scan_not_active_channel()
    assert c.closed and not d.closed
    assert consumers.heard.take("change") == [("G", {"d"})]


def test_broadcasting_members_share_nothing_and_are_not_told():
    consumers = Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    consumers.heartbeat(c, model=MessageModel.BROADCASTING)
    consumers.heartbeat(d, model=MessageModel.BROADCASTING)
    consumers.manager.do_channel_close_event(c)
    assert consumers.heard.take("change") == []


def test_a_group_may_not_want_notices():
    consumers = Consumers()
    consumers.heartbeat(FakeConnection("c"), notify=False)
    assert consumers.heard.take("change") == []


def test_another_client_on_the_same_connection_takes_its_place():
    consumers = Consumers()
    c = FakeConnection("c")
    consumers.heartbeat(c, client_id="one")
    assert not consumers.heartbeat(c, client_id="two")
    assert consumers.manager.get_consumer_group_info("G").all_client_ids() == ["two"]


def test_what_pulls_say_of_groups_without_heartbeats():
    consumers = Consumers()
    manager = consumers.manager
    manager.compensate_basic_consumer_info("G", ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING)
    manager.compensate_subscribe_data("G", "T", SubscriptionData(topic="T", sub_version=consumers.wall.now))
    assert manager.find_subscription_data("G", "T") is not None
    assert manager.find_subscription_data("G", "T", from_compensation_table=False) is None
    assert manager.get_consumer_group_info("G") is None
    info = manager.get_consumer_group_info("G", from_compensation_table=True)
    assert info.consume_type is ConsumeType.CONSUME_ACTIVELY
    consumers.wall.now += 600_001
    manager.scan_not_active_channel()
    assert manager.find_subscription_data("G", "T") is None


class Producers:
    def __init__(self) -> None:
        self.clock, self.wall = Clock(1_000_000), Clock(1_000_000)
        self.manager = ProducerManager(120_000, self.wall, self.clock)

    def heartbeat(self, connection: FakeConnection, group: str = "P") -> None:
        name = connection.remote_address
        self.manager.register_producer(
            group, ClientChannelInfo(connection, name, LanguageCode.GO, 317, self.clock.now)
        )


def test_producers_come_and_go():
    producers = Producers()
    manager = producers.manager
    c, d = FakeConnection("c"), FakeConnection("d")
    producers.heartbeat(c)
    producers.heartbeat(c, "Q")
    producers.heartbeat(d)
    assert set(manager.group_channel_table) == {"P", "Q"} and manager.find_channel("c") is c
    manager.unregister_producer("Q", c)
    manager.unregister_producer("Q", c)
    assert set(manager.group_channel_table) == {"P"} and manager.find_channel("c") is c
    manager.unregister_producer("P", c)
    assert manager.find_channel("c") is None and set(manager.group_channel_table) == {"P"}
    assert manager.do_channel_close_event(d) and not manager.do_channel_close_event(d)
    assert manager.group_channel_table == {} and manager.find_channel("d") is None


def test_silent_producers_are_closed():
    producers = Producers()
    c, d = FakeConnection("c"), FakeConnection("d")
    producers.heartbeat(c)
    producers.clock.now += 120_001
    producers.heartbeat(d)
    producers.manager.scan_not_active_channel()
    assert c.closed and not d.closed


def test_the_table_for_operators():
    producers = Producers()
    producers.heartbeat(FakeConnection("10.0.0.1:5"))
    (info,) = producers.manager.get_producer_table().data["P"]
    assert (info.client_id, info.remote_ip, info.language, info.version) == (
        "10.0.0.1:5",
        "10.0.0.1:5",
        "GO",
        317,
    )
    assert info.last_update_timestamp == producers.wall.now
    producers.clock.now += 7
    producers.wall.now += 7 - 3_600_000  # set back by an hour meanwhile
    (info,) = producers.manager.get_producer_table().data["P"]
    assert producers.wall.now - info.last_update_timestamp == 7


def test_a_clock_that_is_set_makes_nobody_look_silent():
    producers, consumers = Producers(), Consumers()
    c, d = FakeConnection("c"), FakeConnection("d")
    producers.heartbeat(c)
    consumers.heartbeat(d)
    for wall in (producers.wall, consumers.wall):
        wall.now += 3_600_000
    producers.manager.scan_not_active_channel()
    consumers.manager.scan_not_active_channel()
    assert not c.closed and not d.closed
    assert ClientChannelInfo(c, "c", LanguageCode.GO, 317).last_seen_ms <= monotonic_ms()
