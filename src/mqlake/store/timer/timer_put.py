"""Prepares a timer message for its put: it goes to rmq_sys_wheel_timer, and its properties say the rest.

    TIMER_DELAY_SEC=90, TIMER_DELAY_MS=90000 or TIMER_DELIVER_MS=1700000090000         (the first that is there counts)
       └─▶ TIMER_OUT_MS=1700000089000   the step before: steps are 1 s, and what is due in one is delivered at its end
           REAL_TOPIC, REAL_QID         where it belongs

TIMER_OUT_MS is 1 to 1000 ms before the time asked for, and delivery begins 1000 ms after TIMER_OUT_MS: never early.
Facts: HookUtils.handleScheduleMessage of RocketMQ 5.3.3.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from mqlake.errors import TimerMessageError
from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    TIMER_TOPIC,
    MessageExtBrokerInner,
)
from mqlake.message.policy import Policy, names_with
from mqlake.store.config import MessageStoreConfig

TIMER_PROPERTIES = names_with(Policy.TIMER)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_MAX = 2**63 - 1


def out_time(deliver_ms: int, precision_ms: int) -> int:
    """TIMER_OUT_MS for the time (ms) that a message is to be delivered at: the step before it."""
    return (deliver_ms - 1) // precision_ms * precision_ms


class TimerPut:
    """Rewrites timer messages; call it with a message that has one of TIMER_PROPERTIES. `slot_num(out_ms)`: how many
    are due in that step."""

    def __init__(self, config: MessageStoreConfig, clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._clock_ms = clock_ms
        self.slot_num: Callable[[int], int] = lambda out_ms: 0

    def __call__(self, msg: MessageExtBrokerInner) -> None:
        """TimerMessageError when it cannot be stored."""
        properties = msg.properties
        if msg.topic == TIMER_TOPIC or PROPERTY_TIMER_OUT_MS in properties:
            return
        if msg.delay_time_level > 0:
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
            return
        config = self._config
        if not config.timer_wheel_enable:
            raise TimerMessageError(
                "WHEEL_TIMER_NOT_ENABLE",
                "accurate timer message is not enabled, timerWheelEnable is false: set it to true, or use the delay "
                "levels (the property DELAY)",
            )
        now = self._clock_ms()
        deliver = _deliver_time(properties, now)
        if deliver <= now:
            if PROPERTY_TIMER_DEL_UNIQKEY in properties:
                raise TimerMessageError(
                    "WHEEL_TIMER_MSG_ILLEGAL", f"the message to cancel was due {now - deliver} ms ago"
                )
            return
        if deliver - now > config.timer_max_delay_sec * 1000:
            raise TimerMessageError(
                "WHEEL_TIMER_MSG_ILLEGAL",
                f"timer message illegal, the delay time should not be bigger than the max delay "
                f"{config.timer_max_delay_sec * 1000}ms (timerMaxDelaySec): it is {deliver - now}ms",
            )
        out = out_time(deliver, config.timer_precision_ms)
        if self._is_congested(out):
            raise TimerMessageError(
                "WHEEL_TIMER_FLOW_CONTROL",
                f"timer message is under flow control: {self.slot_num(out)} messages are due in the same step, "
                f"timerCongestNumEachSlot is {config.timer_congest_num_each_slot}",
            )
        properties[PROPERTY_TIMER_OUT_MS] = str(out)
        properties[PROPERTY_REAL_TOPIC] = msg.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(msg.queue_id)
        msg.topic = TIMER_TOPIC
        msg.queue_id = 0

    def _is_congested(self, out: int) -> bool:
        """Returns True for a message to refuse: the fuller its step, the more are refused, from one limit on; all
        from twice of it (RocketMQ refuses less the fuller it is)."""
        limit = self._config.timer_congest_num_each_slot
        num = self.slot_num(out)
        return num > limit and (num >= 2 * limit or random.random() * limit < num - limit)


def _deliver_time(properties: dict[str, str], now: int) -> int:
    """ms since 1970. TimerMessageError."""
    name = next(name for name in TIMER_PROPERTIES if name in properties)
    text = properties[name]
    number = int(text) if _NUMBER.fullmatch(text) else None
    if number is None or not -_LONG_MAX <= number <= _LONG_MAX:
        raise TimerMessageError("WHEEL_TIMER_MSG_ILLEGAL", f"{name} has to be a whole number, not {text!r}")
    if name == PROPERTY_TIMER_DELIVER_MS:
        return number
    return now + (number * 1000 if name == PROPERTY_TIMER_DELAY_SEC else number)
