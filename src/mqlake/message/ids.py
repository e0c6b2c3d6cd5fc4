"""Hosts, as records hold them, and message ids: offset ids, which say where a record is, and client ids, which its
producer makes up."""

from __future__ import annotations

import itertools
import random
import struct
import threading
import time
from ipaddress import IPv4Address, IPv6Address

from mqlake.base.clock import now_ms
from mqlake.errors import MessageError

Host = tuple[str, int]
"""IP address as text (v4 or v6, never a name) and port."""

NO_HOST: Host = ("0.0.0.0", 0)

_REMEMBERED = 4096
_PORT = struct.Struct(">i")
_OFFSET = struct.Struct(">q")


class _HostBytes(dict[Host, bytes]):
    """Remembers the newest hosts; the lookup of one that is known takes a third of lru_cache's."""

    def __missing__(self, host: Host) -> bytes:
        ip, port = host
        try:
            address = IPv6Address(ip) if ":" in ip else IPv4Address(ip)
            packed = address.packed + _PORT.pack(port)
        except (ValueError, struct.error) as e:
            raise MessageError(f"not an IP address and port: {host!r}") from e
        if len(self) >= _REMEMBERED:
            self.clear()
        self[host] = packed
        return packed


HOST_BYTES = _HostBytes()
"""host_bytes() for those who do nothing else a million times a second."""


def host_bytes(host: Host) -> bytes:
    """The host as records hold it: address, then the port as i32: 8 bytes for IPv4, 20 for IPv6.

    Raises MessageError when `host` is not an IP address and a port.
    """
    return HOST_BYTES[host]


class _Hosts(dict[bytes, Host]):
    """The other way."""

    def __missing__(self, data: bytes) -> Host:
        if len(data) == 8:
            host = f"{data[0]}.{data[1]}.{data[2]}.{data[3]}", _PORT.unpack_from(data, 4)[0]
        elif len(data) == 20:
            host = str(IPv6Address(data[:16])), _PORT.unpack_from(data, 16)[0]
        else:
            raise MessageError(f"a host has 8 or 20 bytes, not {len(data)}")
        if len(self) >= _REMEMBERED:
            self.clear()
        self[data] = host
        return host


HOSTS = _Hosts()
"""host_from_bytes() in the same way."""


def host_from_bytes(data: bytes) -> Host:
    """Inverse of `host_bytes`; 8 or 20 bytes. Raises MessageError for any other length."""
    return HOSTS[data]


def create_message_id(host: Host, physical_offset: int) -> str:
    """The offset message id: host and physical offset in upper case hexadecimal, 32 or 56 digits."""
    return (host_bytes(host) + _OFFSET.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[Host, int]:
    """Inverse of `create_message_id`. Raises MessageError."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError as e:
        raise MessageError(f"not a message id: {message_id!r} is not hexadecimal") from e
    if len(message_id) not in (32, 56) or 2 * len(data) != len(message_id):
        raise MessageError(
            f"not a message id: {message_id!r} has {len(message_id)} digits instead of 32 or 56"
        )
    return host_from_bytes(data[:-8]), _OFFSET.unpack_from(data, len(data) - 8)[0]


class _UniqIds:
    """Client ids: address (4) | pid (2) | class loader hash (4) | ms since the month began (4) | counter (2).

    The address is not the machine's: like Java on a machine without one, the four bytes are made up. They and the
    hash are random, so two processes do not share a prefix.
    """

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._address = random.SystemRandom().getrandbits(32)
        self._hash = random.SystemRandom().getrandbits(32)
        self._prefix = (0, "")  # of a native thread id
        self._month_start = self._month_end = 0

    def create(self) -> str:
        # The native id of the main thread is the process id. Using the caller's id ensures that a forked child,
        # which inherits its parent's counter, does not repeat its parent's ids.
        native_id = threading.get_native_id()
        known, prefix = self._prefix
        if native_id != known:
            prefix = f"{self._address:08X}{native_id & 0xFFFF:04X}{(self._hash + (native_id >> 16)) & 0xFFFFFFFF:08X}"
            self._prefix = (native_id, prefix)
        now = now_ms()
        if now >= self._month_end:
            self._set_month(now)
        elapsed = max(0, now - self._month_start) & 0xFFFFFFFF
        return f"{prefix}{elapsed:08X}{next(self._counter) & 0xFFFF:04X}"

    def _set_month(self, now: int) -> None:
        year, month = time.localtime(now // 1000)[:2]
        self._month_start = int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self._month_end = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))) * 1000


create_uniq_id = _UniqIds().create
"""() -> str: a new client message id (the property UNIQ_KEY), 32 hexadecimal digits."""
