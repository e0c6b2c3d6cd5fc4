"""stdin, stdout and stderr that the caller closed, or that cannot be written.

The next file or socket would take a closed descriptor from 0 to 2, and libuv aborts when it has to close one of those.
So they are opened in the direction in which their use fails: reading a closed stdin or printing to a closed stdout is
an error, as for cat and ls. Output to a closed stderr is dropped.

What goes to a terminal is made visible (`terminal`), unless it is written to `unguarded()`.

An error of stdout names it, as an error of a file names the file. Buffered output is written before the process ends,
while an error can still be reported and set the exit status.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import IO, TYPE_CHECKING

from mqlake.cli.terminal import Visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_ERROR = 1
EXIT_NOT_FOUND = 1
"""Exit status of a search that found nothing, as grep's."""
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
"""The status of a filter that SIGPIPE ended."""

STDOUT = "standard output"
"""Name of stdout in errors."""

Status = str | int | None
"""The argument of SystemExit."""


class _StandardOutput(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


class _Terminal(_StandardOutput):
    def __init__(self, encoding: str) -> None:
        super().__init__(1, "w", closefd=False)
        self._visible = Visible(encoding)

    def write(self, data: ReadableBuffer, /) -> int:
        shown = memoryview(self._visible(bytes(data)))
        while shown:
            shown = shown[super().write(shown) :]
        return len(memoryview(data))


def prepare() -> None:
    """Before anything else is opened."""
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    plain = _StandardOutput(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Terminal(sys.stdout.encoding) if plain.isatty() else plain),
        encoding=sys.stdout.encoding,
        errors=sys.stdout.errors,
        line_buffering=bool(sys.stdout.line_buffering),
    )
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def unguarded() -> IO[bytes]:
    """Standard output for what may steer a terminal: a user's own format, or our own sequences."""
    sys.stdout.flush()
    guarded = isinstance(getattr(sys.stdout.buffer, "raw", None), _Terminal)
    return io.BufferedWriter(_StandardOutput(1, "w", closefd=False)) if guarded else sys.stdout.buffer


def write_out(status: Status) -> Status:
    """Flushes stdout and returns the exit status; an error status stays as it is."""
    try:
        sys.stdout.flush()
    except OSError as error:
        failed = output_failed(error)
        return status or failed
    return status


def output_failed(error: OSError) -> int:
    """Reports why stdout cannot be written, and returns the exit status."""
    discard_output()
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE
    try:
        print(f"Error: {STDOUT}: {error.strerror}", file=sys.stderr, flush=True)
    except OSError:
        pass  # stderr cannot be written either
    return EXIT_ERROR


def discard_output() -> None:
    """The reader of our output has gone: drops the rest, at exit too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
