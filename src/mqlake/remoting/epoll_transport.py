"""EpollTransport: a connection's socket outside the event loop, for an owner that reads many sockets in one step.

    epoll, of which the loop sees one descriptor ─▶ its owner ─┬─ reads and answers a connection itself
                                                              └─ `read`, `_write_rest` or `feed` of its transport

A Connection that was made by the loop is moved here (`take_over`), and notices nothing: its descriptor is duplicated,
so that the loop's transport can be closed without its socket. The owner may read and write the socket itself while the
connection `is_at_rest`: nothing is held, nothing waits to be sent, reading is not paused.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterable
from typing import Any

from mqlake.remoting.command import Buffer
from mqlake.remoting.connection import Connection

HIGH_WATER = 64 * 1024
"""Unsent bytes at which a connection is told, unless it says another number."""


class EpollTransport(asyncio.Transport):
    """The transport of `connection` over `sock`, registered in `epoll`. `on_change` is called with it whenever
    is_at_rest may have changed, `on_close` once, before its socket is closed; `had_bytes` says whether the owner has
    read some since it was asked last."""

    def __init__(
        self,
        epoll: select.epoll,
        sock: socket.socket,
        connection: Connection,
        extra: dict[str, Any],
        *,
        on_change: Callable[[EpollTransport], None],
        on_close: Callable[[EpollTransport], None],
        had_bytes: Callable[[EpollTransport], bool],
    ) -> None:
        super().__init__({**extra, "socket": sock})
        self.fd = sock.fileno()
        self.connection = connection
        self.had_bytes = had_bytes
        self._loop = asyncio.get_running_loop()
        self._epoll = epoll
        self._sock = sock
        self._on_change = on_change
        self._on_close = on_close
        self._unsent = bytearray()
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._reading = True
        self._closing = self._lost = self._told_to_pause = False
        self._registered = 0
        self._watch()

    @classmethod
    def take_over(cls, epoll: select.epoll, connection: Connection, **hooks: Any) -> EpollTransport | None:
        """Moves a connection that is_at_rest, and not in the middle of a read, from the loop's transport; None, and
        nothing done, when its socket cannot be had."""
        old = connection.transport
        plain = None if old is None else old.get_extra_info("socket")
        if old is None or plain is None or old.is_closing() or old.get_write_buffer_size():
            return None
        extra = {name: old.get_extra_info(name) for name in ("peername", "sockname")}
        try:
            sock = socket.socket(fileno=os.dup(plain.fileno()))
        except OSError:  # no descriptor is free
            return None
        sock.setblocking(False)
        old.pause_reading()
        old.set_protocol(asyncio.Protocol())
        old.abort()
        transport = cls(epoll, sock, connection, extra, **hooks)
        connection.move_to(transport, lambda: transport.had_bytes(transport))
        transport._changed()
        return transport

    # --- what the connection calls

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False
        self._changed()

    def resume_reading(self) -> None:
        self._reading = True
        self._changed()

    def write(self, data: Buffer) -> None:
        if self._lost or not data:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
        self._unsent += memoryview(data)[sent:]
        self._changed()
        if not self._told_to_pause and len(self._unsent) > self._high:
            self._told_to_pause = True
            self.connection.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """When everything is sent."""
        if not self._closing:
            self._closing = True
            self._changed()
            if not self._unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._lose(None)

    # --- what the owner of the epoll calls

    @property
    def is_at_rest(self) -> bool:
        """True if a frame that comes now would be the first thing to handle, and its answer the next to send."""
        return self._reading and not self._closing and not self._unsent and self.connection.is_at_rest

    def ready(self) -> None:
        """Does what the socket is ready for: writes what waits, else reads once."""
        if self._unsent:
            self._write_rest()
        if self._reading and not self._closing and not self._lost:
            self._read()

    def feed(self, data: memoryview) -> None:
        """Bytes that the owner has read, and does not handle."""
        if self._closing:
            return
        try:
            while data:
                size = self._put(data)
                self.connection.buffer_updated(size)
                data = data[size:]
        except Exception as error:
            self._failed(error)
        self._changed()

    def _put(self, data: memoryview) -> int:
        """As much of it as there is room for where the connection reads. Its buffer cannot grow in place while a view
        of it is alive: this one's ends with the call."""
        room = self.connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        return size

    # --- the socket

    def _read(self) -> None:
        try:
            count = self._sock.recv_into(self.connection.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if not count:
            self.connection.eof_received()
            self.close()
            return
        try:
            self.connection.buffer_updated(count)
        except Exception as error:
            self._failed(error)
        self._changed()

    def _write_rest(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:sent]
        self._changed()
        if self._told_to_pause and len(self._unsent) <= self._low:
            self._told_to_pause = False
            self.connection.resume_writing()
        if self._closing and not self._unsent:
            self._lose(None)

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a connection failed", "exception": error, "transport": self}
        )
        self._lose(error)

    def _changed(self) -> None:
        if not self._lost:
            self._watch()
            self._on_change(self)

    def _watch(self) -> None:
        wanted = select.EPOLLIN if self._reading and not self._closing else 0
        if self._unsent:
            wanted |= select.EPOLLOUT
        if wanted == self._registered:
            return
        if not wanted:  # else a peer that is gone would be reported all the time
            self._epoll.unregister(self.fd)
        elif self._registered:
            self._epoll.modify(self.fd, wanted)
        else:
            self._epoll.register(self.fd, wanted)
        self._registered = wanted

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._unsent.clear()
        if self._registered:
            self._epoll.unregister(self.fd)
        self._on_close(self)
        self._loop.call_soon(self._close_socket, error)

    def _close_socket(self, error: Exception | None) -> None:
        try:
            self.connection.connection_lost(error)
        finally:
            self._sock.close()
