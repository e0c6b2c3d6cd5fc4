"""sources: lists of addresses and networks."""

from __future__ import annotations

import pytest

from mqlake.auth.sources import SourceList, ip_of
from mqlake.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address", "included"),
    [
        ("", "8.8.8.8:1", True),
        ("10.0.0.0/8", "10.1.2.3:4711", True),
        ("10.0.0.0/8", "[::ffff:10.1.2.3]:4711", True),
        ("10.0.0.0/8,192.168.1.7", "192.168.1.7", True),
        ("10.0.0.0/8", "11.0.0.1:1", False),
        ("2001:db8::/32", "[2001:db8::1]:1", True),
        ("10.0.0.0/8", "garbage", False),
    ],
)
def test_addresses(text: str, address: str, included: bool) -> None:
    assert SourceList.parse(text, "key").includes(address) is included


def test_a_wrong_list_names_its_key() -> None:
    with pytest.raises(ConfigError, match="haSourceIps="):
        SourceList.parse("10.0.0.0/99", "haSourceIps")


def test_ports_are_cut_off() -> None:
    assert [ip_of(each) for each in ("10.0.0.1:1", "[::1]:2", "10.0.0.1")] == ["10.0.0.1", "::1", "10.0.0.1"]
