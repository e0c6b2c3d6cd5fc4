from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np

from mqlake.lake.arrow.memory import keep_freed_memory

ROUNDS, SIZE = 50, 8 << 20


def faults() -> int:
    for _ in range(3):
        np.ones(SIZE, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        np.ones(SIZE, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_buffers_are_not_faulted_in_again() -> None:
    code = (
        "from tests.lake.arrow.test_memory import faults\n"
        "from mqlake.lake.arrow.memory import keep_freed_memory\n"
        "print(keep_freed_memory(), keep_freed_memory(), faults())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, count = done.stdout.split()
    assert first == second == str(keep_freed_memory())
    if first == "True":
        assert int(count) < ROUNDS
