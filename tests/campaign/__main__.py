"""`python -m tests.campaign --minutes 60 --seed 1`: lives of a cluster under faults, one after the other, each judged.

A life has the seed of its number: --seed 1 goes on with 2, 3, ... What a life did and found is a line of JSON in
campaign.jsonl; a life that broke a promise keeps its directory, and is run again by --seed N --lives 1 (the schedule
of faults is the seed's, the processes' timing is not).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.campaign.life import Outcome, live


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="after so many no new life begins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lives", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--seconds", type=float, default=40.0, help="of faults in a life")
    parser.add_argument("--replicas", type=int, default=1, choices=(0, 1))
    parser.add_argument("--directory", type=Path, help="for stores and logs  [a temporary one]")
    parser.add_argument("--json", action="store_true", help="print the total as one line of JSON")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the clients' complaints about faults
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends too
    directory: Path = arguments.directory or Path(tempfile.mkdtemp(prefix="campaign-"))
    directory.mkdir(parents=True, exist_ok=True)
    total = Total()
    end = time.monotonic() + arguments.minutes * 60
    for seed in range(arguments.seed, arguments.seed + arguments.lives):
        if time.monotonic() >= end:
            break
        command = f"python -m tests.campaign --seed {seed} --lives 1 --seconds {arguments.seconds:g}"
        place = directory / f"life-{seed}"
        try:
            outcome = asyncio.run(live(place, seed, seconds=arguments.seconds, replicas=arguments.replicas))
        except Exception as error:
            total.broken += 1
            print(
                f"life {seed} did not come to its end: {error!r}; {place}; again: {command}", file=sys.stderr
            )
            continue
        total.add(outcome)
        with (directory / "campaign.jsonl").open("a") as file:
            file.write(json.dumps(outcome.as_json()) + "\n")
        if not arguments.json:
            print(total.describe(), flush=True)
        for violation in outcome.violations:
            print(f"life {seed}: {violation}", file=sys.stderr)
        if outcome.violations:
            print(f"{place}; again: {command}", file=sys.stderr, flush=True)
    print(json.dumps(total.as_json()) if arguments.json else total.describe())
    return 1 if total.violations or total.broken else 0


class Total:
    def __init__(self) -> None:
        self.lives = self.broken = self.violations = self.consumed = self.log_bytes = 0
        self.seconds = 0.0
        self.faults: collections.Counter[str] = collections.Counter()
        self.sends: collections.Counter[str] = collections.Counter()

    def add(self, outcome: Outcome) -> None:
        self.lives += 1
        self.violations += len(outcome.violations)
        self.consumed += outcome.consumed
        self.log_bytes += outcome.log_bytes
        self.seconds += outcome.seconds
        self.faults += outcome.faults
        self.sends += outcome.sends

    def as_json(self) -> dict[str, object]:
        return dict(vars(self))

    def describe(self) -> str:
        acknowledged = sum(count for name, count in self.sends.items() if name.endswith(" ok"))
        return (
            f"{self.lives} lives in {self.seconds / 60:.1f} min: {sum(self.faults.values())} faults, "
            f"{sum(self.sends.values())} sends, {acknowledged} acknowledged, {self.consumed} consumed, "
            f"{self.violations} violations" + (f", {self.broken} lives broken off" if self.broken else "")
        )


if __name__ == "__main__":
    sys.exit(main())
