from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from mqlake.message import MessageExtBrokerInner
from mqlake.spark.arrow.memory import give_up_pages, keep_freed_memory
from mqlake.store import open_store

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
        "from tests.spark.arrow.test_memory import faults\n"
        "from mqlake.spark.arrow.memory import keep_freed_memory\n"
        "print(keep_freed_memory(), keep_freed_memory(), faults())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, count = done.stdout.split()
    assert first == second == str(keep_freed_memory())
    if first == "True":
        assert int(count) < ROUNDS


def resident(root: Path) -> int:
    """Bytes of files below a directory that are mapped and in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = str(root) in line
        elif inside and first == "Rss:":
            found += int(line.split()[1]) << 10
    return found


def test_what_was_written_is_taken_out_of_memory(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 8 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    with open_store(tmp_path, settings) as store:
        for number in range(10):
            message = MessageExtBrokerInner("T", bytes([number]) * (400 << 10), properties={"KEYS": "k"})
            message.queue_id = 0
            assert store.put_message(message).is_ok
        store.wait_until_dispatched()
        assert resident(tmp_path) > 4 << 20
        give_up_pages(store.log, store.index)
        assert resident(tmp_path) < 1 << 20
        last = next(iter(store.get_message("g", "T", 0, 9, 1).messages()))
        assert last.body == bytes([9]) * (400 << 10)
