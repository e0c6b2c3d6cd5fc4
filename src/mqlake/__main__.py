"""The command `mqlake`, which is also `python -m mqlake`.

Ctrl-C ends the process as SIGINT does (shells show 130), without a traceback, from here on.
"""

from __future__ import annotations

import sys
from types import TracebackType


def main() -> None:
    sys.excepthook = _hook
    from mqlake.cli.interrupts import ends_at_once

    with ends_at_once():
        from mqlake.cli.main import main as run
    run()


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python itself ends with the signal after an interrupt that nobody catches; only its traceback is left out."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    main()
