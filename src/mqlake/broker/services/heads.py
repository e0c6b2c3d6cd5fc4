"""HeadsService: with `heads=true`, the heads of full log files (docs/lake.md), written by a child process.

    every 10 s: a full file without heads? ─▶ `mqlake store heads DIR` at the lowest priority ─▶ DIR/heads/NAME.parquet

pyarrow is never loaded into the broker, and takes no memory between two files. What an interrupted child has left the
next one removes; one whose broker was killed ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import subprocess
import sys

from mqlake.broker.broker import Broker
from mqlake.errors import ConfigError, MissingPartError, MqlakeError
from mqlake.store.heads import SUFFIX, heads_in

logger = logging.getLogger(__name__)

LOOK_S = 10.0
LOWEST_PRIORITY = 19
EXIT_DAMAGED = 1
"""A log file has damage, and gets no heads."""


class HeadsService:
    """Writes the heads of one broker, a master or a slave."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._damaged: set[str] = set()
        """Files that get no heads as long as the broker runs."""
        self._child: subprocess.Popen[str] | None = None

    def check(self) -> None:
        """MissingPartError, or ConfigError, where heads are to be written and cannot be."""
        if not self._broker.config.heads:
            return
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingPartError(
                "the Python package pyarrow", "pip install 'mqlake[arrow]'", why="heads=true"
            )
        config = self._broker.store.config
        usual = os.path.join(config.store_path_root_dir, "commitlog")
        if os.path.realpath(config.commit_log_dir) != os.path.realpath(usual):
            raise ConfigError(
                f"heads=true: heads are written of a log in {usual}, and this one is in {config.commit_log_dir} "
                "(storePathCommitLog)"
            )

    async def run_once(self) -> None:
        """Has the heads written that are missing. Raises what check() raises, OSError; MqlakeError with what the child
        said when it failed."""
        self.check()
        missing = self._missing()
        if not missing:
            return
        try:
            code, said = await asyncio.to_thread(self._write)
        except asyncio.CancelledError:
            if self._child is not None:
                self._child.terminate()
            raise
        if code == EXIT_DAMAGED:
            logger.warning("%s", said)
            self._damaged |= missing & self._missing()  # not those that have become full meanwhile
        elif code:
            raise MqlakeError(f"`mqlake store heads` ended with {code}: {said}")

    def _missing(self) -> set[str]:
        """The names of the heads that full files lack."""
        if not self._broker.config.heads:
            return set()
        store = self._broker.store
        end, full = store.max_phy_offset, list(store.commit_log_files.mapped_files)[:-1]
        names = {
            os.path.basename(each.path) + SUFFIX
            for each in full
            if each.file_from_offset + each.file_size <= end
        }
        return names - self._damaged - set(heads_in(store.config.store_path_root_dir))

    def _write(self) -> tuple[int, str]:
        """The child's exit status, and what it said of errors."""
        with subprocess.Popen(
            [sys.executable, "-m", "mqlake", "store", "heads", self._broker.store.config.store_path_root_dir],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the broker, which ends it
        ) as child:
            self._child = child
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, child.pid, LOWEST_PRIORITY)
            _, said = child.communicate()
            self._child = None
            return child.returncode, said.strip()
