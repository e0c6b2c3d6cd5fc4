"""Every bench with tiny inputs: figures mean nothing here, the work must be the same on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import run
from bench.context import MIB, QUICK
from bench.measure import Line, Progress

from tests.interop.java_peer import TEST_JVM

TINY = dataclasses.replace(
    QUICK,
    rounds=1,
    shapes=1,
    warm_up_s=0.0,
    warm_up_rounds=0,
    single=128,
    batch=128,
    sync=128,
    log_file=4 * MIB,
    log_max=MIB,
    recovered=MIB,
    recovered_file=MIB,
    recovery_rounds=1,
    get_log=MIB // 4,
    live_log=MIB,
    verify_rounds=1,
    queue_files=20,
    queue_files_java=10,
    queues_a_topic=5,
    memory_log=2 * MIB,
    lake_log=MIB,
    lake_commits=4,
    lake_formats=("delta",),
    lake_memory=(MIB,),
    lake_queues=0,
    lake_body=0,
    lake_topics=(2, 4),
    narrow_log=8 * MIB,
    narrow_file=2 * MIB,
    sends=256,
    batch_sends=256,
    drained=256,
    neighbour_s=0.1,
    long_message=MIB,
    timers=256,
    broker_log_file=4 * MIB,
    catch_up=MIB,
    catch_up_rounds=1,
    metaq_puts=256,
    metaq_drained=MIB,
    metaq_size=4 * MIB,
    metaq_recovered=MIB,
    touched=0,
    jvm=TEST_JVM,
    jvm_a_bench=False,
)

STORE = (
    *(
        "append-1k",
        "append-128",
        "batch-1k",
        "batch-128",
        "sync-flush",
        "recover",
        "rebuild",
        "get",
        "verify",
    ),
    *("start", "memory"),
)
BROKERS = (
    *("socket-sends", "socket-sync", "socket-pulls", "broker-sync", "broker-async", "broker-batch"),
    *("broker-transactions", "broker-drain", "timers", "neighbours"),
)
METAQ = ("metaq-put", "metaq-get", "metaq-open")
SPARK = ("spark", "spark-export", "lake-table", "lake-query", "lake-live", "spark-live")
LAKE = ("lake-narrow", "lake-union", "lake-commits", "lake-memory", "lake-topics")
CLUSTERS = ("grpc", "pop", "replication-sync", "replication-keep-up", "replication-catch-up")
"""Benches that start several brokers a line, which takes minutes."""


def give_their_lines(directory: Path, names: Sequence[str]) -> list[Line]:
    """Runs the benches, which share what they start and leave nothing."""
    shown: list[Line] = []
    lines = run(list(names), TINY, directory, Progress(quiet=True), shown.append)
    assert lines == shown
    assert len({(line.name, line.peer_name) for line in lines}) == len(lines) >= len(names)
    assert all(line.mqlake > 0 for line in lines if line.unit != "MiB")
    assert all(str(line) for line in lines)
    assert [path for path in directory.iterdir() if not path.name.startswith("jvm-")] == []
    return lines
