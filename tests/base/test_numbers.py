"""Numbers as Java has them."""

from __future__ import annotations

import pytest

from mqlake.base.numbers import java_long


@pytest.mark.parametrize(
    ("number", "signed"),
    [
        (0, 0),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, -(2**63)),
        (2**64 - 1, -1),
        (2**64 - 2, -2),
    ],
)
def test_64_bits_are_signed(number: int, signed: int):
    """Without it an offset of -1 that a client writes unsigned would be beyond every queue's end."""
    assert java_long(number) == signed


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**40])
def test_more_than_64_bits(number: int):
    with pytest.raises(ValueError, match="more than 64"):
        java_long(number)
