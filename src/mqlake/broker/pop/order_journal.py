"""OrderJournal: the changes of orderly pop since consumerOrderInfo.json was written, one line of JSON each.

    ["T@G", 0, {"a":"attempt","cm":1,...}]      what was handed out of queue 0 of topic T to group G
    ["T@G", 0, null]                            nothing any more

The table's file is written every few seconds. A broker that is killed in between would hand out messages again before
their time, and in the wrong order, as orderly pop has no checkpoints in the log. RocketMQ's broker does that.

Lines are whole states, so reading some of them again does no harm. A journal that is older than the table's file is of
a time before another broker, RocketMQ's, had the directory: it is not read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

OLDER_NS = 2_000_000_000
"""Writing the table's file takes less."""
Line = tuple[str, int, dict[str, Any] | None]


class OrderJournal:
    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._lock = threading.Lock()
        self._begin = 0
        """The beginning of the file, of all that was ever appended."""
        self.end = 0
        """The end of the file. The table's file, when it is made of the table now, has everything before."""
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            self.end = file.read().rfind(b"\n") + 1

    def append(self, line: Line) -> None:
        """Writes a change before the request is answered. A kill does not lose it, a power cut may."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                if self._descriptor < 0:
                    self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                    os.ftruncate(self._descriptor, self.end - self._begin)  # without a half-written line
                self.end += os.write(self._descriptor, data)
            except OSError as error:  # the table's file is the record; this only narrows what a kill loses
                logger.warning("%s: %s; a kill now loses a change of orderly pop", self.path, error)

    def cut(self, end: int) -> None:
        """Drops everything before `end`, which the table's file has now."""
        with self._lock:
            if end <= self._begin:
                return
            try:
                with open(self.path, "rb") as file:
                    file.seek(end - self._begin)
                    rest = file.read()
                if self._descriptor >= 0:
                    os.close(self._descriptor)
                    self._descriptor = -1
                self._begin = end
                if not rest:
                    os.unlink(self.path)
                    return
                with open(f"{self.path}.tmp", "wb") as file:
                    file.write(rest)
                os.replace(f"{self.path}.tmp", self.path)
            except FileNotFoundError:
                return
            except OSError as error:
                logger.warning("%s cannot be shortened: %s", self.path, error)

    def lines(self, table_path: str) -> Iterator[Line]:
        """The changes that the table's file may not have."""
        try:
            with open(self.path, "rb") as file:
                data, written_at = file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.stat(table_path).st_mtime_ns > written_at + OLDER_NS:
                logger.info("%s is older than %s and is not read", self.path, table_path)
                return
        for text in data.split(b"\n")[:-1]:  # what is after the last line end is half-written
            try:
                key, queue_id, value = json.loads(text)
            except ValueError:
                logger.warning("%s: a line that is no JSON; the lines after it are not read", self.path)
                return
            yield key, queue_id, value
