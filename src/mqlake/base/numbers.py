"""Numbers as Java has them."""

from __future__ import annotations


def java_long(number: int) -> int:
    """The signed number in the same 64 bits: 2⁶⁴-1, as clients with unsigned numbers write it, is -1. ValueError if it
    takes more than 64 bits."""
    if -(1 << 63) <= number < 1 << 63:
        return number
    if 0 < number < 1 << 64:
        return number - (1 << 64)
    raise ValueError(f"{number.bit_length()} bits are more than 64")
