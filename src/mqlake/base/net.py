"""Addresses: host:port as text, and this machine's own address.

Whatever takes an address from a user or a peer reads it with `parse_address` (ConfigError), and whatever shows one uses
`format_address`. Brokers advertise `local_address` when brokerIP1 names none.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket

from mqlake.errors import ConfigError, RemotingConnectError

PORT_MAX = 65535


def format_address(address: object) -> str:
    """A socket's address as host:port; IPv6 hosts in brackets."""
    if not isinstance(address, tuple) or len(address) < 2:
        return str(address or "")
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` → (host, port). RemotingConnectError if the address is invalid."""
    if "//" in address:
        raise RemotingConnectError(address, "not an address; host:port is needed, without http://")
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise RemotingConnectError(address, "not an address; host:port is needed")
    return host.removeprefix("[").removesuffix("]"), int(port)


def reason_of(error: Exception) -> str:
    """Says what went wrong with a connection or a listener; never empty. The texts of event loops and of
    create_server repeat the address, so the system's own is taken where there is one."""
    number = error.errno if isinstance(error, OSError) else None
    if number and number > 0:  # an unknown host name has one below 0
        text = os.strerror(number)
        if not text.startswith("Unknown error"):  # as of Windows' numbers of sockets
            return text
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def require_free_port(host: str, port: int) -> None:
    """ConfigError if a server cannot listen there now. For a command that opens the port only when it has changed
    something already."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(f"cannot listen on {format_address((host, port))}: {reason_of(error)}") from error


def is_every_address(host: str) -> bool:
    """True if a server that is bound to `host` listens on every address of this machine."""
    return host in ("", "0.0.0.0", "::")


@functools.lru_cache(maxsize=64)
def ip_address_of(host: str) -> str:
    """`host`, or the IP address of the host with this name as it was at the first call, of IPv4 if it has one, as Java
    does. ConfigError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
    except OSError as error:
        raise ConfigError(f"the address of host {host!r} cannot be found: {error.strerror}") from None


def local_address() -> str:
    """The address that this machine's default route starts from; the loopback address if there is no route."""
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))  # sends no packet
                return str(probe.getsockname()[0])
        except OSError:
            pass
    return "127.0.0.1"
