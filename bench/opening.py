"""Opening a store: after a crash, without its queues and index, and with 200,000 consume queue files.

Both sides open the very same directory in turn. Before each round it is put into the state in question; what is
derived from the log is compared after it.

    recover    the abort file is there, the checkpoint is not: every record is checked, and the index, which may
               not be believed, is filled again
    rebuild    consumequeue/ and index/ are gone: everything is dispatched again
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tests.interop.java_peer import JavaBench, JavaPeer, Json

from bench.context import Context
from bench.measure import Line, Round, Side, Stopwatch, compare, first_of
from bench.pages import round_size
from bench.workload import BORN_HOST, QUEUES, STORE_HOST, TOPIC, make_log
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE, UNIT
from mqlake.formats.index import IndexHeader
from mqlake.message import MessageExtBrokerInner, tags_code
from mqlake.store import MessageStoreConfig, PutMessageStatus, ReadOnlyStore, open_store

CommitLog = first_of("mqlake.store.log.commit_log", "mqlake.store.commit_log").CommitLog
MappedFileQueue = first_of(
    "mqlake.store.files.mapped_file_queue", "mqlake.store.mapped_file_queue"
).MappedFileQueue

CONSUME_QUEUE_FILE = 300_000 * CQ_STORE_UNIT_SIZE


def crash(root: Path) -> None:
    """As after a crash, without a record of when the disk was last in order."""
    (root / "abort").touch()
    (root / "checkpoint").unlink(missing_ok=True)


def lose_derived(root: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)


def derived(root: Path) -> tuple[str, int]:
    """A digest of the consume queues' bytes, and the number of index entries."""
    digest = hashlib.sha256()
    for path in sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file()):
        units = np.fromfile(path, np.uint8)
        digest.update(str(path.relative_to(root)).encode() + units[: np.flatnonzero(units)[-1] + 1].tobytes())
    entries = 0
    for path in (root / "index").iterdir():
        with path.open("rb") as file:
            entries += max(0, IndexHeader.decode(file.read(40)).index_count - 1)
    return digest.hexdigest()[:12], entries


class MqlakeOpening:
    def __init__(
        self, root: Path, config: Json, prepare: Callable[[Path], None], *, compare_derived: bool = True
    ) -> None:
        self._root, self._config, self._prepare, self._compare = root, config, prepare, compare_derived

    def round(self) -> Round:
        self._prepare(self._root)
        watch = Stopwatch()
        with open_store(self._root, self._config) as store:
            store.wait_until_dispatched()
            seconds, cpu_seconds = watch.seconds(), watch.cpu_seconds()
            nbytes = store.max_phy_offset - store.min_phy_offset
        return Round(nbytes, seconds, cpu_seconds, (nbytes, *(derived(self._root) if self._compare else ())))


class JavaOpening:
    def __init__(
        self,
        peer: JavaPeer,
        root: Path,
        config: Json,
        prepare: Callable[[Path], None],
        *,
        compare_derived: bool = True,
    ) -> None:
        self._bench = JavaBench(peer, "recover")
        self._root, self._config, self._prepare, self._compare = root, config, prepare, compare_derived

    def round(self) -> Round:
        self._prepare(self._root)
        done = self._bench.round(root=str(self._root), config=self._config)
        work = (done["bytes"], *(derived(self._root) if self._compare else ()))
        return Round(done["bytes"], done["seconds"], done["cpuSeconds"], work)


def _line(context: Context, name: str, prepare: Callable[[Path], None]) -> Line:
    scale = context.scale
    config = {"mappedFileSizeCommitLog": scale.recovered_file}
    root = context.kept("log", lambda path: make_log(path, scale.recovered, config))
    with ReadOnlyStore(root) as store:
        messages = sum(store.max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
    with context.java() as peer:
        return compare(
            name,
            MqlakeOpening(root, config, prepare),
            JavaOpening(peer, root, config, prepare),
            context.progress,
            unit="B/s",
            rounds=scale.recovery_rounds,
            warm_up_s=scale.warm_up_s,
            warm_up_rounds=min(8, scale.warm_up_rounds),
            ratio_min=4,
            per=lambda _: messages,
            touch=lambda: context.touch_pages(round_size(messages, 0)),
        )


def recover(context: Context) -> Iterator[Line]:
    yield _line(context, "abnormal recovery", crash)


def rebuild(context: Context) -> Iterator[Line]:
    yield _line(context, "rebuild of queues and index", lose_derived)


# --- very many consume queue files


def make_queues(root: Path, files: int, queues_a_topic: int) -> None:
    """A store with one message in each of `files` queues, as a clean shutdown leaves it."""
    config = MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=64 << 20)
    queue = MappedFileQueue(config.commit_log_dir, config.mapped_file_size_commit_log)
    log = CommitLog(config, queue, {})
    for number in range(files):
        topic, queue_id = f"Topic{number // queues_a_topic}", number % queues_a_topic
        message = MessageExtBrokerInner(
            topic, b"x", "TagA", queue_id=queue_id, born_host=BORN_HOST, store_host=STORE_HOST
        )
        put = log.put_message(message)
        assert put.status is PutMessageStatus.PUT_OK and put.append_result is not None
        directory = f"{root}/consumequeue/{topic}/{queue_id}"
        os.makedirs(directory)
        fd = os.open(f"{directory}/{0:020}", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, UNIT.pack(message.physical_offset, put.append_result.wrote_bytes, tags_code("TagA")), 0)
        os.ftruncate(fd, CONSUME_QUEUE_FILE)
        os.close(fd)
    queue.flush_all()
    queue.close()


class Counted:
    """Rounds of `side`, counted in something else than bytes."""

    def __init__(self, side: Side, amount: int) -> None:
        self._side, self._amount = side, amount

    def round(self) -> Round:
        done = self._side.round()
        return Round(self._amount, done.seconds, done.cpu_seconds)


def start(context: Context) -> Iterator[Line]:
    scale = context.scale
    config = {"mappedFileSizeCommitLog": 64 << 20}
    with context.scratch("queues") as root, context.java() as peer:
        sides = []
        for name, files in (("mqlake", scale.queue_files), ("java", scale.queue_files_java)):
            with context.progress.step(f"start: making {files} consume queue files"):
                make_queues(root / name, files, scale.queues_a_topic)
        for side in (
            MqlakeOpening(root / "mqlake", config, lambda _: None, compare_derived=False),
            JavaOpening(peer, root / "java", config, lambda _: None, compare_derived=False),
        ):
            files = scale.queue_files if isinstance(side, MqlakeOpening) else scale.queue_files_java
            sides.append(Counted(side, files))
        yield compare(
            f"start, {scale.queue_files} queue files (Java {scale.queue_files_java})",
            sides[0],
            sides[1],
            context.progress,
            unit="files/s",
            rounds=scale.start_rounds,
            warm_up_s=scale.warm_up_s,
            warm_up_rounds=min(4, scale.warm_up_rounds),
            same_work=False,
        )
