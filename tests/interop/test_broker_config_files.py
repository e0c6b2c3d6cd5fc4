"""RocketMQ's own managers read the config files that mqlake writes, and the other way round; its own filter gives
every expression the value that ours does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from mqlake.base import json_config
from mqlake.broker.filter import compile_expression
from mqlake.broker.filter.bloom import BloomFilter
from mqlake.broker.filter.values import NotComparableError
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.broker.state.consumer_filter import ConsumerFilterManager
from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.broker.state.subscription_group import SubscriptionGroupManager
from mqlake.errors import FilterExpressionError
from mqlake.remoting.bodies.admin import SimpleSubscriptionData, SubscriptionGroupConfig
from mqlake.store import open_store
from tests.broker.filter import random_expressions, test_sql92
from tests.interop.java_peer import TEST_JVM
from tests.interop.java_wire import JavaLines

pytestmark = pytest.mark.java

JAVA_DEFAULT_FILTERS = 64
"""Of the ConsumerFilterManager that needs no broker around it."""


class JavaGroups(JavaLines):
    MAIN = "mqlake.groups.Main"

    def recode(self, kind: str, text: str) -> str:
        return str(self.request("recode", kind=kind, text=text)["text"])

    def evaluate(self, cases: list[tuple[str, dict[str, str]]]) -> list[str]:
        wanted = [{"sql": sql, "properties": properties} for sql, properties in cases]
        values: list[str] = self.request("evaluate", cases=wanted)["values"]
        return values


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGroups]:
    with JavaGroups(tmp_path_factory.mktemp("groups"), jvm=TEST_JVM) as java:
        yield java


def both_ways(java: JavaGroups, kind: str, ours: ConfigManager, again: ConfigManager) -> None:
    """Ours → Java → ours: nothing is lost, and what Java writes of it is, byte for byte, what we write."""
    ours.persist()
    text = Path(ours.path).read_text()
    by_java = java.recode(kind, text)
    lines_of_java, our_lines = ([line.rstrip(",") for line in each.splitlines()] for each in (by_java, text))
    assert sorted(lines_of_java) == sorted(our_lines)  # maps have no order there
    assert json_config.loads(by_java) == json_config.loads(text)
    Path(again.path).parent.mkdir(parents=True, exist_ok=True)
    Path(again.path).write_text(by_java)
    again.load()
    assert again.encode() == ours.encode()


def test_subscription_groups(java: JavaGroups, tmp_path: Path) -> None:
    ours = SubscriptionGroupManager(str(tmp_path / "ours" / "subscriptionGroup.json"))
    ours.find_subscription_group_config("made-itself")
    ours.update_subscription_group_config(
        SubscriptionGroupConfig(
            group_name="by-an-operator",
            consume_enable=False,
            retry_queue_nums=3,
            retry_max_times=2,
            broker_id=1,
            consume_message_orderly=True,
            group_sys_flag=2,
            subscription_data_set=[
                SimpleSubscriptionData(topic="T", expression_type="TAG", expression="a || b", version=7)
            ],
        )
    )
    ours.update_forbidden("by-an-operator", "T", 0, True)
    again = SubscriptionGroupManager(str(tmp_path / "java" / "subscriptionGroup.json"))
    both_ways(java, "subscriptionGroup", ours, again)


def test_consumer_offsets(java: JavaGroups, tmp_path: Path) -> None:
    ours = ConsumerOffsetManager(str(tmp_path / "ours" / "consumerOffset.json"), update_version_step=1)
    for topic, group, queue_id, offset in (("T", "G", 0, 12), ("T", "G", 7, 2**40), ("%RETRY%G", "G", 0, 0)):
        ours.commit_offset("", group, topic, queue_id, offset)
    again = ConsumerOffsetManager(str(tmp_path / "java" / "consumerOffset.json"))
    both_ways(java, "consumerOffset", ours, again)


def test_delay_offsets(java: JavaGroups, tmp_path: Path) -> None:
    with open_store(tmp_path / "store", {"mappedFileSizeCommitLog": 1 << 20}) as store:
        ours = ScheduleMessageService(str(tmp_path / "ours" / "delayOffset.json"), store)
        ours.offset_table = {1: 5, 2: 0, 18: 2**33}
        ours.data_version.next_version()
        again = ScheduleMessageService(str(tmp_path / "java" / "delayOffset.json"), store)
        both_ways(java, "delayOffset", ours, again)


def test_consumer_filters(java: JavaGroups, tmp_path: Path) -> None:
    # Java forgets what has been dead for a day, and takes the living for dead since half a minute ago.
    now = time.time_ns() // 1_000_000

    def manager(directory: str) -> ConsumerFilterManager:
        path = str(tmp_path / directory / "consumerFilter.json")
        return ConsumerFilterManager(path, clock_ms=lambda: now, expected_groups=JAVA_DEFAULT_FILTERS)

    ours, again = manager("ours"), manager("java")
    ours.register("T", "G", "a > 5 AND b = 'it''s'", "SQL92", 3)
    ours.register("U", "%H", "TRUE", "SQL92", 4)
    ours.unregister_group("G")
    ours.unregister_group("%H")
    both_ways(java, "consumerFilter", ours, again)


def test_bloom_filters(java: JavaGroups) -> None:
    for text, error, expected in (("G#T", 20, 32), ("%RETRY%group#%long|topic-name-ü", 20, 32), ("", 5, 3)):
        ours = BloomFilter(error, expected)
        answer = java.request("bloom", text=text, error=error, expected=expected)
        assert answer == {"positions": ours.positions(text), "bits": ours.m}


def value_here(sql: str, properties: dict[str, str]) -> str:
    try:
        value: Any = compile_expression("SQL92", sql).evaluate(properties)
    except FilterExpressionError:
        return "illegal"
    except NotComparableError:
        return "error"
    return str(value).lower().replace("none", "null")


def parameters(test: Any) -> list[tuple[Any, ...]]:
    (mark,) = test.pytestmark
    return list(mark.args[1])


def test_expressions_have_the_value_that_rocketmq_gives_them(java: JavaGroups) -> None:
    cases = [(sql, properties) for sql, properties, _ in parameters(test_sql92.test_values)]
    cases += parameters(test_sql92.test_what_cannot_be_compared_does_not_match_whatever_else_is_there)

    @settings(max_examples=600, phases=[Phase.generate], database=None)
    @given(random_expressions.conditions, random_expressions.properties)
    def drawn(node: Any, properties: dict[str, str]) -> None:
        cases.append((random_expressions.text_of(node), properties))

    drawn()
    assert len(cases) > 600
    differ = [
        (sql, properties, java_value, value_here(sql, properties))
        for (sql, properties), java_value in zip(cases, java.evaluate(cases), strict=True)
        if java_value != value_here(sql, properties)
    ]
    assert differ == []
