"""The table of properties and flags: everything that has a name has a row, and native code takes what rows allow."""

from __future__ import annotations

import pytest

from mqlake import message
from mqlake.message import MessageSysFlag, properties
from mqlake.message.policy import PROPERTIES, SYS_FLAGS, Policy, bits_without, names_with
from mqlake.native import requests, serving

COMPRESSION_TYPES = 0x700


@pytest.mark.parametrize("module", [message, properties])
def test_every_property_has_a_row(module: object) -> None:
    """Without one a property that is special on the slow path would take the fast path, and nobody would notice."""
    named = {name: value for name, value in vars(module).items() if name.startswith("PROPERTY_")}
    named.pop("PROPERTY_SEPARATOR", None)
    missing = {name for name, value in named.items() if value not in PROPERTIES}
    assert not missing, f"{missing}: say in message/policy.py what a broker does with them"
    assert len(named) > 60


def test_every_row_is_a_property_that_has_a_name() -> None:
    assert PROPERTIES.keys() <= {
        value for name, value in vars(properties).items() if name.startswith("PROPERTY_")
    }


def test_every_flag_has_a_row() -> None:
    named = {name: bits for name, bits in vars(MessageSysFlag).items() if name.isupper() and bits}
    known = sum(SYS_FLAGS)
    for name, bits in named.items():
        assert bits & ~known == 0, f"{name}: say in message/policy.py what a broker does with it"
        assert bits in SYS_FLAGS or bits.bit_count() > 1
    assert all(bit.bit_count() == 1 for bit in SYS_FLAGS)


def test_native_code_takes_the_flags_that_a_row_allows_and_no_others() -> None:
    """Its masks are allow-lists: a bit that gets a meaning some day takes the slow path until somebody has looked."""
    for mask, what in ((requests.FAST_SEND_FLAGS, Policy.SEND), (serving.FAST_PUT_FLAGS, Policy.PUT)):
        assert mask == bits_without(what)
        for bit in range(31):
            allowed = 1 << bit in SYS_FLAGS and not SYS_FLAGS[1 << bit] & what
            assert bool(mask & 1 << bit) is allowed, (bit, what)
    half = int(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
    assert requests.FAST_SEND_FLAGS & half and not serving.FAST_PUT_FLAGS & half
    assert requests.FAST_SEND_FLAGS & ~COMPRESSION_TYPES == 0x7


def test_what_a_broker_does_is_said_once() -> None:
    assert set(names_with(Policy.TIMER)) == {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}
    assert set(names_with(Policy.LIGHT_QUEUE)) == {"INNER_MULTI_DISPATCH", "__LITE_TOPIC"}
    # whatever the log settles a broker has to see, too
    assert set(names_with(Policy.PUT)) <= set(names_with(Policy.SEND))
    assert set(names_with(Policy.TIMER | Policy.LIGHT_QUEUE)) <= set(names_with(Policy.SEND))
    assert not set(names_with(Policy.ONLY_HALF)) & set(names_with(Policy.SEND | Policy.HALF))
