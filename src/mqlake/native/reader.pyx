# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Reads of a connection that compiled code looks at first.

    transport ─▶ TransportReader ─▶ each Taker in turn: the frames it knows, answered at once
                        └─▶ Connection: whatever they leave

A taker knows one kind of request: sends (`produce`), pulls (`pulls`). It answers while nothing else waits to be sent.
"""

from mqlake.native.prim cimport Bytes, i64, u8
from mqlake.native.system cimport monotonic_ns

import asyncio


cdef class Taker:
    """Answers requests of one kind out of the reads of a connection."""

    cdef i64 take(self, connection, Bytes data, i64 start, i64 size, i64 began) except -1:
        """Answers what it can of the frames that begin data[start:size], which was read at `began`, by the monotonic
        clock in ns; where the first frame begins that it has left."""
        return start


cdef class NativeReader:
    """A connection's reads: for the takers first, in the order in which they were added, then for the connection."""
    cdef object scratch
    cdef readonly object connection
    cdef readonly list takers
    cdef Bytes bytes_read
    cdef i64 size
    cdef bint is_whole

    def __init__(self, connection, u8[::1] scratch):
        """`scratch`: where reads go."""
        self.connection, self.scratch, self.takers = connection, scratch.base, []
        self.bytes_read, self.size = &scratch[0], scratch.shape[0]

    def add(self, Taker taker):
        self.takers.append(taker)

    def get_buffer(self, hint):
        self.is_whole = self.connection.is_at_rest
        return self.scratch if self.is_whole else self.connection.get_buffer(hint)

    def buffer_updated(self, Py_ssize_t size):
        cdef i64 handled = 0, began
        connection = self.connection
        if self.is_whole:
            began = monotonic_ns()
            for taker in self.takers:
                handled = (<Taker>taker).take(connection, self.bytes_read, handled, size, began)
                # what a taker has left for later comes before any other's answers
                if handled == size or (handled > 0 and not connection.is_at_rest):
                    break
        if handled < size:
            connection.buffer_updated(size, handled)
        else:
            connection.reads += 1
        if self.is_whole and size == self.size:  # more data waits, and uvloop would keep reading it
            connection.rest()


class TransportReader(NativeReader, asyncio.BufferedProtocol):
    """A NativeReader as a transport's protocol: what is not read is the connection's."""

    __slots__ = ()

    def connection_lost(self, error):
        self.connection.connection_lost(error)

    def eof_received(self):
        return self.connection.eof_received()

    def pause_writing(self):
        self.connection.pause_writing()

    def resume_writing(self):
        self.connection.resume_writing()
