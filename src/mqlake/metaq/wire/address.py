"""The address of a MetaQ broker."""

from __future__ import annotations

from mqlake.base.net import format_address, local_address


def broker_string(host: str, port: int) -> str:
    """`meta://host:port`, an IPv6 host in brackets; an empty host means this machine's own address."""
    return f"meta://{format_address((host or local_address(), port))}"
