"""When a server stops: at a signal, or with the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal


def stop_event(*, until_eof: bool = False) -> asyncio.Event:
    """An event set by Ctrl-C and SIGTERM, and with `until_eof` at the end of stdin."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_eof:

        def look() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                stop.set()

        loop.add_reader(0, look)
    return stop
