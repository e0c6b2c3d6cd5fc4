"""Hosts as bytes, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import MessageError
from mqlake.message import (
    host_bytes,
    host_from_bytes,
)

HOSTS = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))


class TestHosts:
    def test_layout(self):
        assert host_bytes(("127.0.0.1", 10911)) == bytes.fromhex("7f000001 00002a9f")
        assert host_bytes(("::1", 1)) == bytes(15) + b"\x01" + b"\0\0\0\x01"

    @given(HOSTS)
    def test_round_trip(self, host):
        assert host_from_bytes(host_bytes(host)) == host

    @given(st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20))
    def test_any_8_or_20_bytes_are_a_host(self, data):
        assert host_bytes(host_from_bytes(data)) == data

    @pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), bytes(19), bytes(21)])
    def test_other_lengths_are_not(self, data):
        with pytest.raises(MessageError):
            host_from_bytes(data)

    @pytest.mark.parametrize(
        "host", [("localhost", 1), ("", 1), ("1.2.3", 1), ("::x", 1), ("1.2.3.4", 1 << 31)]
    )
    def test_not_an_address(self, host):
        with pytest.raises(MessageError):
            host_bytes(host)
