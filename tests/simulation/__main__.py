"""`python -m tests.simulation --seed 1 --lives 10000`: lives of a master and its slaves in virtual time; with
`--kind failover` of a group that elects its master."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.failover import FailoverLife
from tests.simulation.java_lives import LifeWithAJavaMaster, LifeWithJavaSlaves
from tests.simulation.life import BrokenPromiseError, Life

KINDS = {kind.KIND: kind for kind in (Life, LifeWithJavaSlaves, LifeWithAJavaMaster, FailoverLife)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", choices=KINDS, default=Life.KIND, help="whose the other end of replication is"
    )
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument(
        "--seconds",
        type=float,
        help="of virtual time with faults, in each life; without, as the tests have it",
    )
    arguments = parser.parse_args()
    began, broken, puts = time.monotonic(), 0, 0
    for number, seed in enumerate(range(arguments.seed, arguments.seed + arguments.lives), 1):
        kind = KINDS[arguments.kind]
        life = kind(seed) if arguments.seconds is None else kind(seed, seconds=arguments.seconds)
        try:
            life.run()
        except BrokenPromiseError as error:
            broken += 1
            print(error, file=sys.stderr)
        puts += life.puts
        if number % 100 == 0 or number == arguments.lives:
            seconds = time.monotonic() - began
            print(
                f"\r{number} lives, {puts} puts, {broken} broken promises, {seconds:.0f} s  ",
                end="",
                flush=True,
            )
    print()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
