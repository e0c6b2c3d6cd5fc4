"""Helper: a thread beside the event loop's that serves connections in its leases, in compiled code for all its life.

    Lease ── begin: what with, on the desk ──▶ eventfd ─▶ help (native.loop): serve ─▶ eventfd ──▶ end: what came of it

It never holds the interpreter lock, and works only while the event loop's thread is in a lease and waits for its end.
"""

from __future__ import annotations

import os
import signal
import threading
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mqlake.native.loop_layout import (
    DESK_SIZE,
    DONE_FD,
    EPOLL_FD,
    FAILED,
    LOG_AT,
    LOG_SIZE,
    OVER,
    RECORD_MAX,
    RESULT,
    SEND_NUMBERS_AT,
    SEND_NUMBERS_SIZE,
    SEND_OCTETS_AT,
    SEND_OCTETS_SIZE,
    STOPS,
    WAKE_FD,
)

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Parts(Protocol):
    numbers: Int64s
    octets: Bytes


class Stake(Protocol):
    """Those of a lease, whose arrays stay what they are."""

    epoll: int
    numbers: Int64s
    octets: Bytes
    pull_tables: tuple[Int64s, Bytes]


class Helper:
    """Serves the connections of a stake."""

    def __init__(self, kernels: ModuleType, name: str, stake: Stake, common: Int64s) -> None:
        self._desk: Int64s = np.zeros(DESK_SIZE, np.int64)
        self._cells = cells = self._desk.data
        self._parts: Parts | None = None
        self._wake, self._done = os.eventfd(0), os.eventfd(0)
        cells[WAKE_FD], cells[DONE_FD], cells[EPOLL_FD] = self._wake, self._done, stake.epoll
        self._thread = threading.Thread(
            target=self._run, args=(kernels, stake, common), name=name, daemon=True
        )
        self._thread.start()

    def _run(self, kernels: ModuleType, stake: Stake, common: Int64s) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        try:
            _help(kernels, self._desk, stake, common)
        except BaseException:
            common[[FAILED, STOPS]] = 1  # those that wait for its records wait in vain
            raise
        finally:
            self._cells[OVER] = 1
            os.eventfd_write(self._done, 1)

    def begin(self, log: Bytes, parts: Parts, record_max: int) -> None:
        """Has it serve until the lease ends; the arrays stay where they are until then. RuntimeError when the thread
        has failed before."""
        cells = self._cells
        if cells[OVER]:
            raise RuntimeError(f"the thread {self._thread.name} has ended")
        if parts is not self._parts:
            self._parts = parts
            cells[SEND_NUMBERS_AT], cells[SEND_NUMBERS_SIZE] = parts.numbers.ctypes.data, len(parts.numbers)
            cells[SEND_OCTETS_AT], cells[SEND_OCTETS_SIZE] = parts.octets.ctypes.data, len(parts.octets)
        cells[LOG_AT], cells[LOG_SIZE], cells[RECORD_MAX] = log.ctypes.data, len(log), record_max
        os.eventfd_write(self._wake, 1)

    def end(self) -> list[int]:
        """Waits until it is done; what `serve` returned. RuntimeError when the thread has failed, which it logs."""
        os.eventfd_read(self._done)
        if self._cells[OVER]:
            raise RuntimeError(f"the thread {self._thread.name} has ended")
        result: list[int] = self._desk[RESULT:WAKE_FD].tolist()
        return result

    def close(self) -> None:
        """Ends the thread."""
        self._cells[OVER] = 1
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        os.close(self._done)


def _help(kernels: ModuleType, desk: Int64s, stake: Stake, common: Int64s) -> None:
    kernels.help(desk, stake.numbers, stake.octets, *stake.pull_tables, common)
