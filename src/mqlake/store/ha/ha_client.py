"""HAClient: the slave's side of the connection to its master, without sockets.

    connected(now) ──▶ output: where to begin                  the last bytes it has are asked for again
    received(bytes, now) ─▶ the same bytes? ─▶ ReplicaLog ──▶ output: reports
    closed_because     not empty: the driver closes, and connects again after RETRY_S
    trouble            AHEAD, DIVERGED, ...: shown to the operator until a connection works again

RocketMQ's slave compares no bytes: a slave whose tail is not its master's goes on, with other messages in the same
places. Here each connection begins with the last `verify_bytes` of the slave's own log, which the master sends like
any others, since its protocol lets the slave choose where to begin. Nothing is appended before they are found equal.
A slave that has more than its master, or other bytes, keeps all it has, acknowledges nothing, and says what differs.

The log gets whole records only; the incomplete one at the end of what was received waits here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mqlake.store.ha.flow_monitor import FlowMonitor
from mqlake.store.ha.protocol import (
    HEADER,
    HELLO,
    HELLO_FRAME,
    REPORT,
    WELCOME,
    Buffer,
    ReplicaLog,
    ReplicationError,
    split_at_file_ends,
)

RETRY_S = 5.0
"""Pause before a connection that failed is tried again."""
VERIFY_BYTES = 64 * 1024
"""Bytes of the own log's end that a connection begins with."""
TELLING_BYTES = 64
"""At least so many of them are not zero."""
ZERO = b"\0"
PARTIAL_BYTES = 4 << 20
"""Room for bytes that are no whole record yet, to begin with."""
MOVED_MAX = 64 * 1024
"""So many of them are moved to the front before more are received: the same room again is in the processor's cache."""


class ClientState(enum.Enum):
    """RocketMQ's HAConnectionState, as far as a slave without controllers has them."""

    READY = "READY"
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


class Trouble(enum.Enum):
    """The reason why a slave does not follow its master."""

    NONE = "none"
    UNREACHABLE = "unreachable"
    AHEAD = "ahead"
    """The slave has bytes after the master's end."""
    DIVERGED = "diverged"
    """The slave has other bytes than the master in the same place."""
    NOT_SENT = "not sent"
    """The master sends nothing from where the slave's log ends: it has deleted those files, or its log is shorter."""
    REFUSED = "refused"
    """Bytes that cannot be part of this log: another file size, another protocol, damage."""
    DISK = "disk"
    """The slave cannot write."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """haSendHeartbeatInterval and haHousekeepingInterval in seconds; where to begin when the log is empty."""

    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    verify_bytes: int = VERIFY_BYTES
    in_place_min: int = 64 * 1024
    """Bytes of a frame from which on they are received in place."""


class HAClient:
    """One slave's connections, one at a time. `first_offset()` says where an empty log begins: a start of a file; 0 is
    the beginning of the first; -1 the master's last file; None: not known yet, so do not connect. `master_begin()` and
    `master_end()` say where the master's log begins and ends, as far as it is known: RocketMQ's master takes the first
    report for an acknowledgement, also one beyond its end."""

    def __init__(
        self,
        log: ReplicaLog,
        settings: ClientSettings,
        *,
        first_offset: Callable[[], int | None] = lambda: 0,
        master_begin: Callable[[], int | None] = lambda: None,
        master_end: Callable[[], int | None] = lambda: None,
        hello: tuple[int, int, int] | None = None,
    ) -> None:
        """`hello`: in a group with failover, the epoch of the master that it follows, its replica id and the number of
        its store."""
        self.state = ClientState.READY
        self.trouble = Trouble.NONE
        self.trouble_text = ""
        self.diverged_at: int | None = None
        """AHEAD, DIVERGED: from here on the slave's bytes are not the master's."""
        self.closed_because = ""
        self.refusal = ""
        """Why this master must not be followed, as somebody found who asked it; empty: it may."""
        self.current_reported_offset = -1
        self.master_offset = -1
        """End of what the master has sent or announced; -1 before it spoke."""
        self.last_read = self.last_write = 0.0
        self.flow = FlowMonitor()
        self._log = log
        self._settings = settings
        self._first_offset = first_offset
        self._master_begin, self._master_end = master_begin, master_end
        self._hello = hello
        self._awaits_welcome = False
        self._output = bytearray()
        self._header = bytearray()
        self._body_left = 0
        self._offset = 0
        """Physical offset of the next byte of a body."""
        self._verify_until = 0
        self._verify_from = 0
        self._verify_less = False
        self._partial = _Partial()
        self._needed = 0

    # --- life of a connection

    @property
    def may_connect(self) -> bool:
        return (
            not self.refusal
            and self.state is ClientState.READY
            and (not self._log.is_empty or self._first_offset() is not None)
        )

    def refuse(self, reason: str) -> None:
        """Somebody who asked the master found that it is none of this slave's; empty: that it is."""
        self.refusal = reason
        if reason:
            self.trouble, self.trouble_text = Trouble.REFUSED, reason

    def connected(self, now: float) -> None:
        """A connection stands: what to send first is in output."""
        self.state = ClientState.TRANSFER
        self.closed_because = ""
        self.last_read = now
        self.flow = FlowMonitor()
        self._output.clear()
        self._header.clear()
        self._body_left = self._needed = 0
        self._partial.clear()
        self.master_offset = -1
        self._awaits_welcome = self._hello is not None
        if self._hello is not None:
            self._output += HELLO_FRAME.pack(HELLO, *self._hello)
        self._report(self._begin(), now)

    def _begin(self) -> int:
        """The first report."""
        if self._log.is_empty:
            first = self._first_offset()
            assert first is not None, "may_connect was not asked"
            self._verify_from = self._verify_until = -1
            if first < 0:
                self._offset = -1  # wherever the master begins
                return 0
            self._offset = first
            if first:
                return first
            # a report of 0 asks Java's master for its last file. The first byte of the first record is that of a size
            # below 16 MiB: zero
            self._partial.add(memoryview(ZERO))
            self._offset = 1
            return 1
        end = self._log.max_offset
        known = self._master_end()
        both = end if known is None else max(min(end, known), self._log.min_offset)
        # the master need not have the file before the one that the log ends in
        file_start = both - (both % self._log.file_size or self._log.file_size)
        start = self._verify_start(both, max(file_start, self._log.min_offset))
        begin = self._master_begin()
        if self._verify_less and both % self._log.file_size == 0 and (begin is None or begin > start):
            start = both
        self._verify_until, self._offset = end, max(start, min(1, end))
        self._verify_from = self._offset
        return self._offset

    def _verify_start(self, end: int, lowest: int) -> int:
        """`verify_bytes` before the end, or further back to bytes that tell something: blanks at the ends of files are
        zeros in every log."""
        size = self._settings.verify_bytes
        while (start := max(end - size, lowest)) > lowest:
            own = self._log.select(start, end - start)
            if own is None or np.count_nonzero(np.frombuffer(own, np.uint8)) >= TELLING_BYTES:
                break
            size = max(2 * size, TELLING_BYTES)
        return start

    def lost(self, reason: str = "") -> None:
        """The connection is gone, or could not be made (`reason`)."""
        is_other = self.trouble in (Trouble.AHEAD, Trouble.DIVERGED)
        if self.state is ClientState.TRANSFER and self._is_verifying and self._offset == self._verify_from:
            # a master that deleted the file before the one where this log ends sends nothing from there; a log that
            # was found to be another one is compared whatever happens
            self._verify_less = not self._verify_less and not is_other
        if self.state is not ClientState.SHUTDOWN:
            self.state = ClientState.READY
        if reason and self.trouble in (Trouble.NONE, Trouble.UNREACHABLE):
            self.trouble, self.trouble_text = Trouble.UNREACHABLE, reason
        self._partial.clear()
        self._output.clear()

    def shutdown(self) -> None:
        self.state = ClientState.SHUTDOWN

    def take_output(self) -> bytes:
        """Returns the bytes to send to the master now."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def tick(self, now: float) -> None:
        """Reports when it is time to, and closes a connection whose master is silent."""
        if self.state is not ClientState.TRANSFER or self.closed_because:
            return
        if now - self.last_read > self._settings.housekeeping_s:
            silent = self._settings.housekeeping_s
            self._close(
                Trouble.UNREACHABLE,
                f"nothing from the master for more than {silent:g} s (haHousekeepingInterval)",
            )
        elif now - self.last_write >= self._settings.heartbeat_s:
            self._report(max(self.current_reported_offset, 0), now)
            if not self._is_verifying:
                self._report_progress(now)

    def next_time(self) -> float:
        """When to call tick() again, if nothing happens before."""
        return min(
            self.last_write + self._settings.heartbeat_s, self.last_read + self._settings.housekeeping_s
        )

    @property
    def _is_verifying(self) -> bool:
        return self._offset < self._verify_until

    @property
    def is_following(self) -> bool:
        """True if the master's bytes are being appended (or would be, if there were any)."""
        return (
            self.state is ClientState.TRANSFER
            and not self.closed_because
            and self.master_offset >= 0
            and not self._is_verifying
            and not self._awaits_welcome
        )

    def _close(self, trouble: Trouble, text: str, diverged_at: int | None = None) -> None:
        self.closed_because = self.trouble_text = text
        self.trouble, self.diverged_at = trouble, diverged_at

    def _report(self, offset: int, now: float) -> None:
        self._output += REPORT.pack(offset)
        self.last_write = now
        self.current_reported_offset = offset

    # --- what the master sends

    def room(self) -> memoryview | None:
        """Returns the memory for the next bytes, if they are many of one frame: receive them there, and give their
        number as `in_room`, to save a copy. To be used at once."""
        if (
            self._body_left < self._settings.in_place_min
            or self.state is not ClientState.TRANSFER
            or self.closed_because
            or self._is_verifying
            or self._awaits_welcome
            or self.trouble is not Trouble.NONE
        ):
            return None
        return self._partial.room(self._body_left)

    def received(self, data: Buffer, now: float, *, in_room: int = 0) -> None:
        """Bytes from the master: the first `in_room` lie in room(), `data` follows them. What they lead to is in
        take_output() and closed_because."""
        if self.state is not ClientState.TRANSFER or self.closed_because:
            return
        self.last_read = now
        self.flow.add(in_room + len(data), now)
        if in_room:
            self._partial.grow(in_room)
            self._body_left -= in_room
            self._offset += in_room
        try:
            self._parse(memoryview(data))
            if not self.closed_because:
                self._append()
                self._report_progress(now)
        except ReplicationError as error:
            self._close(Trouble.REFUSED, str(error))
        except OSError as error:
            self._close(Trouble.DISK, f"the log cannot be written: {error.strerror or error}")

    def _parse(self, data: memoryview) -> None:
        while data and not self.closed_because:
            if not (self._body_left or self._header or self._is_verifying or self._awaits_welcome):
                data = data[self._take_whole_frames(data) :]
                if not data:
                    return
            if self._body_left:
                body, data = data[: self._body_left], data[self._body_left :]
                self._body_left -= len(body)
                self._receive_body(body)
                continue
            missing = HEADER.size - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) == HEADER.size:
                offset, size = HEADER.unpack(self._header)
                self._header.clear()
                if self._awaits_welcome:
                    self._check_welcome(offset, size)
                    continue
                self._check_header(offset, size)
                self._body_left = size

    def _take_whole_frames(self, data: memoryview) -> int:
        """Takes the frames at the beginning that are whole and as expected; bytes of `data` that they have. The rest
        is looked at by who says what is wrong with it."""
        if self._offset < 0 or self.trouble is not Trouble.NONE:
            return 0
        file_size, end, head = self._log.file_size, len(data), HEADER.size
        at, offset, add = 0, self._offset, self._partial.add
        while end - at > head:
            sent_from, size = HEADER.unpack_from(data, at)
            following = at + head + size
            if sent_from != offset or not 0 < size <= file_size - offset % file_size or following > end:
                break
            add(data[at + head : following])
            offset += size
            at = following
        self._offset = offset
        self.master_offset = max(self.master_offset, offset if at else -1)
        return at

    def _check_welcome(self, epoch: int, size: int) -> None:
        """ReplicationError when it is not the master of the epoch that this replica follows."""
        assert self._hello is not None
        if size != WELCOME or epoch != self._hello[0]:
            raise ReplicationError(
                f"the broker there is not the master of epoch {self._hello[0]}: it takes no part in failover"
            )
        self._awaits_welcome = False

    def _check_header(self, offset: int, size: int) -> None:
        """ReplicationError when no such frame can come next."""
        file_size = self._log.file_size
        if self._offset < 0 and offset >= 0 and offset % file_size == 0:
            self._offset = offset
        if offset != self._offset:
            raise ReplicationError(
                f"the master sends from offset {offset}, and {self._offset} is next here"
                if self._offset >= 0
                else f"the master begins at offset {offset}, no start of a file of {file_size} bytes: "
                "its mappedFileSizeCommitLog is another one, or it is no RocketMQ master"
            )
        if size < 0:
            raise ReplicationError(f"a frame of {size} bytes: it is no RocketMQ master")
        if size > file_size - offset % file_size:
            raise ReplicationError(
                f"a frame of {size} bytes at offset {offset} crosses the end of a commit log file of {file_size} "
                "bytes: the master's mappedFileSizeCommitLog is another one, or it is no RocketMQ master"
            )
        self.master_offset = max(self.master_offset, offset + size)
        if not size:
            self._heartbeat()
        elif self.trouble is not Trouble.NONE and not self._is_verifying:
            self._clear_trouble()

    def _heartbeat(self) -> None:
        """The master has nothing from `_offset` on."""
        if not self._is_verifying:
            self._clear_trouble()
            return
        end = self._verify_until
        if self._offset == self._verify_from:
            self._close(
                Trouble.NOT_SENT,
                f"the master sends nothing from offset {self._offset} on, and this log ends at {end}: either the "
                "master's log is shorter, or it has deleted the file",
            )
        else:
            self._close(
                Trouble.AHEAD,
                f"this slave is ahead of its master: the master's log ends at offset {self._offset}, this one at "
                f"{end}; {end - self._offset} bytes would have to be cut",
                self._offset,
            )

    def _clear_trouble(self) -> None:
        self.trouble, self.trouble_text, self.diverged_at = Trouble.NONE, "", None
        self._verify_less = False

    def _receive_body(self, body: memoryview) -> None:
        if self._is_verifying:
            own_part = body[: self._verify_until - self._offset]
            self._compare(own_part)
            self._offset += len(own_part)
            body = body[len(own_part) :]
            if self.closed_because or not body:
                return
            if self.trouble is not Trouble.NONE:
                self._clear_trouble()
        self._partial.add(body)
        self._offset += len(body)

    def _compare(self, theirs: memoryview) -> None:
        """The master's bytes with the own ones in the same place."""
        at = self._offset
        for offset, part in split_at_file_ends(at, theirs, self._log.file_size):
            own = self._log.select(offset, len(part))
            if own is None:
                raise ReplicationError(f"the own bytes at offset {offset} cannot be read")
            if own != part:
                differs = np.frombuffer(own, np.uint8) != np.frombuffer(part, np.uint8)
                first = offset + int(differs.argmax())
                end = self._verify_until
                self._close(
                    Trouble.DIVERGED,
                    f"this slave's log is not its master's: other bytes at offset {first}; the last {end - first} "
                    f"bytes, up to {end}, or more would have to be cut",
                    first,
                )
                return

    def _append(self) -> None:
        """Gives the log the whole records that have come. ReplicationError, OSError."""
        partial = self._partial
        while len(partial) > self._needed:
            start = self._offset - len(partial)
            room = self._log.file_size - start % self._log.file_size
            with partial.view() as view, view[:room] as data:
                taken, self._needed = self._log.append(start, data)
            if not taken:
                # not complete: come again when there is one byte more than before, at least
                self._needed = max(self._needed - 1, len(partial))
                return
            partial.drop(taken)
            self._needed = max(self._needed - 1, 0)

    def _report_progress(self, now: float) -> None:
        if self._is_verifying or self._log.is_empty:
            return
        if self._log.max_offset > self.current_reported_offset:
            self._log.sync()
            if (offset := self._log.acknowledged_offset) > self.current_reported_offset:
                self._report(offset, now)


class _Partial:
    """Bytes from the log's end on that are no whole record yet, in one buffer that is used again: one that comes and
    goes with each read costs more than the copies into it."""

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(PARTIAL_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def view(self) -> memoryview:
        return self._view[self._start : self._end]

    def add(self, data: memoryview) -> None:
        end = self._end + len(data)
        if end > len(self._buffer):
            self._make_room(len(data))
            end = self._end + len(data)
        self._view[self._end : end] = data
        self._end = end

    def room(self, size: int) -> memoryview:
        """Room for `size` bytes more, or for fewer."""
        if self._start and len(self) <= MOVED_MAX:
            self._make_room(0)
        if self._end == len(self._buffer):
            self._make_room(size)
        return self._view[self._end : self._end + size]

    def grow(self, size: int) -> None:
        """So many bytes are in room() now."""
        self._end += size

    def drop(self, size: int) -> None:
        """The first `size` bytes."""
        self._start += size
        if self._start == self._end:
            self._start = self._end = 0

    def clear(self) -> None:
        if len(self._buffer) > PARTIAL_BYTES:  # grown for a record that was larger than any before
            self.__init__()  # type: ignore[misc]
        self._start = self._end = 0

    def _make_room(self, more: int) -> None:
        kept = bytes(self.view())
        if len(kept) + more > len(self._buffer):
            self._buffer = bytearray(2 * (len(kept) + more))
            self._view = memoryview(self._buffer)
        self._view[: len(kept)] = kept
        self._start, self._end = 0, len(kept)
