"""Timers that are killed at named steps, one store after the other, each in a fork of this process.

    python -m tests.crash.timer_victim DIRECTORY < cases.json > results.json

A case is a list of [point, moment, n]: where each life of the store ends (see killer.py). A result says whether each
life was ended so, and what is wrong with the store after the last one; nothing, if all is well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mqlake.message import PROPERTY_TIMER_DELIVER_MS
from tests.clock import START_MS, Clock
from tests.crash import killer
from tests.store.timer.timed_store import TimedStore

OPTIONS = {"timerRollWindowSlot": 8, "timerFlushIntervalMs": 1, "flushDiskType": "SYNC_FLUSH"}
LIFE_MS = 12_000
"""Of the store's clock."""
IN_TIME_MS = 1100


class Journal:
    """What was asked and answered, and how late it is, in a file that outlives a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *entry: Any) -> None:
        os.write(self._fd, json.dumps(entry).encode() + b"\n")

    def entries(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def now(self) -> int:
        return max((entry[1] for entry in self.entries() if entry[0] == "time"), default=START_MS + 500)


def live(root: Path, journal: Journal, seed: int, end: list[Any]) -> None:
    """Puts and recalls messages while time goes on, until the killer strikes."""
    rng = random.Random(seed)
    clock = Clock(journal.now())
    killer.arm(*end)
    timed = TimedStore(root, clock, OPTIONS)
    first = seed * 1000
    begun, number = clock.now, first
    while clock.now < begun + LIFE_MS:
        for _ in range(rng.randrange(4)):
            due = clock.now + rng.choice((300, 1500, 4000, 9000, 20_000))
            timed.put(number, due)
            journal.add("put", number, due)
            if rng.random() < 0.3 and due - clock.now > IN_TIME_MS:
                journal.add("recalling", number)  # it may take effect though nobody is told
                timed.recall(number, due)
                journal.add("recalled", number)
            number += 1
        clock.now += rng.choice((200, 700, 1300))
        journal.add("time", clock.now)
        timed.run()
    timed.close()


def what_is_wrong(root: Path, journal: Journal) -> str:
    """Opens the store, lets all that waits become due, and compares with the journal."""
    clock = Clock(journal.now())
    timed = TimedStore(root, clock, OPTIONS)
    timed.run()
    timed.run_until(clock.now + 25_000)
    delivered = timed.delivered()
    timed.close()
    wanted = {entry[1]: entry[2] for entry in journal.entries() if entry[0] == "put"}
    recalled, recalling = (
        {entry[1] for entry in journal.entries() if entry[0] == what} for what in ("recalled", "recalling")
    )
    found = Counter(int(message.body.split()[1]) for message in delivered)
    lost = wanted.keys() - recalling - found.keys()
    early = [
        message.body
        for message in delivered
        if message.store_timestamp < int(message.properties[PROPERTY_TIMER_DELIVER_MS])
    ]
    repeated = {number: count for number, count in found.items() if count > 1}
    wrong = {
        "lost": sorted(lost),
        "in spite of its recall": sorted(recalled & found.keys()),
        "early": early,
        "repeated": repeated,
        "skipped": timed.timers.skipped,
    }
    said = {what: which for what, which in wrong.items() if which}
    return f"{said}, {len(wanted)} were put" if said else ""


def run_case(root: Path, case: list[list[Any]]) -> dict[str, Any]:
    root.mkdir()
    journal = Journal(root / "journal")
    killed = []
    for seed, end in enumerate(case):
        pid = os.fork()
        if pid == 0:
            try:
                live(root / "store", journal, seed, end)
            except BaseException as error:
                print(f"{end}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        killed.append(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        if not killed[-1] and os.WEXITSTATUS(status):
            return {"killed": killed, "wrong": "a life ended with an error"}
    pid = os.fork()  # this process stays without threads
    if pid == 0:
        wrong = what_is_wrong(root / "store", journal)
        (root / "wrong").write_text(wrong)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return {"killed": killed, "wrong": (root / "wrong").read_text() if status == 0 else "it does not open"}


def main() -> None:
    directory = Path(sys.argv[1])
    cases = json.load(sys.stdin)
    json.dump([run_case(directory / str(n), case) for n, case in enumerate(cases)], sys.stdout)


if __name__ == "__main__":
    main()
