"""Hosts as bytes and back; message ids name a record; client ids never repeat."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import MessageError
from mqlake.message import (
    create_message_id,
    create_uniq_id,
    decode_message_id,
    host_bytes,
    host_from_bytes,
)

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
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


class TestMessageIds:
    def test_vector(self):
        assert create_message_id(("127.0.0.1", 10911), 0) == "7F00000100002A9F0000000000000000"
        assert decode_message_id("7F00000100002A9F0000000000000000") == (("127.0.0.1", 10911), 0)

    @given(HOSTS, I64)
    def test_round_trip(self, host, offset):
        message_id = create_message_id(host, offset)
        assert re.fullmatch("([0-9A-F]{32}|[0-9A-F]{56})", message_id)
        assert decode_message_id(message_id) == decode_message_id(message_id.lower()) == (host, offset)

    @given(st.text() | st.text("0123456789abcdefABCDEF \n", min_size=30, max_size=58))
    def test_anything_else_is_a_message_error(self, text):
        try:
            host, offset = decode_message_id(text)
        except MessageError:
            return
        assert create_message_id(host, offset) == text.upper()


class TestUniqIds:
    def test_shape_and_uniqueness(self):
        ids = [create_uniq_id() for _ in range(10_000)]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("[0-9A-F]{32}", uniq_id) for uniq_id in ids)
        assert len({uniq_id[:20] for uniq_id in ids}) == 1

    def test_pid_is_in_it(self):
        import os

        assert int(create_uniq_id()[8:12], 16) == os.getpid() & 0xFFFF

    def test_threads_do_not_collide(self):
        ids: list[str] = []
        threads = [
            threading.Thread(target=lambda: ids.extend([create_uniq_id() for _ in range(2000)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 8000

    def test_a_forked_child_makes_its_own(self):
        program = (
            "import os, sys\n"
            "from mqlake.message import create_uniq_id\n"
            "create_uniq_id()\n"
            "pid = os.fork()\n"
            "os.write(1, (create_uniq_id() + '\\n').encode())\n"
            "if pid: os.waitpid(pid, 0)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        first, second = run.stdout.split()
        assert first[:20] != second[:20]
        assert first[:8] == second[:8]
