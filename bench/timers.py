"""Timer messages: how fast they get into the wheel and out of it, and how exact and how large they are with a million
of them pending. Each runs in a process of its own.

    python -m bench.timers rates ROOT COUNT             prints {"enqueue": {...}, "deliver": {...}}
    python -m bench.timers precision ROOT PENDING       PENDING messages that are due in 1 to 3 hours, and for a minute
                                                        200 a second that are due in 2 to 20 seconds

rates: nothing else runs, and the clock is the bench's: all are due in one second.
precision: stored - asked for, of each message delivered, in ms; memory is what the process grew by (anonymous), and
what it has mapped of the timers' files.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.context import MIB, Context
from bench.measure import Line
from mqlake.base.clock import now_ms
from mqlake.message import PROPERTY_TIMER_DELIVER_MS, MessageExtBrokerInner
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.timer.timer_message_store import TimerMessageStore

PROBE_S, PROBE_PER_S = 60, 200
WARM_UP = 2000
"""Messages after which all code has run; what the process takes until then is not theirs."""
BODY = b"." * 100
START_MS = 1_700_000_000_000


class Clock:
    now = START_MS

    def __call__(self) -> int:
        return self.now


def message(number: int, deliver_ms: int) -> MessageExtBrokerInner:
    properties = {"UNIQ_KEY": f"{number:032X}", PROPERTY_TIMER_DELIVER_MS: str(deliver_ms)}
    return MessageExtBrokerInner("Bench", BODY, properties=properties, queue_id=number % 4)


def put(store: DefaultMessageStore, number: int, deliver_ms: int) -> None:
    result = store.put_message(message(number, deliver_ms))
    assert result.is_ok, result


def rates(root: Path, count: int) -> dict[str, Any]:
    clock = Clock()
    store = DefaultMessageStore(
        MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=256 * MIB),
        clock_ms=clock,
    )
    timers = TimerMessageStore(store)
    store.load()
    timers.load()
    store.start()
    timers.is_dequeuing = True
    for number in range(count):
        put(store, number, START_MS + 5000)
    store.wait_until_dispatched()
    found = {}
    for what in ("enqueue", "deliver"):
        began, began_cpu = time.perf_counter(), time.thread_time()
        while timers.run_once() == 0:
            pass
        seconds, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        found[what] = {"per_second": count / seconds, "per_cpu_second": count / cpu}
        clock.now += 10_000
    assert (timers.enqueued, timers.delivered) == (count, count)
    timers.shutdown()
    store.shutdown()
    return found


def precision(root: Path, pending: int) -> dict[str, Any]:
    store = DefaultMessageStore(
        MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=256 * MIB)
    )
    timers = TimerMessageStore(store)
    store.load()
    timers.load()
    store.start()
    timers.start()
    rng = random.Random(1)
    before = 0
    for number in range(pending):
        put(store, number, now_ms() + rng.randrange(3_600_000, 10_800_000))
        if number == min(WARM_UP, pending - 1):
            _until_in_wheel(timers, number + 1)
            before = _anonymous() + _mapped("timer")
    _until_in_wheel(timers, pending)
    memory = _anonymous() + _mapped("timer") - before
    for number in range(PROBE_S * PROBE_PER_S):
        put(store, pending + number, now_ms() + rng.randrange(2000, 20_000))
        time.sleep(1 / PROBE_PER_S)
    while timers.delivered < PROBE_S * PROBE_PER_S:
        time.sleep(0.1)
    store.wait_until_dispatched()
    late = sorted(_late(store))
    memory = max(memory, _anonymous() + _mapped("timer") - before)
    timers.shutdown()
    store.shutdown()
    return {
        "pending": pending,
        "probes": len(late),
        "min_ms": late[0],
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
        "memory_mib": memory / MIB,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _until_in_wheel(timers: TimerMessageStore, count: int) -> None:
    while timers.all_congest_num < count:
        time.sleep(0.2)


def _late(store: DefaultMessageStore) -> Iterator[int]:
    for queue_id in range(4):
        offset = 0
        while offset < store.max_offset_in_queue("Bench", queue_id):
            result = store.get_message("G", "Bench", queue_id, offset, 32)
            offset = result.next_begin_offset
            for each in result.messages():
                yield each.store_timestamp - int(each.properties[PROPERTY_TIMER_DELIVER_MS])


def _anonymous() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


def _mapped(part: str) -> int:
    """Resident bytes of mappings of files whose path has this part."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            ours = len(fields) > 5 and part in Path(fields[5]).name + Path(fields[5]).parent.name
        elif ours and fields[0] == "Rss:":
            size += int(fields[1]) * 1024
    return size


def timers(context: Context) -> Iterator[Line]:
    """Enqueued and delivered per second, by one thread."""
    command = [
        sys.executable,
        "-m",
        "bench.timers",
        "rates",
        str(context.directory / "timers"),
        str(context.scale.timers),
    ]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    finally:
        shutil.rmtree(context.directory / "timers", ignore_errors=True)
    for what, figures in json.loads(done.stdout).items():
        yield Line(f"timers, {what}", figures["per_second"], "messages/s")


def main() -> None:
    what, root, count = sys.argv[1:]
    print(json.dumps({"rates": rates, "precision": precision}[what](Path(root), int(count))))


if __name__ == "__main__":
    main()
