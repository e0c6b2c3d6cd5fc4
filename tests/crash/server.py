"""Forks writers that are killed. One process that has everything imported and compiled, so a writer starts at once.

Line by line on stdin, as JSON: what to write where, and when to die; on stdout the wait status of the writer.
What a writer was told is stored it notes in a file of 8-byte pairs (writer, messages acknowledged): a write() that
has returned outlives the process.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import tempfile
import threading
import time
from typing import Any

from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.results import PutMessageStatus
from tests.crash import killer
from tests.crash.workload import SMALL, puts
from tests.crash.writer_server import serve_writers
from tests.waiting import PATIENCE_S

ACK = struct.Struct(">ii")


def warm_up() -> None:
    """Has every compiled function loaded, so that no writer spends its time on it."""
    with tempfile.TemporaryDirectory() as root, open_store(root, SMALL) as store:
        for put, _ in zip(puts(0, 0), range(40), strict=False):
            msg = put.message()
            (store.put_messages if put.count > 1 else store.put_message)(msg)  # type: ignore[arg-type]
        store.wait_until_dispatched(PATIENCE_S)
        store.query_message("T0", "0-1", 1)


def write(store: DefaultMessageStore, writer: int, start: int, count: int, acks: int, pipelined: int) -> None:
    waiting = []
    for put, _ in zip(puts(writer, start), range(count), strict=False):
        msg = put.message(wait=put.first % 7 != 3)
        future = store.async_put_messages(msg) if put.count > 1 else store.async_put_message(msg)  # type: ignore[arg-type]
        if not msg.wait_store_msg_ok:
            continue
        waiting.append((future, put.end))
        if len(waiting) >= pipelined:
            note(waiting, acks, writer)
    note(waiting, acks, writer)


def note(waiting: list[Any], acks: int, writer: int) -> None:
    for future, end in waiting:
        result = future.result()
        assert result.status is PutMessageStatus.PUT_OK, result
        os.write(acks, ACK.pack(writer, end))
    waiting.clear()


def child(job: dict[str, Any]) -> None:
    logging.disable(logging.CRITICAL)
    random.seed(job["seed"])
    killer.arm(job["point"], job["moment"], job["n"])
    acks = os.open(job["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = open_store(job["root"], job["settings"])
    writers = [
        threading.Thread(target=write, args=(store, writer, start, job["count"], acks, job["pipelined"]))
        for writer, start in enumerate(job["starts"])
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    store.wait_until_dispatched(PATIENCE_S)
    if job["settle_ms"]:
        time.sleep(job["settle_ms"] / 1000)
    store.shutdown()


if __name__ == "__main__":
    warm_up()
    serve_writers(child)
