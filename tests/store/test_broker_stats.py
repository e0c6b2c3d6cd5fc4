import pytest

from mqlake.store import broker_stats
from mqlake.store.broker_stats import BrokerStatsManager
from tests.clock import START_MS, Clock


@pytest.fixture
def clock():
    return Clock(START_MS)


@pytest.fixture
def stats(clock):
    return BrokerStatsManager("c1", clock=clock)


def values(stats):
    return {
        (name, key): stats.item(name, key).value
        for name in broker_stats.KEY_PARTS
        for key in stats.keys(name)
    }


def test_a_put_counts_under_every_name(stats):
    stats.put("T", 3, 2, 500, 7)
    assert values(stats) == {
        ("TOPIC_PUT_NUMS", "T"): 2,
        ("TOPIC_PUT_SIZE", "T"): 500,
        ("TOPIC_PUT_LATENCY", "3@T"): 7,
        ("QUEUE_PUT_NUMS", "T@3"): 2,
        ("QUEUE_PUT_SIZE", "T@3"): 500,
        ("BROKER_PUT_NUMS", "c1"): 2,
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "c1"): 2,
    }


def test_a_get_counts_under_every_name(stats):
    stats.get("G", "T", 3, 2, 500, 7)
    stats.record_disk_fall_behind("G", "T", 3, 1000, 60)
    stats.record_disk_fall_behind("G", "T", 3, 800, 50)
    assert values(stats) == {
        ("GROUP_GET_NUMS", "T@G"): 2,
        ("GROUP_GET_SIZE", "T@G"): 500,
        ("GROUP_GET_LATENCY", "3@T@G"): 7,
        ("QUEUE_GET_NUMS", "T@3@G"): 2,
        ("QUEUE_GET_SIZE", "T@3@G"): 500,
        ("GROUP_GET_FALL_SIZE", "3@T@G"): 800,
        ("GROUP_GET_FALL_TIME", "3@T@G"): 50,
        ("BROKER_GET_NUMS", "c1"): 2,
        ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "c1"): 2,
    }


def test_system_topics_and_queues_can_be_left_out(clock):
    stats = BrokerStatsManager("c1", enable_queue_stat=False, clock=clock)
    stats.put("SCHEDULE_TOPIC_XXXX", 3, 1, 10, 0)
    stats.get("G", "SCHEDULE_TOPIC_XXXX", 3, 1, 10, 0)
    names = {name for name, _ in values(stats)}
    assert not names & {"QUEUE_PUT_NUMS", "QUEUE_GET_NUMS", "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"}
    assert stats.keys("GROUP_GET_LATENCY") == ["SCHEDULE_TOPIC_XXXX@G"]


def test_minute_hour_and_day(stats, clock):
    for _ in range(6 * 60 * 26):  # 26 hours, every 10 s
        stats.put("T", 0, 10, 1000, 4)
        clock.now += 10_000
        stats.sample()
    item = stats.item("TOPIC_PUT_SIZE", "T")
    for row, requests in ((item.minute, 6), (item.hour, 360), (item.day, 8640)):
        assert row.difference() == broker_stats.StatsSnapshot(
            sum=requests * 1000, tps=100.0, avgpt=1000.0, times=requests
        )
    assert stats.tps_topic_put_nums("T") == 1.0
    assert stats.tps_topic_put_nums("other") == 0.0


def test_an_early_timer_loses_no_snapshot(stats, clock):
    stats.get("G", "T", 0, 60, 1, 1)
    for _ in range(6):
        clock.now += 9_990
        stats.sample()
    stats.get("G", "T", 0, 60, 1, 1)
    clock.now += 10_060
    stats.sample()
    assert stats.tps_group_get_nums("G", "T") == pytest.approx(1.0, rel=0.01)


def test_what_stands_still_for_a_day_is_dropped(stats, clock):
    stats.put("old", 0, 1, 1, 0)
    for hour in range(30):
        stats.put("busy", 0, 1, 1, 0)
        if hour < 24:
            assert stats.item("TOPIC_PUT_NUMS", "old")
        clock.now += 3_600_000
        stats.sample()
    assert stats.item("TOPIC_PUT_NUMS", "old") is None
    assert stats.keys("TOPIC_PUT_NUMS") == ["busy"]


def test_a_deleted_topic_or_group_is_forgotten_by_its_place_in_the_key(clock):
    for queues in (True, False):
        stats = BrokerStatsManager("X", enable_queue_stat=queues, clock=clock)
        for topic, group in (("X", "Y"), ("Y", "X")):
            stats.put(topic, 1, 1, 1, 1)
            stats.get(group, topic, 1, 1, 1, 1)
            stats.record_disk_fall_behind(group, topic, 1, 1, 1)
        stats.on_topic_deleted("X")
        keys = [key for name, key in values(stats) if not name.startswith("BROKER_")]
        assert keys
        assert set(keys) <= {"Y", "1@Y", "Y@1", "Y@X", "1@Y@X", "Y@1@X"}
        stats.on_group_deleted("X")
        keys = [key for name, key in values(stats) if not name.startswith("BROKER_")]
        assert set(keys) <= {"Y", "1@Y", "Y@1"}
        assert stats.item("BROKER_PUT_NUMS", "X").value == 2


def test_unknown_names(stats):
    assert stats.item("NO_SUCH", "T") is None
    with pytest.raises(KeyError):
        stats.add("NO_SUCH", "T", 1)
