"""SourceList: the addresses that may use an endpoint.

SourceList.parse("10.0.0.0/8, 192.168.1.7").includes("10.1.2.3:4711")     True
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass
from typing import Self

from mqlake.base.net import parse_address
from mqlake.errors import ConfigError, RemotingConnectError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@functools.lru_cache(4096)  # a connection asks for each request
def ip_of(address: str) -> str:
    """The address without its port (`10.0.0.1:4711`, `[::1]:4711`); an IPv4 address mapped into IPv6 as IPv4."""
    try:
        host = parse_address(address)[0]
    except RemotingConnectError:
        host = address
    return host.removeprefix("::ffff:") if host.count(".") == 3 else host


@dataclass(frozen=True, slots=True)
class SourceList:
    networks: tuple[Network, ...] = ()
    """Empty: every address."""

    @classmethod
    def parse(cls, text: str, key: str) -> Self:
        """From addresses and networks with `,` between. ConfigError names `key`."""
        try:
            return cls(
                tuple(
                    ipaddress.ip_network(each.strip(), strict=False)
                    for each in text.split(",")
                    if each.strip()
                )
            )
        except ValueError as error:
            raise ConfigError(f"{key}={text}: {error}") from None

    def includes(self, address: str) -> bool:
        """True if a peer may connect; `address` with or without its port."""
        if not self.networks:
            return True
        try:
            ip = ipaddress.ip_address(ip_of(address))
        except ValueError:
            return False
        return any(ip in network for network in self.networks)
