"""A world in one thread: virtual time, hosts that stop and crash, streams that are late, cut or half-open.

Everything is decided by one random.Random, so a seed gives the same life each time; `trace` is a digest of it.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Literal

LinkState = Literal["up", "hung", "cut"]
SEGMENT_MAX = 700
WINDOW = 8192
"""Bytes under way in one direction before the sender has to wait."""


class World:
    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.dice = random.Random(seed)
        self.recent: list[str] = []
        self._trace = hashlib.sha256()
        self._events: list[tuple[float, int, Host | None, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def note(self, text: str) -> None:
        line = f"{self.now:10.4f} {text}"
        self._trace.update(line.encode())
        self.recent = [*self.recent[-49:], line]

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def after(self, delay: float, action: Callable[[], None], host: Host | None = None) -> None:
        """On `host`: not while it is paused, never when it has died meanwhile."""
        life = 0 if host is None else host.life
        heapq.heappush(self._events, (self.now + delay, next(self._number), host, life, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            at, _, host, life, action = heapq.heappop(self._events)
            self.now = max(self.now, at)
            if host is None:
                action()
            elif host.life == life:
                if host.is_paused:
                    host.missed.append((life, action))
                else:
                    action()
        self.now = max(self.now, end)


class Host:
    """A machine with one process on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 1
        self.runs = True
        self.is_paused = False
        self.missed: list[tuple[int, Callable[[], None]]] = []
        self.streams: list[End] = []

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        missed, self.missed = self.missed, []
        for life, action in missed:
            if self.life == life:
                action()

    def die(self, *, silently: bool) -> None:
        """`silently`: the machine has gone, so nobody is told that its connections have."""
        self.life += 1
        self.runs = self.is_paused = False
        self.missed = []
        streams, self.streams = self.streams, []
        for end in streams:
            if silently:
                end.is_closed = True
            else:
                end.close()


class Link:
    """The network between two hosts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state: LinkState = "up"
        self.delay = 0.001
        self._waiting: list[Callable[[], None]] = []
        self.streams: list[tuple[End, End]] = []

    def set(self, state: LinkState) -> None:
        self.state = state
        if state == "cut":
            for ends in self.streams:
                for end in ends:
                    end.reset()
            self.streams = []
        if state == "up":
            waiting, self._waiting = self._waiting, []
            for action in waiting:
                action()

    def carry(self, action: Callable[[], None]) -> None:
        """Now, or when the network works again."""
        if self.state == "hung":
            self._waiting.append(action)
        else:
            action()

    def connect(self, client: Host, server: Host, done: Callable[[End | None], None]) -> None:
        """`done` on the client: its end of the stream, None when it was refused or took too long."""
        world = self.world

        def arrive() -> None:
            # the kernel of a host whose process is stopped takes connections
            if self.state != "up" or not server.runs:
                world.after(self.delay, lambda: done(None), client)
                return
            mine, theirs = End(self, client), End(self, server)
            mine.other, theirs.other = theirs, mine
            self.streams.append((mine, theirs))
            life = client.life

            def established() -> None:
                if client.life == life:
                    done(mine)

            server.streams.append(theirs)
            world.after(0, lambda: server_accepts(server, theirs), server)
            world.after(self.delay, established, client)

        if self.state == "hung":
            world.after(5.0, lambda: done(None), client)
        else:
            world.after(self.delay, arrive)


def server_accepts(server: Host, end: End) -> None:
    accept = getattr(server, "accept", None)
    assert accept is not None
    accept(end)


class End:
    """One end of a stream. `on_data`, `on_end` are called on its host."""

    other: End

    def __init__(self, link: Link, host: Host) -> None:
        self.link = link
        self.host = host
        self.is_closed = False
        self.in_flight = 0
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        self._last = 0.0
        self._early: list[bytes] = []
        self.is_ready = False

    @property
    def has_room(self) -> bool:
        return not self.is_closed and self.in_flight < WINDOW

    def ready(self) -> None:
        """The handlers are there."""
        self.is_ready = True
        early, self._early = self._early, []
        for data in early:
            self.on_data(data)

    def send(self, data: bytes) -> None:
        dice = self.link.world.dice
        while data and not self.is_closed:
            size = dice.choice((1, 7, 8, 13, SEGMENT_MAX, SEGMENT_MAX, SEGMENT_MAX))
            piece, data = data[:size], data[size:]
            self.in_flight += len(piece)
            self._after_delay(lambda piece=piece: self.link.carry(lambda: self._arrive(piece)))  # type: ignore[misc]

    def _after_delay(self, action: Callable[[], None]) -> None:
        world = self.link.world
        self._last = max(self._last, world.now + self.link.delay * world.dice.uniform(0.5, 1.5))
        world.after(self._last - world.now, action)

    def _arrive(self, data: bytes) -> None:
        other = self.other
        if other.is_closed:
            # the other host has forgotten this connection, and says so
            if other.host.runs:
                self.link.world.after(self.link.delay, self.reset)
            return
        self.link.world.after(0, lambda: self._read(data), other.host)

    def _read(self, data: bytes) -> None:
        self.in_flight -= len(data)
        if not self.is_closed:
            self.link.world.after(self.link.delay, self.on_room, self.host)
        other = self.other
        if other.is_closed:
            return
        if other.is_ready:
            other.on_data(data)
        else:
            other._early.append(data)

    def close(self) -> None:
        """Orderly, as a dying process does it too: what was sent arrives first."""
        if not self.is_closed:
            self.is_closed = True
            self._after_delay(lambda: self.link.carry(lambda: self.other._told()))

    def _told(self) -> None:
        if not self.is_closed:
            self.link.world.after(0, self._end, self.host)

    def _end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.on_end()

    def reset(self) -> None:
        self._told()
