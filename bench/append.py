"""Puts: one producer, one message or a batch of 32 at a time; and 64 producers that wait for the disk.

Counted until everything is dispatched: a message is not stored before it can be read. A log is started again, outside
the time, when it is large; no file rolls inside a round.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.interop.java_peer import JavaBench, JavaPeer, Json

from bench.context import Context
from bench.measure import Line, Round, Stopwatch, compare
from bench.pages import round_size
from bench.workload import QUEUES, TOPIC, Ring, batch_template, single_template
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting import loop
from mqlake.store import DefaultMessageStore, PutMessageStatus, open_store

SYNC_PRODUCERS = 64

Produce = Callable[[DefaultMessageStore, Ring, int], int]
"""(store, ring, puts) -> how many of them were refused."""


class MqlakeAppend:
    def __init__(
        self, root: Path, config: Json, template: Json, count: int, log_max: int, produce: Produce
    ) -> None:
        self._root, self._config, self._log_max, self._produce = root, config, log_max, produce
        self._ring = Ring(template)
        self._puts = count // self._ring.per_put
        self._store = open_store(root, config)

    def round(self) -> Round:
        store = self._store
        if store.max_phy_offset > self._log_max:
            store.destroy()
            shutil.rmtree(self._root)
            store = self._store = open_store(self._root, self._config)
        begin = store.max_phy_offset
        watch = Stopwatch()
        failed = self._produce(store, self._ring, self._puts)
        store.wait_until_dispatched()
        count = self._puts * self._ring.per_put
        done = watch.round(count)
        return Round(
            done.amount, done.seconds, done.cpu_seconds, (count, store.max_phy_offset - begin, failed)
        )

    def close(self) -> None:
        self._store.shutdown()


class JavaAppend:
    def __init__(
        self, peer: JavaPeer, root: Path, config: Json, template: Json, count: int, log_max: int, threads: int
    ) -> None:
        self._count = count
        self._bench = JavaBench(
            peer,
            "append",
            root=str(root),
            config=config,
            topics={TOPIC: {}},
            threads=threads,
            queues=QUEUES,
            op=template,
            logBytesMax=log_max,
        )

    def round(self) -> Round:
        done = self._bench.round(count=self._count)
        return Round(
            done["count"],
            done["dispatchedSeconds"],
            done["dispatchedCpuSeconds"],
            (done["count"], done["bytes"], done["failed"]),
        )

    def close(self) -> None:
        self._bench.close()


# --- producers: the thread-th of them puts the messages thread, thread + threads, ... as the peer's do


def one_producer(store: DefaultMessageStore, ring: Ring, puts: int) -> int:
    put: Callable[[MessageExtBrokerInner], object] = ring.put_into(store)
    fresh, ok, failed = ring.fresh, PutMessageStatus.PUT_OK, 0
    for number in range(puts):
        if put(fresh(number, number % QUEUES)).status is not ok:  # type: ignore[attr-defined]
            failed += 1
    return failed


def sync_tasks(store: DefaultMessageStore, ring: Ring, puts: int) -> int:
    """64 tasks of one event loop, each awaiting its put before the next."""

    async def produce(task: int) -> int:
        failed = 0
        for number in range(puts // SYNC_PRODUCERS):
            message = ring.fresh(task + number * SYNC_PRODUCERS, (task + number) % QUEUES)
            failed += not (await store.async_put_message(message)).is_ok
        return failed

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*map(produce, range(SYNC_PRODUCERS))))

    return loop.run(all_of_them())  # the loop that a broker has


def sync_threads(store: DefaultMessageStore, ring: Ring, puts: int) -> int:
    """64 threads, each blocked in its put."""
    failed = [0] * SYNC_PRODUCERS

    def produce(thread: int) -> None:
        for number in range(puts // SYNC_PRODUCERS):
            message = ring.fresh(thread + number * SYNC_PRODUCERS, (thread + number) % QUEUES)
            failed[thread] += not store.put_message(message).is_ok

    threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(SYNC_PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(failed)


# --- the lines


def _line(
    context: Context,
    name: str,
    template: Callable[[int], Json],
    size: int,
    count: int,
    *,
    ratio_min: float | None,
    produce: Produce = one_producer,
    threads: int = 1,
    settings: Json | None = None,
    java_settings: Json | None = None,
) -> Line:
    scale = context.scale
    config = {"mappedFileSizeCommitLog": scale.log_file, **(settings or {})}
    log_size = round_size(count, size)
    with context.scratch("append") as root, context.java() as peer:
        java = JavaAppend(
            peer,
            root / "java",
            {**config, **(java_settings or {})},
            template(size),
            count,
            scale.log_max,
            threads,
        )
        mqlake = MqlakeAppend(root / "mqlake", config, template(size), count, scale.log_max, produce)
        try:
            return compare(
                name,
                mqlake,
                java,
                context.progress,
                unit="msg/s",
                rounds=scale.rounds,
                warm_up_s=scale.warm_up_s,
                warm_up_rounds=scale.warm_up_rounds,
                ratio_min=ratio_min,
                touch=lambda: context.touch_pages(log_size),
            )
        finally:
            mqlake.close()
            java.close()


def append_single_1k(context: Context) -> Iterator[Line]:
    yield _line(context, "append 1 KB", single_template, 1024, context.scale.single, ratio_min=1)


def append_single_128(context: Context) -> Iterator[Line]:
    yield _line(context, "append 128 B", single_template, 128, context.scale.single, ratio_min=1)


def append_batch_1k(context: Context) -> Iterator[Line]:
    yield _line(context, "append 1 KB, batch of 32", batch_template, 1024, context.scale.batch, ratio_min=4)


def append_batch_128(context: Context) -> Iterator[Line]:
    yield _line(context, "append 128 B, batch of 32", batch_template, 128, context.scale.batch, ratio_min=4)


def sync_flush(context: Context) -> Iterator[Line]:
    for name, produce, ratio_min in (
        ("SYNC_FLUSH, 64 waiting tasks", sync_tasks, 1.5),
        ("SYNC_FLUSH, 64 waiting threads", sync_threads, None),
    ):
        yield _line(
            context,
            name,
            single_template,
            1024,
            context.scale.sync,
            ratio_min=ratio_min,
            produce=produce,
            threads=SYNC_PRODUCERS,
            settings={"flushDiskType": "SYNC_FLUSH"},
        )
