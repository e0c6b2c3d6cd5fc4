"""Readers: compiled code that looks at a connection's reads before the connection does (see native.reader)."""

from __future__ import annotations

from typing import Any

from mqlake import native
from mqlake.remoting.connection import Connection


def add_taker(connection: Connection, scratch: memoryview, taker: Any) -> None:
    """Has `taker`, a native Taker, look at each read of a plain connection. `scratch`: where reads go."""
    transport = connection.transport
    if transport is None:  # it was lost in the middle of a read
        return
    reader: Any = transport.get_protocol()
    if reader is connection:
        module = native.module("reader")
        assert module is not None, "who has a taker has native code"
        reader = module.TransportReader(connection, scratch)
        connection.read_by(reader)
    reader.add(taker)
