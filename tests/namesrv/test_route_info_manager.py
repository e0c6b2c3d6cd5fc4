"""The behaviours of RocketMQ's RouteInfoManager, with a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqlake.namesrv import route_info_manager
from mqlake.namesrv.route_info_manager import BROKER_EXPIRES_MS, RouteInfoManager
from mqlake.remoting.bodies.route import QueueData
from mqlake.remoting.bodies.topic import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicQueueMappingInfo,
)
from tests.clock import Clock

MASTER, REPLICA = "10.0.0.1:10911", "10.0.0.2:10911"


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000)


@pytest.fixture
def routes(clock: Clock) -> RouteInfoManager:
    return RouteInfoManager(clock)


def wrapper(
    *topics: str, counter: int = 1, state: int = 0, **config: int
) -> TopicConfigAndMappingSerializeWrapper:
    return TopicConfigAndMappingSerializeWrapper(
        topic_config_table={
            topic: TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, **config)
            for topic in topics
        },
        data_version=DataVersion(counter=counter, state_version=state),
    )


def register(routes, addr=MASTER, name="a", broker_id=0, cluster="c", topics=("T", "U"), **more):
    config = {key: more.pop(key) for key in ("counter", "state", "perm", "topic_sys_flag") if key in more}
    return routes.register_broker(
        cluster,
        addr,
        name,
        broker_id,
        f"{addr}-ha",
        more.pop("body", None) or wrapper(*topics, **config),
        **more,
    )


def addresses(routes, topic="T"):
    route = routes.pickup_topic_route_data(topic)
    return None if route is None else {b.broker_name: b.broker_addrs for b in route.broker_datas}


def test_many_topics_are_taken_in_steps(routes, monkeypatch):
    monkeypatch.setattr(route_info_manager, "TOPICS_PER_STEP", 3)
    topics = [f"T{number}" for number in range(6)]
    for counter, expected in ((1, [3, 6]), (2, [6, 6])):
        register(routes, topics=topics, counter=counter, channel="connection")
        taken = [len(routes.topic_queue_table)]
        while routes.take_more_topics():
            taken.append(len(routes.topic_queue_table))
        assert [*taken, len(routes.topic_queue_table)] == expected
    assert not routes.take_more_topics()


@pytest.mark.parametrize("has_replica", [False, True])
def test_a_broker_that_goes_between_two_steps_leaves_no_topic_behind(routes, monkeypatch, has_replica):
    monkeypatch.setattr(route_info_manager, "TOPICS_PER_STEP", 3)
    if has_replica:
        register(routes, REPLICA, broker_id=1)
    register(routes, topics=[f"T{number}" for number in range(10)], channel="connection")
    routes.on_channel_destroy("connection")
    assert not routes.take_more_topics()
    # those of a master go with its last replica
    assert len(routes.topic_queue_table) == (3 if has_replica else 0)


def test_register_and_ask(routes):
    result = register(routes)
    assert (result.ha_server_addr, result.master_addr) == (None, None)
    route = routes.pickup_topic_route_data("T")
    assert [q.broker_name for q in route.queue_datas] == ["a"]
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (4, 6)
    assert addresses(routes) == {"a": {0: MASTER}}
    assert routes.pickup_topic_route_data("none") is None
    assert routes.get_all_topic_list().topic_list == {"T", "U"}
    assert routes.get_topics_by_cluster("c").topic_list == {"T", "U"}
    assert routes.get_topics_by_cluster("none").topic_list == set()
    info = routes.get_all_cluster_info()
    assert info.cluster_addr_table == {"c": {"a"}} and info.broker_addr_table["a"].broker_addrs == {0: MASTER}
    system = routes.get_system_topic_list()
    assert (system.topic_list, system.broker_addr) == ({"c", "a"}, MASTER)
    assert RouteInfoManager(Clock(1_000_000)).get_system_topic_list().broker_addr is None


def test_two_brokers_share_a_topic(routes):
    register(routes)
    register(routes, "10.0.0.9:1", "b", topics=("T", "V"))
    assert addresses(routes) == {"a": {0: MASTER}, "b": {0: "10.0.0.9:1"}}
    routes.unregister_broker("c", MASTER, "a", 0)
    assert addresses(routes) == {"b": {0: "10.0.0.9:1"}}
    assert addresses(routes, "U") is None
    assert routes.get_all_topic_list().topic_list == {"T", "V"}


def test_a_replica_learns_where_its_master_is(routes):
    assert register(routes, REPLICA, broker_id=1).master_addr is None
    register(routes)
    result = register(routes, REPLICA, broker_id=1)
    assert (result.master_addr, result.ha_server_addr) == (MASTER, f"{MASTER}-ha")
    assert addresses(routes) == {"a": {0: MASTER, 1: REPLICA}}
    group = routes.get_broker_member_group("c", "a")
    assert group.broker_addrs == {0: MASTER, 1: REPLICA}
    assert routes.get_broker_member_group("c", "none").broker_addrs == {}


def test_topics_come_from_the_master_only(routes):
    register(routes, REPLICA, broker_id=1)
    assert addresses(routes) is None
    register(routes)
    register(routes, REPLICA, broker_id=1, topics=("only", "there"))
    assert addresses(routes, "only") is None


def test_a_replica_that_becomes_master_has_one_address(routes):
    register(routes)
    register(routes, REPLICA, broker_id=1)
    routes.unregister_broker("c", MASTER, "a", 0)
    register(routes, REPLICA, broker_id=0)
    assert addresses(routes) == {"a": {0: REPLICA}}


def test_a_master_with_an_older_state_does_not_come_back(routes):
    register(routes, state=2)
    assert register(routes, "10.0.0.7:1", state=1) is not None
    assert addresses(routes) == {"a": {0: MASTER}}
    register(routes, "10.0.0.7:1", state=3)
    assert addresses(routes) == {"a": {0: "10.0.0.7:1"}}


def test_a_broker_that_is_refused_is_not_kept_alive(routes):
    """Its former place would never expire."""
    old = "10.0.0.7:1"
    register(routes, old, state=1)
    register(routes, state=2)
    assert {addr for _, addr in routes.broker_live_table} == {old, MASTER}
    register(routes, old, state=1)
    assert {addr for _, addr in routes.broker_live_table} == {MASTER}
    register(routes, "10.0.0.8:1", "b", state=0)
    register(routes, "10.0.0.9:1", "b", state=0)  # no older than what is there
    assert addresses(routes)["b"] == {0: "10.0.0.9:1"}


def test_mappings_are_those_of_the_broker_that_they_name(routes):
    body = wrapper("T", "U")
    body.topic_queue_mapping_info_map = {
        "T": TopicQueueMappingInfo(topic="T", bname="other"),
        "U": TopicQueueMappingInfo(topic="U"),
    }
    register(routes, body=body)
    found = {topic: set(by_broker) for topic, by_broker in routes.topic_queue_mapping_info_table.items()}
    assert found == {"T": {"other"}, "U": {"a"}}
    assert set(routes.pickup_topic_route_data("U").topic_queue_mapping_by_broker) == {"a"}


def test_one_topic_before_the_broker_is_refused(routes):
    assert register(routes, topics=("T",)) is None
    assert routes.broker_addr_table == {} and routes.cluster_addr_table == {}
    register(routes)
    assert register(routes, topics=("new",), counter=2) is not None
    assert addresses(routes, "new") == {"a": {0: MASTER}}
    assert addresses(routes, "T") is not None


def test_the_same_data_version_changes_nothing(routes):
    register(routes)
    register(routes, perm=4)
    assert routes.pickup_topic_route_data("T").queue_datas[0].perm == 6
    register(routes, perm=4, counter=2)
    assert routes.pickup_topic_route_data("T").queue_datas[0].perm == 4
    assert routes.query_broker_topic_config("c", MASTER) == DataVersion(counter=2)
    assert not routes.is_broker_topic_config_changed("c", MASTER, DataVersion(counter=2))
    assert routes.is_broker_topic_config_changed("c", MASTER, DataVersion(counter=3))
    assert routes.is_broker_topic_config_changed("c", "nobody", DataVersion(counter=2))


def test_a_topic_missing_at_the_same_version_is_taken(routes):
    """It was deleted here, or its first registration was refused."""
    register(routes)
    routes.delete_topic("T")
    register(routes)
    assert addresses(routes, "T") is not None


def test_topics_that_a_registration_no_longer_names(routes):
    register(routes)
    register(routes, topics=("U", "V"), counter=2)
    assert addresses(routes, "T") is not None
    routes.delete_topic_with_broker_registration = True
    register(routes, topics=("U", "V"), counter=3)
    assert addresses(routes, "T") is None


@pytest.mark.parametrize("says_so", [True, False])
def test_a_part_of_the_topics_is_never_taken_for_all(routes, says_so):
    """Without it one new topic would take the routes of all others of its broker until it registers them again.

    mqlake's brokers say that it is a part; RocketMQ's are told by the topics that every broker has.
    """
    routes.delete_topic_with_broker_registration = True
    own = ("SELF_TEST_TOPIC", "a", "c") if not says_so else ()
    register(routes, topics=(*own, "T", "U"))
    register(routes, "10.0.0.9:1", "b", topics=("T",))
    for number, part in enumerate([("V",), ("W", "X"), own[:1], ()], 2):
        register(routes, topics=part, counter=number, partial=says_so)
    assert routes.get_all_topic_list().topic_list == {*own, "T", "U", "V", "W", "X"}
    register(routes, topics=(*own, "T", "V"), counter=9)
    assert routes.get_all_topic_list().topic_list == {*own, "T", "V"}


def test_what_comes_late_from_who_had_the_address_before(routes):
    """Without it the UNREGISTER of a slave, sent as it became master, would leave the cluster without the master."""
    register(routes, REPLICA, broker_id=1)
    register(routes, REPLICA, broker_id=0)
    routes.unregister_broker("c", REPLICA, "a", 1)
    assert addresses(routes) == {"a": {0: REPLICA}}
    assert routes.query_broker_topic_config("c", REPLICA) is not None
    register(routes, REPLICA, "b", topics=("V", "W"), counter=5)  # under another name
    routes.unregister_broker("c", REPLICA, "a", 0)
    assert addresses(routes) is None and addresses(routes, "V") == {"b": {0: REPLICA}}
    assert routes.query_broker_topic_config("c", REPLICA) == DataVersion(counter=5)
    routes.unregister_broker("other", REPLICA, "b", 0)  # of another cluster
    assert addresses(routes, "V") == {"b": {0: REPLICA}}
    routes.unregister_broker("c", REPLICA, "b", 0)
    assert routes.topic_queue_table == {} == routes.broker_live_table


def test_silent_brokers_expire(routes, clock):
    register(routes, channel="channel")
    register(routes, "10.0.0.9:1", "b", expires_ms=5000, channel="other")
    clock.now += 5001
    assert routes.scan_not_active_broker() == ["other"]
    assert addresses(routes) == {"a": {0: MASTER}}
    clock.now += BROKER_EXPIRES_MS - 5001
    assert routes.scan_not_active_broker() == []
    routes.update_broker_info_update_timestamp("c", MASTER)
    clock.now += BROKER_EXPIRES_MS
    assert routes.scan_not_active_broker() == []
    clock.now += 1
    assert routes.scan_not_active_broker() == ["channel"]
    assert routes.broker_live_table == {} == routes.topic_queue_table


class NeverWalked(dict):
    """A table of topics of which nobody may look at all."""

    def __iter__(self):
        raise AssertionError("somebody looks at every topic")

    items = values = keys = __iter__


def test_what_becomes_of_one_broker_costs_no_look_at_all_topics(routes, clock):
    """Of 100 brokers with 1,000 topics each that are lost together, each would look at 100,000."""
    routes.delete_topic_with_broker_registration = True
    channels = {name: object() for name in "abcd"}
    for name, channel in channels.items():
        topics = f"{name}1", f"{name}2"
        register(routes, f"{name}:1", name, topics=topics, channel=channel, enable_acting_master=True)
    register(routes, "d:2", "d", 1, topics=(), channel=None, enable_acting_master=True)
    routes.topic_queue_table = NeverWalked(routes.topic_queue_table)
    register(routes, "a:1", "a", topics=("a2",), channel=channels["a"], counter=2)
    assert routes.wipe_write_perm_of_broker("b") == 2
    assert routes.get_topics_by_cluster("c").topic_list == {"a2", "b1", "b2", "c1", "c2", "d1", "d2"}
    routes.unregister_broker("c", "d:1", "d", 0)
    assert routes.topic_queue_table["d1"]["d"].perm == 4  # its replica can still be read from
    routes.on_channel_destroy(channels["b"])
    routes.update_broker_info_update_timestamp("c", "a:1")
    clock.now += BROKER_EXPIRES_MS
    routes.update_broker_info_update_timestamp("c", "a:1")
    clock.now += 1
    assert routes.scan_not_active_broker() == [channels["c"]]
    assert len(routes.topic_queue_table) == 1 and "a2" in routes.topic_queue_table


def test_a_broker_goes_with_its_connection(routes):
    one, other = object(), object()
    register(routes, channel=one)
    register(routes, "10.0.0.9:1", "b", channel=other)
    routes.on_channel_destroy(object())
    assert set(addresses(routes)) == {"a", "b"}
    routes.on_channel_destroy(one)
    assert set(addresses(routes)) == {"b"}
    register(routes, "10.0.0.9:1", "b", channel=one)  # it connected anew before the old one was closed
    routes.on_channel_destroy(other)
    assert set(addresses(routes)) == {"b"}


def test_write_permission(routes):
    register(routes)
    register(routes, "10.0.0.9:1", "b")
    assert routes.wipe_write_perm_of_broker("a") == 2
    perms = {q.broker_name: q.perm for q in routes.pickup_topic_route_data("T").queue_datas}
    assert perms == {"a": 4, "b": 6}
    assert routes.add_write_perm_of_broker("a") == 2
    assert {q.perm for q in routes.pickup_topic_route_data("T").queue_datas} == {6}
    assert routes.wipe_write_perm_of_broker("none") == 0


def test_topics_deleted_of_one_cluster(routes):
    register(routes)
    register(routes, "10.0.0.9:1", "b", cluster="d")
    routes.delete_topic("T", "c")
    assert addresses(routes) == {"b": {0: "10.0.0.9:1"}}
    routes.delete_topic("T", "none")
    routes.delete_topic("T")
    assert addresses(routes) is None


def test_topics_that_an_operator_registers(routes):
    register(routes)
    routes.register_topic(
        "new", [QueueData(broker_name="a", read_queue_nums=1), QueueData(broker_name="none")]
    )
    assert addresses(routes, "new") == {"a": {0: MASTER}}
    routes.register_topic("other", [QueueData(broker_name="none")])
    assert "other" not in routes.topic_queue_table


def test_unit_topics(routes):
    for name, flag in (("none", 0), ("unit", 1), ("sub", 2), ("both", 3)):
        register(routes, f"10.0.1.{flag}:1", name, topics=(f"{name}-T", f"{name}-U"), topic_sys_flag=flag)
    names = lambda topics: {topic.split("-")[0] for topic in topics.topic_list}  # noqa: E731
    assert names(routes.get_unit_topics()) == {"unit", "both"}
    assert names(routes.get_has_unit_sub_topic_list()) == {"sub", "both"}
    assert names(routes.get_has_unit_sub_ununit_topic_list()) == {"sub"}


def test_an_acting_master(routes):
    routes.support_acting_master = True
    register(routes, enable_acting_master=True)
    register(routes, REPLICA, broker_id=2, enable_acting_master=True)
    register(routes, "10.0.0.3:1", broker_id=3, enable_acting_master=True)
    routes.unregister_broker("c", MASTER, "a", 0)
    assert addresses(routes) == {"a": {0: REPLICA, 3: "10.0.0.3:1"}}
    assert routes.pickup_topic_route_data("T").queue_datas[0].perm == 4
    register(routes, REPLICA, broker_id=2, enable_acting_master=True, counter=5)
    assert routes.pickup_topic_route_data("T").queue_datas[0].perm == 4
    assert routes.get_broker_member_group("c", "a").broker_addrs == {2: REPLICA, 3: "10.0.0.3:1"}
    register(routes, enable_acting_master=True, counter=6)
    assert routes.pickup_topic_route_data("T").queue_datas[0].perm == 6


def test_filter_servers_and_mappings(routes):
    body = wrapper("T", "U")
    body.topic_queue_mapping_info_map = {"T": TopicQueueMappingInfo(topic="T", bname="a", total_queues=8)}
    register(routes, body=body, filter_servers=["10.0.0.1:99"], zone_name="z")
    route = routes.pickup_topic_route_data("T")
    assert route.filter_server_table == {MASTER: ["10.0.0.1:99"]}
    assert route.topic_queue_mapping_by_broker["a"].total_queues == 8
    assert route.broker_datas[0].zone_name == "z"
    register(routes, filter_servers=[])
    assert routes.pickup_topic_route_data("T").filter_server_table == {}


def test_filter_servers_go_with_their_broker(routes, clock):
    register(routes, filter_servers=["10.0.0.1:99"])
    routes.unregister_broker("c", MASTER, "a", 0)
    register(routes)
    assert routes.pickup_topic_route_data("T").filter_server_table == {}
    # a broker that moved, and is silent at its old address
    register(routes, filter_servers=["10.0.0.1:99"])
    register(routes, "10.0.0.9:1", expires_ms=2 * BROKER_EXPIRES_MS)
    clock.now += BROKER_EXPIRES_MS + 1
    assert routes.scan_not_active_broker() == [] and routes.filter_server_table == {}
    assert list(routes.broker_live_table) == [("c", "10.0.0.9:1")]


def test_a_route_is_a_copy(routes):
    register(routes)
    routes.pickup_topic_route_data("T").broker_datas[0].broker_addrs.clear()
    assert addresses(routes) == {"a": {0: MASTER}}


NAMES, IDS = st.sampled_from("ab"), st.integers(0, 2)


class Tables(RuleBasedStateMachine):
    """Whatever comes and goes, the tables agree with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_000_000)
        self.routes = RouteInfoManager(self.clock)

    @rule(name=NAMES, broker_id=IDS, host=st.integers(1, 4), topics=st.sets(st.sampled_from("TUV")), n=IDS)
    def register(self, name, broker_id, host, topics, n):
        addr = f"{name}-{host}"
        register(self.routes, addr, name, broker_id, topics=topics, counter=n, channel=addr)

    @rule(name=NAMES, broker_id=IDS, host=st.integers(1, 4))
    def unregister(self, name, broker_id, host):
        self.routes.unregister_broker("c", f"{name}-{host}", name, broker_id)

    @rule(name=NAMES, host=st.integers(1, 4))
    def lose(self, name, host):
        self.routes.on_channel_destroy(f"{name}-{host}")

    @rule(ms=st.integers(0, BROKER_EXPIRES_MS))
    def wait(self, ms):
        self.clock.now += ms
        self.routes.scan_not_active_broker()

    @rule(topic=st.sampled_from("TUV"), cluster=st.sampled_from(["c", "d", None]))
    def delete_topic(self, topic, cluster):
        self.routes.delete_topic(topic, cluster)

    @rule(topic=st.sampled_from("TUVW"), names=st.lists(NAMES))
    def register_topic(self, topic, names):
        self.routes.register_topic(topic, [QueueData(broker_name=name) for name in names])

    @invariant()
    def agree(self):
        routes = self.routes
        assert set().union(*routes.cluster_addr_table.values()) == set(routes.broker_addr_table)
        assert all(data.broker_addrs for data in routes.broker_addr_table.values())
        for data in routes.broker_addr_table.values():
            assert len(set(data.broker_addrs.values())) == len(data.broker_addrs)
        for queues in routes.topic_queue_table.values():
            assert queues and set(queues) <= set(routes.broker_addr_table)
        pairs = {(broker, topic) for topic, queues in routes.topic_queue_table.items() for broker in queues}
        assert pairs == {(broker, topic) for broker, topics in routes._topics_of.items() for topic in topics}
        assert all(routes._topics_of.values())


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_mapping_of_a_static_topic_goes_with_the_topic(routes):
    """Else an ordinary topic that is made under its name would have logical queues."""
    body = wrapper("T", "U")
    body.topic_queue_mapping_info_map = {"T": TopicQueueMappingInfo(topic="T", bname="a", total_queues=8)}
    register(routes, body=body)
    routes.delete_topic("T")
    register(routes, body=wrapper("T", "U"), counter=9)
    assert routes.pickup_topic_route_data("T").topic_queue_mapping_by_broker is None
    register(routes, body=body, counter=10)
    routes.delete_topic("T", "c")
    register(routes, body=wrapper("T", "U"), counter=11)
    assert routes.pickup_topic_route_data("T").topic_queue_mapping_by_broker is None
