"""Hosts: an IP address and a port, as records and message ids hold them."""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from mqlake.errors import MessageError

Host = tuple[str, int]
"""IP address as text (v4 or v6, never a name) and port."""

NO_HOST: Host = ("0.0.0.0", 0)

_PORT = struct.Struct(">i")


@lru_cache(maxsize=4096)
def host_bytes(host: Host) -> bytes:
    """The host as records hold it: address, then the port as i32: 8 bytes for IPv4, 20 for IPv6.

    Raises MessageError when `host` is not an IP address and a port.
    """
    ip, port = host
    try:
        address = IPv6Address(ip) if ":" in ip else IPv4Address(ip)
        return address.packed + _PORT.pack(port)
    except (ValueError, struct.error) as e:
        raise MessageError(f"not an IP address and port: {host!r}") from e


@lru_cache(maxsize=4096)
def host_from_bytes(data: bytes) -> Host:
    """Inverse of `host_bytes`; 8 or 20 bytes. Raises MessageError for any other length."""
    if len(data) == 8:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}", _PORT.unpack_from(data, 4)[0]
    if len(data) == 20:
        return str(IPv6Address(data[:16])), _PORT.unpack_from(data, 16)[0]
    raise MessageError(f"a host has 8 or 20 bytes, not {len(data)}")
