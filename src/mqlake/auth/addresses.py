"""The address patterns of ACL 1.0: `*`, `10.1.2.3`, `10.1.2.{3,4}`, `10.1.1-9.*`, lists, and the same with IPv6.

RocketMQ's RemoteAddressStrategy. A `*` stands in the last parts only, braces in the last one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from mqlake.errors import ConfigError

Matches = Callable[[str], bool]
EVERYBODY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})


def address_pattern(text: str) -> Matches:
    """Returns a test of an address (without its port) for the pattern; an empty text fits nobody. ConfigError."""
    text = text.strip()
    if not text:
        return lambda _: False
    if text in EVERYBODY:
        return lambda _: True
    if "{" in text or "}" in text:
        return _any_of([_one(each) for each in _braces(text)])
    if "," in text:
        return _any_of([_one(each.strip()) for each in text.split(",") if each.strip()])
    if "*" in text or "-" in text:
        return _parts(text)
    return _one(text)


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"{text}: not an address pattern")


def _any_of(found: list[Matches]) -> Matches:
    return lambda ip: any(matches(ip) for matches in found)


def _one(text: str) -> Matches:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _wrong(text) from None
    return lambda ip: _as_address(ip) == address


def _as_address(ip: str) -> object:
    try:
        return ipaddress.ip_address(ip)
    except ValueError:
        return None


def _braces(text: str) -> list[str]:
    head, brace, rest = text.partition("{")
    inner, closing, after = rest.partition("}")
    choices = [each.strip() for each in inner.split(",")]
    if not brace or not closing or after or head[-1:] not in (".", ":") or not all(choices):
        raise _wrong(text)
    return [head + each for each in choices]


def _parts(text: str) -> Matches:
    """Numbers, ranges and `*`, part by part."""
    is_v6 = ":" in text
    parts, base, largest = (text.split(":"), 16, 0xFFFF) if is_v6 else (text.split("."), 10, 255)
    if len(parts) != (8 if is_v6 else 4) or parts[0] == "*":
        raise _wrong(text)
    ranges: list[tuple[int, int]] = []
    for number, part in enumerate(parts):
        if part == "*":
            if any(each != "*" for each in parts[number:]):
                raise _wrong(text)
            ranges.append((0, largest))
            continue
        low, _, high = part.partition("-")
        try:
            ranges.append((int(low, base), int(high or low, base)))
        except ValueError:
            raise _wrong(text) from None
        if not 0 <= ranges[-1][0] <= ranges[-1][1] <= largest:
            raise _wrong(text)

    def matches(ip: str) -> bool:
        address = _as_address(ip)
        if not isinstance(address, ipaddress.IPv6Address if is_v6 else ipaddress.IPv4Address):
            return False
        own = address.exploded.split(":") if is_v6 else str(address).split(".")
        return all(low <= int(each, base) <= high for each, (low, high) in zip(own, ranges, strict=True))

    return matches
