"""Hosts: an IP address and a port, as records and message ids hold them."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from mqlake.errors import MessageError

Host = tuple[str, int]
"""IP address as text (v4 or v6, never a name) and port."""

NO_HOST: Host = ("0.0.0.0", 0)

_REMEMBERED = 4096
_PORT = struct.Struct(">i")


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
