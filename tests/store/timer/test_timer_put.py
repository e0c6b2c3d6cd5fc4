from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TimerMessageError
from mqlake.message import TIMER_TOPIC, MessageExtBrokerInner
from mqlake.store.config import MessageStoreConfig
from mqlake.store.timer.timer_put import TimerPut, out_time

NOW = 1_700_000_000_400


def put(properties: dict[str, str], *, num: int = 0, **settings: object) -> MessageExtBrokerInner:
    rewrite = TimerPut(MessageStoreConfig.from_mapping(settings), lambda: NOW)
    rewrite.slot_num = lambda out_ms: num
    message = MessageExtBrokerInner("T", b"", properties=properties, queue_id=3)
    rewrite(message)
    return message


@given(st.integers(0, 2**50), st.sampled_from([100, 200, 500, 1000]))
def test_the_step_is_javas(deliver: int, precision: int) -> None:
    wanted = deliver - precision if deliver % precision == 0 else deliver // precision * precision
    assert out_time(deliver, precision) == wanted
    assert wanted < deliver <= wanted + precision


def test_the_first_property_counts() -> None:
    properties = {"TIMER_DELIVER_MS": str(NOW + 9000), "TIMER_DELAY_MS": "7000", "TIMER_DELAY_SEC": "5"}
    for out in (1_700_000_005_000, 1_700_000_007_000, 1_700_000_009_000):
        message = put(dict(properties))
        assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
        assert message.properties["TIMER_OUT_MS"] == str(out)
        assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")
        properties.popitem()


def test_what_stays_as_it_is() -> None:
    for properties in (
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELIVER_MS": "5"},
        {"TIMER_DELAY_SEC": "-3"},
        {"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "1700000001000"},
    ):
        message = put(dict(properties))
        assert (message.topic, message.properties) == ("T", properties)


def test_a_delay_level_takes_precedence() -> None:
    assert put({"TIMER_DELAY_SEC": "3", "DELAY": "2"}).properties == {"DELAY": "2"}


@pytest.mark.parametrize(
    ("properties", "status", "words"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, "WHEEL_TIMER_MSG_ILLEGAL", "259200000ms"),
        ({"TIMER_DELAY_SEC": "1.5"}, "WHEEL_TIMER_MSG_ILLEGAL", "'1.5'"),
        ({"TIMER_DELAY_SEC": "9" * 19}, "WHEEL_TIMER_MSG_ILLEGAL", "whole number"),
        ({"TIMER_DELAY_MS": "0", "TIMER_DEL_UNIQKEY": "K"}, "WHEEL_TIMER_MSG_ILLEGAL", "was due"),
    ],
)
def test_what_is_refused(properties: dict[str, str], status: str, words: str) -> None:
    with pytest.raises(TimerMessageError, match=words) as caught:
        put(properties)
    assert caught.value.status == status


def test_without_timers_a_timer_message_is_refused() -> None:
    with pytest.raises(TimerMessageError, match="timerWheelEnable") as caught:
        put({"TIMER_DELAY_SEC": "3"}, timerWheelEnable=False)
    assert caught.value.status == "WHEEL_TIMER_NOT_ENABLE"


def test_a_step_takes_less_the_fuller_it_is() -> None:
    def taken(num: int) -> int:
        count = 0
        for _ in range(300):
            try:
                put({"TIMER_DELAY_SEC": "3"}, num=num, timerCongestNumEachSlot=100)
                count += 1
            except TimerMessageError as error:
                assert error.status == "WHEEL_TIMER_FLOW_CONTROL"
        return count

    assert taken(100) == 300
    assert taken(200) == 0
    assert 0 < taken(190) < taken(110) < 300
