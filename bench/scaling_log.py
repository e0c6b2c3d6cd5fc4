"""A store with more log or more queues, and queries of it: points of bench.scaling.

Files of 256 KiB, each full of messages of 4 KB, stand for files of 1 GiB: what grows with their number is the same.
What grows with messages or bytes has its rates in docs/performance.md.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lake.s3 import BUCKET, s3_server

from bench.memory import status
from bench.opening import crash, make_queues
from bench.scaling_cluster import MIB
from bench.workload import BORN_HOST, STORE_HOST, make_log
from mqlake.formats.names import offset_to_file_name
from mqlake.formats.record import encode_blank, encode_message
from mqlake.message import MessageExt, MessageExtBrokerInner
from mqlake.store import DefaultMessageStore, open_store

FILE = 1 << 18
MESSAGES = 64
"""A file of the log."""
SPLIT = FILE // 16
"""As 64 MiB of 1 GiB."""
QUEUES = 8
BODY = bytes(3900)
TOPIC = "Scaled"
STEP_MS = 1000
LOOKUPS = 200
PUTS = 10_000
SETTINGS = {"mappedFileSizeCommitLog": FILE}
SMALL_FILE = MIB
GIB = 1 << 30
TOPICS_A_FILE = 10
UPLOADS_A_FILE = 16
"""Of 64 MiB, which is archiveIntervalBytes."""
SPARSE_FILE = GIB
QUEUE_FILE = 300_000 * 20
SPARSE_BODY = 1 << 16
"""Zeros, which take no disk."""
SPARSE_TOPICS, SPARSE_QUEUES = 100, 10_000


def make_files(root: Path, files: int) -> int:
    """A log of that many files, without queues and index; when its first message was stored, in ms."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    number, begin = 0, int(time.time() * 1000) - files * MESSAGES * STEP_MS
    for file in range(files):
        records, offset = bytearray(), file * FILE
        for _ in range(MESSAGES):
            message = MessageExt(TOPIC, BODY, properties={"TAGS": "A", "KEYS": f"key-{number}"})
            message.queue_id, message.queue_offset = number % QUEUES, number // QUEUES
            message.physical_offset = offset + len(records)
            message.born_timestamp = message.store_timestamp = begin + number * STEP_MS
            message.born_host, message.store_host = BORN_HOST, STORE_HOST
            records += encode_message(message)
            number += 1
        if file < files - 1:
            records += encode_blank(FILE - len(records))
        with (directory / offset_to_file_name(offset)).open("wb") as out:
            out.write(records)
            out.truncate(FILE)
    return begin


def cpu_us(work: Callable[[int], object], count: int) -> float:
    """Processor time of one of `count` calls, each with its number."""
    began = time.process_time()
    for number in range(count):
        work(number)
    return (time.process_time() - began) / count * 1e6


def opened(root: Path, settings: dict[str, int]) -> tuple[float, float]:
    """CPU seconds until everything is dispatched, and until it is closed again."""
    began = time.process_time()
    with open_store(root, settings) as store:
        store.wait_until_dispatched()
        ready = time.process_time() - began
        began = time.process_time()
    return ready, time.process_time() - began


def warm(directory: Path) -> None:
    """Loads what opening a store loads."""
    make_log(directory / "warm", MIB // 2, {"mappedFileSizeCommitLog": MIB})
    opened(directory / "warm", {"mappedFileSizeCommitLog": MIB})


# --- the size of the log


def log(directory: Path, size: float) -> dict[str, float]:
    warm(directory)
    root, files = directory / "store", int(size)
    begin = make_files(root, files)
    rebuilt, _ = opened(root, SETTINGS)
    clean, closed = opened(root, SETTINGS)
    (root / "abort").touch()
    crashed, _ = opened(root, SETTINGS)
    crash(root)
    unknown, _ = opened(root, SETTINGS)
    before = status("VmRSS")
    with open_store(root, SETTINGS) as store:
        store.wait_until_dispatched()
        resident = status("VmRSS") - before
        return {
            "queues and index made again, CPU ms": rebuilt * 1e3,
            "open after a clean end, CPU ms": clean * 1e3,
            "open after a crash, CPU ms": crashed * 1e3,
            "the same without checkpoint, CPU ms": unknown * 1e3,
            "close, CPU ms": closed * 1e3,
            "memory, MiB more": resident / MIB,
            **_lookups(store, files * MESSAGES, begin),
        }


def _lookups(store: DefaultMessageStore, messages: int, begin: int) -> dict[str, float]:
    def place(number: int) -> int:
        return number * 7919 % messages

    def by_key(number: int) -> None:
        found = store.query_message(TOPIC, f"key-{place(number)}", 1)
        assert len(found.buffers) == 1

    def by_time(number: int) -> None:
        at = place(number)
        offset = store.get_offset_in_queue_by_time(TOPIC, at % QUEUES, begin + at * STEP_MS)
        assert offset == at // QUEUES, (at, offset)

    def bounds(number: int) -> None:
        assert store.min_offset_in_queue(TOPIC, number % QUEUES) == 0
        assert store.max_offset_in_queue(TOPIC, number % QUEUES) == messages // QUEUES

    def get(number: int) -> None:
        found = store.get_message("group", TOPIC, place(number) % QUEUES, place(number) // QUEUES, 1)
        assert found.status.name == "FOUND"

    works = {
        "by key": by_key,
        "offset by time": by_time,
        "min and max offset": bounds,
        "get one message": get,
    }
    for work in works.values():
        cpu_us(work, 20)
    return {f"{name}, CPU µs": cpu_us(work, LOOKUPS) for name, work in works.items()}


# --- queues


def queues(directory: Path, size: float) -> dict[str, float]:
    """A store with `size` queues: opening, putting in turn into them all, closing."""
    warm(directory)
    root, count = directory / "store", int(size)
    topics = max(1, count // 100)
    make_queues(root, count, count // topics)
    settings = {"mappedFileSizeCommitLog": 64 << 20}
    clean, closed = opened(root, settings)
    crash(root)
    crashed, _ = opened(root, settings)
    before = status("VmRSS")

    def put(number: int) -> None:
        queue = number * 7919 % count
        message = MessageExtBrokerInner(f"Topic{queue // (count // topics)}", b"x" * 128, "TagA")
        message.queue_id = queue % (count // topics)
        message.born_host, message.store_host = BORN_HOST, STORE_HOST
        assert store.put_message(message).is_ok

    with open_store(root, settings) as store:
        store.wait_until_dispatched()
        resident = status("VmRSS") - before
        cpu_us(put, PUTS // 10)

        def all_of_them(_: int) -> None:
            cpu_us(put, PUTS)
            store.wait_until_dispatched()

        each = cpu_us(all_of_them, 1) / PUTS
        began = time.process_time()
    return {
        "open after a clean end, CPU ms": clean * 1e3,
        "open after a crash, CPU ms": crashed * 1e3,
        "close, CPU ms": closed * 1e3,
        "memory, MiB more": resident / MIB,
        "a put and its dispatch, queues in turn, CPU µs": each,
        "close after the puts, CPU ms": (time.process_time() - began) * 1e3,
    }


# --- queries


def planning(directory: Path, size: float) -> dict[str, float]:
    """What a driver does before a query's tasks begin."""
    from mqlake.lake.heads.writer import HeadsWriter
    from mqlake.lake.plan import plan_read
    from mqlake.spark.options import log_options

    root = directory / "store"
    begin = make_files(root, int(size))
    opened(root, SETTINGS)
    middle = int(size) * MESSAGES // 2
    asked = {
        "everything": {},
        "one topic": {"topics": TOPIC},
        "one key of a topic": {"topics": TOPIC, "keys": f"key-{middle}"},
        "a minute, by heads": {
            "topics": TOPIC,
            "startingTimestamp": str(begin + middle * STEP_MS),
            "endingTimestamp": str(begin + middle * STEP_MS + 60_000),
        },
    }
    figures: dict[str, float] = {}
    for name, options in asked.items():
        if name.endswith("by heads"):
            began = time.process_time()
            HeadsWriter(str(root)).run()
            figures["writing heads: CPU ms"] = (time.process_time() - began) * 1e3
        parsed = log_options({"path": str(root), "splitSize": str(SPLIT), **options})
        plan_read(parsed)
        began = time.process_time()
        found = plan_read(parsed)
        figures[f"{name}: CPU ms"] = (time.process_time() - began) * 1e3
        figures[f"{name}: tasks"] = len(found.tasks)
        figures[f"{name}: MiB to read"] = found.bytes_to_read / MIB
    return figures


def sparse(directory: Path, size: float) -> dict[str, float]:
    """A log of `size` files, a message of 64 KiB in turn to each queue of each topic, and what questions take that its
    heads answer: each in a process of its own, after a small log that loads the code."""
    from mqlake.lake.heads.writer import HeadsWriter

    small, root = directory / "small", directory / "store"
    make_sparse(small, 3, 4 * MIB)
    messages = make_sparse(root, int(size) + 1, SPARSE_FILE)
    HeadsWriter(str(small)).run()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    began = time.process_time()
    HeadsWriter(str(root)).run()
    figures: dict[str, float] = {
        "messages": messages,
        "writing heads: CPU s": time.process_time() - began,
        "writing heads: memory, MiB more": (status("VmHWM") - before) / MIB,
    }
    middle = messages // 2
    topic, queue = middle % SPARSE_TOPICS, middle // SPARSE_TOPICS % SPARSE_QUEUES
    for name, where in {
        "one key": f"keys = 'key-{middle:07}'",
        "one queue": f"topic = 'Sparse-{topic:02}' and queueId = {queue}",
        "ten minutes": f"storeTimestamp >= make_timestamptz({middle * 1_000_000}) "
        f"and storeTimestamp < make_timestamptz({(middle + 600) * 1_000_000})",
    }.items():
        command = [sys.executable, "-m", "bench.scaling_log", str(small), str(root), where]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
        found = json.loads(done.stdout)
        assert found["rows"] == min(600 if name == "ten minutes" else 1, messages - middle)
        figures |= {f"{name}: {figure}": found[figure] for figure in ("CPU ms", "memory, MiB more")}
    return figures


def make_sparse(root: Path, files: int, file_size: int) -> int:
    """A log of zeros between heads, so many files of which the last is half full, and its queues; the number of its
    messages, a second each."""
    directory, queues = root / "commitlog", root / "consumequeue"
    directory.mkdir(parents=True)
    size = len(_sparse_template())
    a_file, number = (file_size - 8) // size, 0
    for file in range(files):
        count = a_file if file < files - 1 else a_file // 2
        with (directory / offset_to_file_name(file * file_size)).open("wb", buffering=0) as out:
            for row in range(count):
                head, rest = _sparse_record(number, file * file_size + row * size)
                os.pwrite(out.fileno(), head, row * size)
                os.pwrite(out.fileno(), rest, (row + 1) * size - len(rest))
                _put_unit(queues, number, file * file_size + row * size)
                number += 1
            if count == a_file:
                os.pwrite(out.fileno(), encode_blank(file_size - count * size)[:8], count * size)
            out.truncate(file_size)
    return number


def _sparse_record(number: int, offset: int) -> tuple[bytes, bytes]:
    """What comes before and after the body."""
    template = _sparse_template()
    head, rest = bytearray(template[:88]), template[88 + SPARSE_BODY :]
    of_topic, topic = divmod(number, SPARSE_TOPICS)
    struct.pack_into(">i", head, 12, of_topic % SPARSE_QUEUES)
    struct.pack_into(">qq", head, 20, of_topic // SPARSE_QUEUES, offset)
    for position in (40, 56):
        struct.pack_into(">q", head, position, number * STEP_MS)
    return bytes(head), rest.replace(b"Sparse-00", b"Sparse-%02d" % topic).replace(
        b"key-0000000", b"key-%07d" % number
    )


def _put_unit(queues: Path, number: int, offset: int) -> None:
    of_topic, topic = divmod(number, SPARSE_TOPICS)
    directory = f"{queues}/Sparse-{topic:02}/{of_topic % SPARSE_QUEUES}"
    if of_topic < SPARSE_QUEUES:
        os.makedirs(directory)
    fd = os.open(f"{directory}/{offset_to_file_name(0)}", os.O_RDWR | os.O_CREAT)
    unit = struct.pack(">qiq", offset, len(_sparse_template()), 0)
    os.pwrite(fd, unit, of_topic // SPARSE_QUEUES * len(unit))
    os.truncate(fd, QUEUE_FILE)
    os.close(fd)


@functools.cache
def _sparse_template() -> bytes:
    message = MessageExt("Sparse-00", bytes(SPARSE_BODY), properties={"KEYS": "key-0000000"})
    message.born_host, message.store_host = BORN_HOST, STORE_HOST
    return encode_message(message)


def ask(root: Path, where: str) -> dict[str, float]:
    """A question that reads the bodies; memory counts pages of mapped files."""
    import duckdb

    import mqlake.lake

    before, began = status("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")
    log = mqlake.lake.scan(root)
    connection = duckdb.connect()
    connection.register("log", log)
    query = f"select count(*), sum(octet_length(body)) from log where {where}"
    ((rows, size),) = connection.execute(query).fetchall()
    assert (size or 0) == rows * SPARSE_BODY
    used = time.process_time() - began
    return {"rows": rows, "CPU ms": used * 1e3, "memory, MiB more": (status("VmHWM") - before) / MIB}


def bucket(directory: Path, size: float) -> dict[str, float]:
    """Requests to a bucket that has `size` files of a log, each of SMALL_FILE bytes, of a query of one or all rows."""
    import pyarrow.compute as pc

    import mqlake.lake
    from mqlake.store.archive.offload import offload

    root = directory / "store"
    make_log(root, int((size + 0.5) * SMALL_FILE), {"mappedFileSizeCommitLog": SMALL_FILE})
    with s3_server() as s3:
        place = f"s3://{BUCKET}/log"
        offload(str(root), place, storage_options=s3.options)
        figures: dict[str, float] = {"requests to bring the files": s3.total}
        for gone in sorted((root / "commitlog").iterdir())[: int(size)]:
            os.unlink(gone)
        log = mqlake.lake.scan(str(root), archive=place, storage_options=s3.options)
        for name, wanted in {"all rows": None, "one key": pc.field("keys") == "order-0-0"}.items():
            s3.requests.clear()
            assert log.to_table(columns=["queueId"], filter=wanted).num_rows > 0
            figures[f"requests for {name}"] = s3.total
    return figures


def manifest(_: Path, size: float) -> dict[str, float]:
    """The manifest of an archive with `size` files of 1 GiB, which each upload of 64 MiB writes anew."""
    from mqlake.store.archive.manifest import (
        LOG,
        UNITS,
        ArchivedObject,
        Manifest,
        SmallObject,
        decode,
        encode,
    )

    digest, topics = "0" * 64, tuple(f"Topic-{number}" for number in range(TOPICS_A_FILE))
    objects = tuple(
        ArchivedObject(
            f"{LOG}/{start:020}",
            start,
            start + GIB,
            digest,
            first_time_ms=start,
            last_time_ms=start + 1,
            records=1_000_000,
            topics=topics,
            units=SmallObject(f"{UNITS}/{start:020}", MIB, digest),
        )
        for start in range(0, int(size) * GIB, GIB)
    )
    written = Manifest(GIB, objects)
    data = encode(written)
    write = cpu_us(lambda number: encode(written), 3)
    read = cpu_us(lambda number: decode(data, "here"), 3)
    return {
        "archive.json, MB": len(data) / 1e6,
        "to write it, CPU ms": write / 1e3,
        "to read it, CPU ms": read / 1e3,
        "written for each GiB of log, MB": len(data) / 1e6 * UPLOADS_A_FILE,
        "CPU s for each GiB of log": write / 1e6 * UPLOADS_A_FILE,
    }


if __name__ == "__main__":
    _, first, second, condition = sys.argv
    ask(Path(first), condition)
    print(json.dumps(ask(Path(second), condition)))
