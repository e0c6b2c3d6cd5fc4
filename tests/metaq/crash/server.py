"""Forks brokers' stores that are killed. One process with everything imported, so a writer starts at once.

A job is a line of JSON on stdin: where to write, and when to die; the answer on stdout is the writer's wait status.
What a writer was told is safe it notes in a file: a write() that has returned outlives the process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import Location
from tests.crash.killer import Countdown, _call

TOPICS = {"t": {"numPartitions": "3"}}


def config_of(job: dict[str, Any]) -> MetaConfig:
    return MetaConfig(
        SystemConfig(data_path=job["root"], unflush_threshold=0, max_segment_size=2000), topics=TOPICS
    )


def arm(call: str, part: str, moment: str, n: int) -> None:
    """Dies at the n-th call of os.`call` that touches a path with `part` in it."""
    setattr(os, call, _call(getattr(os, call), part, moment, Countdown(n)))


def write_messages(job: dict[str, Any], acks: int) -> None:
    """Messages `<partition>:<number>` into three partitions; each is noted when its callback says so."""
    service = GroupCommitService()
    manager = MessageStoreManager(config_of(job), group_commit=service)
    manager.load()

    def noting(partition: int, number: int) -> Callable[[Location | None, Exception | None], None]:
        def callback(location: Location | None, error: Exception | None) -> None:
            assert location is not None, error
            os.write(acks, b"%d:%d\n" % (partition, number))

        return callback

    for i in range(job["count"]):
        for partition, start in enumerate(job["starts"]):
            number = start + i
            body = b"%d:%d:" % (partition, number) + b"x" * (number * 37 % 300)
            store = manager.get_or_create("t", partition)
            store.append(encode_record(body, number + 1, 0), noting(partition, number))
    manager.close()
    service.close()


WRITERS = {"messages": write_messages}


def child(job: dict[str, Any]) -> None:
    logging.disable(logging.CRITICAL)
    if job["point"]:
        arm(*job["point"])
    acks = os.open(job["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    WRITERS[job["writer"]](job, acks)


def serve() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                child(job)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if job["kill_after_ms"] is not None:
            time.sleep(job["kill_after_ms"] / 1000)
            os.kill(pid, signal.SIGKILL)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    serve()
