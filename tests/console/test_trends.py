"""Trends: rates and lag of groups, topics and queues, against sums made one message at a time."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.console import trends as module
from mqlake.console.trends import Ring, Round, Trends
from mqlake.remoting.bodies.topic import MessageQueue


def queue(topic: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="a", queue_id=number)


def added(
    trends: Trends, *seen: tuple[str, MessageQueue, int, int], passed_s: float = 5.0, watched: str = ""
) -> None:
    found = Round()
    for group, at, end, consumed in seen:
        found.add(group, at, end, consumed)
    names = [watched] if watched else []
    trends.add(found, passed_s, names, names)


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 10), st.integers(0, 12))
def test_a_ring_keeps_the_last_and_a_small_plot_keeps_the_peaks(
    values: list[int], size: int, points: int
) -> None:
    ring = Ring(size)
    for value in values:
        ring.add(value)
    kept = values[-size:]
    assert ring.values() == kept
    small = ring.values(points)
    if points:
        assert len(small) <= points and max(small, default=-1) == max(kept, default=-1)
        assert small[-1:] == [] or small[-1] >= kept[-1]
    else:
        assert small == kept


steps = st.lists(
    st.dictionaries(
        st.tuples(st.sampled_from("gh"), st.sampled_from("TU"), st.integers(0, 1)),
        st.tuples(st.integers(0, 50), st.integers(0, 50)),
    ),
    min_size=1,
    max_size=6,
)


@given(steps)
def test_sums_are_those_of_the_queues(rounds: list[dict[tuple[str, str, int], tuple[int, int]]]) -> None:
    """A round: (group, topic, queue) → messages that came into the queue, and that the group consumed."""
    trends = Trends()
    ends: dict[tuple[str, int], int] = defaultdict(int)
    consumed: dict[tuple[str, str, int], int] = {}
    last: set[tuple[str, str, int]] = set()
    for number, step in enumerate(rounds):
        arrived: dict[tuple[str, int], int] = defaultdict(int)
        known = {key[1:] for key in last}
        for (_, topic, at), (came, _) in step.items():
            arrived[topic, at] = max(arrived[topic, at], came)
        for place, came in arrived.items():
            ends[place] += came
        done = {}
        for key, (_, wanted) in step.items():
            before = consumed.get(key, 0)
            consumed[key] = min(before + wanted, ends[key[1:]])
            done[key] = consumed[key] - before
        added(
            trends,
            *((g, queue(t, n), ends[t, n], consumed[g, t, n]) for g, t, n in step),
            passed_s=2.0 * bool(number),
        )
        assert trends.groups.keys() == {key[0] for key in step}
        for group, trend in trends.groups.items():
            mine = [key for key in step if key[0] == group]
            assert trend.behind == sum(ends[key[1:]] - consumed[key] for key in mine)
            assert (trend.rate or 0) == sum(done[key] for key in mine if key in last) / 2
        for topic, of_topic in trends.topics.items():
            places = [place for place in arrived if place[0] == topic]
            assert (of_topic.rate or 0) == sum(arrived[place] for place in places if place in known) / 2
            assert trends.lags[topic] == sum(ends[key[1:]] - consumed[key] for key in step if key[1] == topic)
        # an offset that was not there in the last round counts from the next on
        last = set(step)


def test_a_reset_is_no_rate_and_a_new_topic_no_burst() -> None:
    trends = Trends()
    added(trends, ("g", queue("T"), 100, 90), passed_s=0)
    added(trends, ("g", queue("T"), 100, 10), ("g", queue("Big"), 10**6, 10**6))
    assert (trends.groups["g"].rate, trends.groups["g"].behind) == (0, 90)
    assert trends.topics["Big"].rate is None and trends.topics["Big"].rates.values() == []
    added(trends, ("g", queue("T"), 110, 60), ("g", queue("Big"), 10**6 + 5, 10**6))
    assert (trends.groups["g"].rate, trends.topics["T"].rate, trends.topics["Big"].rate) == (10, 2, 1)
    assert trends.group_queues["g", queue("T")].history.values() == [10, 90, 50]
    assert trends.queues[queue("T")].rates.values() == [0, 2]


def test_what_is_watched_is_kept_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GROUPS_MAX", "TOPICS_MAX", "QUEUES_MAX"):
        monkeypatch.setattr(module, name, 2)
    trends = Trends()
    seen = [(name, queue(name), 100, behind) for behind, name in enumerate("abcde")]
    added(trends, *seen, watched="e")
    for table in (trends.groups, trends.topics):
        assert list(table) == ["e", "a"]
    assert [at.topic for at in trends.queues] == ["e", "a"]
    assert [group for group, _ in trends.group_queues] == ["e", "a"]
    assert trends.lags == {name: 100 - behind for behind, name in enumerate("abcde")}
