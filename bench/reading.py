"""Gets by queue offset, 32 messages a get; and the verification of a whole store beside memcpy."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.interop.java_peer import JavaBench, JavaPeer, Json

from bench.context import MIB, Context
from bench.measure import Line, Round, Stopwatch, compare, first_of
from bench.workload import QUEUES, TOPIC, make_log
from mqlake.store import open_store

verify_store = first_of("mqlake.store.check.verify", "mqlake.store.verify").verify_store

PAGE = 32


class MqlakeGet:
    """A round reads every message once. Its bytes are copied out of the log, or (`decode`) made messages whose
    bodies are read, as for a consumer."""

    def __init__(self, root: Path, config: Json, *, decode: bool) -> None:
        self._store = open_store(root, config)
        self._store.wait_until_dispatched()
        self.count = sum(self._store.max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
        self._decode = decode
        self._queue_id = 0
        self._offset = self._store.min_offset_in_queue(TOPIC, 0)

    def round(self) -> Round:
        store, decode, wanted = self._store, self._decode, self.count
        queue_id, offset = self._queue_id, self._offset
        count = nbytes = 0
        watch = Stopwatch()
        while count < wanted:
            got = store.get_message("bench", TOPIC, queue_id, offset, min(PAGE, wanted - count))
            if decode:
                for message in got.messages():
                    _ = message.body
            else:
                for buffer in got.buffers:
                    bytes(buffer)
            nbytes += got.buffer_total_size
            count += got.message_count
            offset = got.next_begin_offset
            if offset >= got.max_offset:
                queue_id = (queue_id + 1) % QUEUES
                offset = store.min_offset_in_queue(TOPIC, queue_id)
        done = watch.round(count, count, nbytes)
        self._queue_id, self._offset = queue_id, offset
        return done

    def close(self) -> None:
        self._store.shutdown()


class JavaGet:
    def __init__(self, peer: JavaPeer, root: Path, config: Json, count: int, *, decode: bool) -> None:
        self._count = count
        self._bench = JavaBench(
            peer,
            "get",
            root=str(root),
            config=config,
            topics={TOPIC: {}},
            topic=TOPIC,
            queues=QUEUES,
            page=PAGE,
            decode=decode,
        )

    def round(self) -> Round:
        done = self._bench.round(count=self._count)
        return Round(done["count"], done["seconds"], done["cpuSeconds"], (done["count"], done["bytes"]))

    def close(self) -> None:
        self._bench.close()


def get(context: Context) -> Iterator[Line]:
    scale = context.scale
    config: Json = {"mappedFileSizeCommitLog": scale.recovered_file}
    with context.scratch("get") as root:
        for side in ("mqlake", "java"):
            make_log(root / side, scale.get_log, config)
        for name, decode in (("get by queue offset, 1 KB", False), ("get and decode, 1 KB", True)):
            with context.java() as peer:
                mqlake = MqlakeGet(root / "mqlake", config, decode=decode)
                java = JavaGet(peer, root / "java", config, mqlake.count, decode=decode)
                try:
                    # the logs differ in their store times only: the same bytes are read
                    line = compare(
                        name,
                        mqlake,
                        java,
                        context.progress,
                        unit="msg/s",
                        rounds=scale.rounds,
                        warm_up_s=scale.warm_up_s,
                        warm_up_rounds=scale.warm_up_rounds,
                    )
                finally:
                    mqlake.close()
                    java.close()
            yield line


class Verify:
    """The whole store: log, queues, index. Amounts are bytes of the log."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def round(self) -> Round:
        watch = Stopwatch()
        report = verify_store(self._root)
        if not report.ok:
            raise RuntimeError(f"the log of the bench does not verify: {report.findings[:3]}")
        return watch.round(report.end_offset - report.min_offset, report.records, report.index_entries)


class Memcpy:
    """The same number of bytes copied in blocks that are not in the processor's cache."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._from = np.ones(min(nbytes, 256 * MIB), np.uint8)
        self._to = np.ones(16 * MIB, np.uint8)

    def round(self) -> Round:
        block = len(self._to)
        watch = Stopwatch()
        done = 0
        while done < self._nbytes:
            start = done % len(self._from)
            size = min(block, len(self._from) - start, self._nbytes - done)
            np.copyto(self._to[:size], self._from[start : start + size])
            done += size
        return watch.round(done)


def verify(context: Context) -> Iterator[Line]:
    """GB of log a second of processor time (it is one thread), and memcpy's."""
    scale = context.scale
    config: Json = {"mappedFileSizeCommitLog": scale.recovered_file}
    root = context.kept("log", lambda path: make_log(path, scale.recovered, config))
    side = Verify(root)
    side.round()
    memcpy = Memcpy(scale.recovered)
    ours: list[Round] = []
    theirs: list[Round] = []
    for number in range(scale.verify_rounds):
        context.progress.say(f"verify: round {number + 1} of {scale.verify_rounds}")
        ours.append(side.round())
        theirs.append(memcpy.round())

    def per_cpu(done: Round) -> float:
        return done.amount / done.cpu_seconds

    line = Line(
        "verify, a second of CPU",
        statistics.median(map(per_cpu, ours)),
        "B",
        statistics.median(map(per_cpu, theirs)),
        "memcpy",
        ratio=statistics.median(per_cpu(a) / per_cpu(b) for a, b in zip(ours, theirs, strict=True)),
        ratio_best=max(map(per_cpu, ours)) / max(map(per_cpu, theirs)),
        cpu_us=statistics.median(a.cpu_seconds / a.work[0] for a in ours) * 1e6,
        target=">= 1 G",
        work=" ".join(map(str, ours[-1].work)),
        rounds=tuple((per_cpu(a), per_cpu(b)) for a, b in zip(ours, theirs, strict=True)),
    )
    yield dataclasses.replace(line, met=line.mqlake >= 1e9)
