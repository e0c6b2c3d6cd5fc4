"""A program whose stderr is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading


def on_a_terminal(code: str, *arguments: str, results_too: bool = False) -> tuple[str, str]:
    """What appears on the terminal that is stderr, and, with `results_too`, stdout; and what stdout gets elsewhere."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def look() -> None:
        while not shown.endswith(b"\0"):
            shown.extend(os.read(ours, 1 << 16))

    reading = threading.Thread(target=look)
    reading.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=theirs if results_too else subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            check=False,
        )
    finally:
        os.write(theirs, b"\0")  # the end
        reading.join()
        os.close(ours)
        os.close(theirs)
    text = shown.removesuffix(b"\0").decode()
    assert done.returncode == 0, text
    return text, (done.stdout or b"").decode()
