from __future__ import annotations

import pytest

from mqlake.broker.state.consumer_filter import ConsumerFilterManager
from mqlake.remoting.bodies.client import SubscriptionData
from tests.clock import Clock

HOUR_MS = 3_600_000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def manager(tmp_path, clock):
    return made(tmp_path, clock)


def made(tmp_path, clock) -> ConsumerFilterManager:
    return ConsumerFilterManager(str(tmp_path / "consumerFilter.json"), 24 * HOUR_MS, clock)


def sql(topic: str, expression: str, version: int) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version)


def test_a_subscription_by_expression_is_kept(manager, clock):
    assert manager.register("T", "G", "a > 5", "SQL92", 1)
    data = manager.get("T", "G")
    assert data.compiled_expression.matches({"a": "6"}) and not data.is_dead
    assert (data.body.born_time, data.client_version) == (clock.now, 1)
    assert manager.get("T", "H") is None and manager.get("U", "G") is None


@pytest.mark.parametrize(("expression", "kind"), [("A", "TAG"), ("A", None), ("", "SQL92"), (None, "SQL92")])
def test_others_are_not(manager, expression, kind):
    assert not manager.register("T", "G", expression, kind, 1)
    assert manager.get("T", "G") is None and not manager.dirty


def test_only_a_younger_version_changes_the_expression(manager):
    manager.register("T", "G", "a > 5", "SQL92", 2)
    for version in (1, 2):
        assert not manager.register("T", "G", "a > 6", "SQL92", version)
        assert manager.get("T", "G").body.expression == "a > 5"
    assert manager.register("T", "G", "a > 6", "SQL92", 3)
    assert manager.get("T", "G").compiled_expression.text == "a > 6"
    assert manager.register("T", "G", "a > 6", "SQL92", 4)
    assert manager.get("T", "G").client_version == 4
    assert not manager.register("T", "G", "a > 6", "SQL92", 4)


def test_a_heartbeat_takes_all_and_lets_the_rest_die(manager):
    manager.register_group("G", [sql("T", "a > 5", 1), sql("U", "a > 5", 1)])
    manager.register_group("G", [sql("U", "a > 5", 1)])
    assert manager.get("T", "G").is_dead and not manager.get("U", "G").is_dead
    manager.register_group("G", [sql("T", "a > 5", 1)])
    assert not manager.get("T", "G").is_dead and manager.get("U", "G").is_dead


def test_a_group_that_comes_back_finds_its_filter(manager, clock):
    manager.register("T", "G", "a > 5", "SQL92", 1)
    manager.unregister_group("G")
    dead_since = manager.get("T", "G").body.dead_time
    clock.now += 1
    manager.unregister_group("G")
    assert manager.get("T", "G").body.dead_time == dead_since
    assert not manager.register("T", "G", "a > 5", "SQL92", 0)
    assert manager.get("T", "G").is_dead
    assert manager.register("T", "G", "a > 5", "SQL92", 1)
    assert not manager.get("T", "G").is_dead


def test_one_that_makes_no_sense_removes_the_known_one(manager):
    assert not manager.register("T", "G", "a >", "SQL92", 1)
    manager.register("T", "G", "a > 5", "SQL92", 2)
    assert not manager.register("T", "G", "a >", "SQL92", 3)
    assert manager.get("T", "G") is None


def test_the_dead_are_forgotten_after_a_day(manager, clock):
    manager.register("T", "G", "a > 5", "SQL92", 1)
    manager.register("T", "H", "a > 5", "SQL92", 1)
    manager.unregister_group("G")
    clock.now += 24 * HOUR_MS - 1
    manager.clean()
    assert manager.get("T", "G") is not None
    clock.now += 1
    manager.clean()
    assert manager.get("T", "G") is None and manager.get("T", "H") is not None


def test_a_restart(manager, tmp_path, clock):
    manager.register("T", "G", "a > 5", "SQL92", 1)
    clock.now += HOUR_MS
    manager.persist()
    text = (tmp_path / "consumerFilter.json").read_text()
    assert '"bloomFilterData":{' in text and '"bitNum":112' in text and '"dead":false' in text
    again = made(tmp_path, clock)
    again.load()
    data = again.get("T", "G")
    assert data.compiled_expression.matches({"a": "6"})
    assert data.is_dead and data.body.dead_time == clock.now - 30_000  # until the group is heard of
    assert again.register("T", "G", "a > 5", "SQL92", 1)
    assert not again.get("T", "G").is_dead


def test_a_file_with_an_expression_that_is_not_understood_is_loaded_all_the_same(tmp_path, clock):
    (tmp_path / "consumerFilter.json").write_text(
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"consumerGroup":"G","topic":"T",'
        '"expression":"a >","expressionType":"SQL92","bornTime":5,"clientVersion":1}},"topic":"T"}}}'
    )
    manager = made(tmp_path, clock)
    manager.load()
    assert manager.get("T", "G").compiled_expression is None
