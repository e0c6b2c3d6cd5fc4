"""A writer whose system calls fail (tests.crash.test_io_errors): does what its argument says, prints what came of it.

The argument is JSON: root, settings, steps. A step is [what, argument]; a line of JSON answers each.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from mqlake.errors import MqlakeError
from mqlake.message import MessageExtBrokerInner
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.results import PutMessageResult
from tests.crash.workload import Put


class Victim:
    def __init__(self, root: str, settings: dict[str, Any]) -> None:
        self.root = root
        self.settings = settings
        self.store: DefaultMessageStore | None = None
        self.number = 0

    def put(self, count: int) -> list[list[str]]:
        """Messages one after the other; a number is used up only by those that are in the log."""
        return [self._outcome(self.store.put_message(self._next())) for _ in range(count)]

    def put_together(self, count: int) -> list[list[str]]:
        futures = []
        for _ in range(count):
            futures.append(self.store.async_put_message(self._next()))
            self.number += 1
        results = [future.result() for future in futures]
        return [[result.status.name, result.reason] for result in results]

    def put_batch(self, count: int) -> list[str]:
        result = self.store.put_messages(Put(0, self.number, count).message())
        self.number += count
        return [result.status.name, result.reason]

    def put_large(self, size: int) -> list[str]:
        """A message that is not counted among the others."""
        result = self.store.put_message(MessageExtBrokerInner("Large", bytes(size)))
        return [result.status.name, result.reason]

    def put_until_refused(self, count: int) -> list[list[str]]:
        found: list[list[str]] = []
        while len(found) < count and (not found or found[-1][0] == "PUT_OK"):
            found += self.put(1)
        return found

    def put_until_taken(self, tries: int) -> list[list[str]]:
        found: list[list[str]] = []
        while len(found) < tries and (not found or found[-1][0] != "PUT_OK"):
            self.store.wait_until_dispatched(0.05)
            found += self.put(1)
        return found

    def _next(self) -> MessageExtBrokerInner:
        return Put(0, self.number, 1).message()

    def _outcome(self, result: PutMessageResult) -> list[str]:
        self.number += result.append_result is not None
        return [result.status.name, result.reason]

    def flush(self, _: None) -> str:
        try:
            self.store.flush()
        except OSError as error:
            return f"OSError: {error}"
        return "flushed"

    def dispatched(self, timeout_s: float) -> bool:
        return self.store.wait_until_dispatched(timeout_s)

    def wait_for_fence(self, tries: int) -> bool:
        """Lets the background work go on until it has failed."""
        while tries and not self.store.running_flags.is_fenced:
            self.store.wait_until_dispatched(0.0)
            self.put(1)
            tries -= 1
        return self.store.running_flags.is_fenced

    def reasons(self, _: None) -> list[str]:
        return self.store.running_flags.reasons()

    def open(self, _: None) -> str:
        try:
            self.store = open_store(self.root, self.settings)
        except (OSError, MqlakeError) as error:
            return f"{type(error).__name__}: {error}"
        return "open"

    def shutdown(self, _: None) -> str:
        self.store.shutdown()
        return "shut down"


def main() -> None:
    logging.disable(logging.CRITICAL)
    job = json.loads(sys.argv[1])
    victim = Victim(job["root"], job["settings"])
    for what, argument in [["open", None], *job["steps"]]:
        print(json.dumps(getattr(victim, what)(argument)), flush=True)


if __name__ == "__main__":
    main()
