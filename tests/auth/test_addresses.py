"""addresses: ACL 1.0's patterns, with the cases of RocketMQ's RemoteAddressStrategyTest."""

from __future__ import annotations

import pytest

from mqlake.auth.addresses import EVERYBODY, address_pattern
from mqlake.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["127.0.0.1"], []),
        ("*:*:*:*:*:*:*:*", ["::1"], []),
        ("127.0.0.1", ["127.0.0.1"], ["127.0.0.2", "::1"]),
        ("127.0.0.{1,2}", ["127.0.0.1", "127.0.0.2"], ["127.0.0.3"]),
        ("127.0.0.1,127.0.0.3", ["127.0.0.1", "127.0.0.3"], ["127.0.0.2"]),
        ("127.0.1-9.*", ["127.0.1.0", "127.0.9.255"], ["127.0.0.1", "127.0.10.1", "::1"]),
        ("127.0.0.5-7", ["127.0.0.5", "127.0.0.7"], ["127.0.0.4", "127.0.0.8"]),
        ("5::7:6:1-200:*", [], []),
        ("2001:db8::1", ["2001:0db8:0:0:0:0:0:1"], ["2001:db8::2"]),
        ("2001:db8:0:0:0:0:1-ff:*", ["2001:db8::1:5", "2001:db8::ff:1"], ["2001:db8::100:1", "127.0.0.1"]),
        ("2001:db8::{1,2}", ["2001:db8::1", "2001:db8::2"], ["2001:db8::3"]),
    ],
)
def test_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    if not inside and not outside:
        with pytest.raises(ConfigError):
            address_pattern(pattern)
        return
    matches = address_pattern(pattern)
    assert all(matches(ip) for ip in inside) and not any(matches(ip) for ip in outside)
    assert matches("no address") is (pattern in EVERYBODY)


@pytest.mark.parametrize(
    "pattern",
    [
        "127.0.0",
        "127.0.0.256",
        "127.*.0.1",
        "*.1.1.1",
        "127.0.0.{1,2",
        "127.0.{0,1}.1",
        "127.0.0.{1,}",
        "a-b.1.1.1",
        "9-1.1.1.1",
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not an address pattern"):
        address_pattern(pattern)
