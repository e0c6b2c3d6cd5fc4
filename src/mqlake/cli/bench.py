"""Quick figures of one machine. For comparisons use the project's bench/, which warms up and repeats."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping

from mqlake.base.progress import Progress
from mqlake.formats.batch import encode_messages
from mqlake.message import Host, Message, MessageExtBatch, MessageExtBrokerInner, create_uniq_id
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.read_only import ReadOnlyStore

BATCH = 32
TOPIC = "bench"
QUEUES = 4
HOST: Host = ("127.0.0.1", 10911)


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """`bytes` counts whole records; `cpu_seconds` counts all threads of this process."""

    name: str
    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float


Step = Callable[[], tuple[int, int]]
"""Does a little of the work; returns (messages, bytes)."""


def run_bench(
    directory: str | None,
    settings: Mapping[str, object] | None = None,
    *,
    seconds: float,
    body_size: int,
    progress: Progress,
) -> list[BenchResult]:
    """Runs each step for about `seconds` in a temporary directory under `directory`. Raises OSError."""
    root = tempfile.mkdtemp(prefix="mqlake-bench-", dir=directory)
    results: list[BenchResult] = []
    body = os.urandom(body_size)

    def run(name: str, step: Step, limit: float = seconds) -> None:
        results.append(_measure(name, step, limit))
        progress(len(results), 7)

    try:
        path = os.path.join(root, "async")
        with open_store(path, settings) as store:
            run("append", _put(store, body))
            run(f"append, batch of {BATCH}", _put_batch(store, body))
            store.wait_until_dispatched()
            run("get by queue offset", _get(store))
        run("scan", _whole(path, _scan), 0)
        run("verify", _whole(path, _verify), 0)
        sync = {**(settings or {}), "flushDiskType": "SYNC_FLUSH"}
        with open_store(os.path.join(root, "sync"), sync) as store:
            run("append, SYNC_FLUSH", _put(store, body))
            run(f"append, SYNC_FLUSH, batch of {BATCH}", _put_batch(store, body))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return results


def _measure(name: str, step: Step, seconds: float) -> BenchResult:
    messages = size = 0
    began, cpu = time.monotonic(), time.process_time()
    while True:
        done, done_bytes = step()
        messages, size = messages + done, size + done_bytes
        if done == 0 or time.monotonic() - began >= seconds:
            break
    return BenchResult(name, messages, size, time.monotonic() - began, time.process_time() - cpu)


def _put(store: DefaultMessageStore, body: bytes) -> Step:
    number = 0

    def step() -> tuple[int, int]:
        nonlocal number
        size = 0
        for _ in range(BATCH):
            number += 1
            message = MessageExtBrokerInner(
                TOPIC,
                body,
                "tag",
                f"key{number}",
                properties={"UNIQ_KEY": create_uniq_id()},
                queue_id=number % QUEUES,
                born_host=HOST,
                store_host=HOST,
            )
            appended = store.put_message(message).append_result
            assert appended is not None
            size += appended.wrote_bytes
        return BATCH, size

    return step


def _put_batch(store: DefaultMessageStore, body: bytes) -> Step:
    messages = [Message(TOPIC, body, "tag", properties={"UNIQ_KEY": create_uniq_id()}) for _ in range(BATCH)]
    blob = encode_messages(messages)

    def step() -> tuple[int, int]:
        batch = MessageExtBatch(TOPIC, blob, queue_id=0, born_host=HOST, store_host=HOST)
        appended = store.put_messages(batch).append_result
        assert appended is not None
        return BATCH, appended.wrote_bytes

    return step


def _get(store: DefaultMessageStore) -> Step:
    offset = 0

    def step() -> tuple[int, int]:
        nonlocal offset
        result = store.get_message("bench", TOPIC, 0, offset, BATCH)
        offset = result.next_begin_offset if result.message_count else 0
        return result.message_count, result.buffer_total_size

    return step


def _whole(path: str, work: Callable[[str], tuple[int, int]]) -> Step:
    return lambda: work(path)


def _scan(path: str) -> tuple[int, int]:
    with ReadOnlyStore(path) as store:
        messages = size = 0
        for chunk in store.scan():
            messages += chunk.count
            size += int(chunk.scan.size.sum())
        return messages, size


def _verify(path: str) -> tuple[int, int]:
    report = verify_store(path)
    return report.records, report.record_bytes
