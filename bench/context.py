"""What every bench gets: where to work, how much, and JVMs that end with the run."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.interop.java_peer import BENCH_JVM, JavaPeer

from bench.measure import Progress
from bench.pages import touch_pages

T = TypeVar("T")
MIB = 1 << 20
GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much work. Counts are messages a round."""

    rounds: int = 9
    shapes: int | None = None
    """Of a broker's loads of one kind, so many; None: all."""
    warm_up_s: float = 90.0
    warm_up_rounds: int = 200
    single: int = 100_000
    batch: int = 204_800
    sync: int = 12_800
    log_file: int = GIB
    log_max: int = 512 * MIB
    """A log larger than this is started again before a round."""
    recovered: int = GIB
    recovered_file: int = 256 * MIB
    recovery_rounds: int = 5
    get_log: int = 256 * MIB
    live_log: int = GIB
    """Bodies in a broker, of which a query takes 0.2 to 0.4 s whatever there is to read."""
    verify_rounds: int = 7
    queue_files: int = 200_000
    queue_files_java: int = 20_000
    queues_a_topic: int = 100
    start_rounds: int = 3
    memory_log: int = 4 * GIB
    lake_log: int = 512 * MIB
    lake_commits: int = 1_000
    lake_formats: Sequence[str] = ("iceberg", "delta")
    lake_memory: Sequence[int] = (256 * MIB, 2 * GIB)
    lake_queues: int = 1_000
    lake_body: int = 4_000_000
    lake_topics: tuple[int, int] = (50, 200)
    narrow_log: int = 8_000_000_000
    narrow_file: int = GIB
    sends: int = 80_000
    batch_sends: int = 256_000
    drained: int = 1_024_000
    broker_log_file: int = GIB
    catch_up: int = 4 * GIB
    catch_up_rounds: int = 3
    neighbour_s: float = 2.0
    long_message: int = 4_000_000
    """Bytes of the body of those that a neighbour is beside."""
    timers: int = 200_000
    grpc: int = 16_000
    popped: int = 96_000
    metaq_puts: int = 40_000
    metaq_drained: int = 256 * MIB
    metaq_size: int = 10 * GIB
    """Of a data directory, most of it sparse; `metaq_recovered` of it are records."""
    metaq_recovered: int = GIB
    java: bool = False
    """RocketMQ's broker beside mqlake's in the socket benches too."""
    touched: int = 3 * GIB
    """Bytes of pages that are touched before a timed round, at least: the kernel does not take those freed last."""
    jvm: Sequence[str] = BENCH_JVM
    jvm_a_bench: bool = True


FULL = Scale()
QUICK = dataclasses.replace(
    FULL,
    rounds=5,
    warm_up_s=15.0,
    single=30_000,
    batch=64_000,
    sync=6_400,
    recovered=128 * MIB,
    recovered_file=64 * MIB,
    recovery_rounds=3,
    get_log=64 * MIB,
    live_log=256 * MIB,
    verify_rounds=3,
    queue_files=20_000,
    queue_files_java=2_000,
    start_rounds=1,
    memory_log=GIB,
    lake_log=128 * MIB,
    narrow_log=GIB,
    narrow_file=128 * MIB,
    sends=40_000,
    batch_sends=128_000,
    catch_up=GIB,
    timers=50_000,
    grpc=4_000,
    popped=24_000,
    drained=256_000,
    metaq_puts=8_000,
    metaq_drained=64 * MIB,
    metaq_recovered=128 * MIB,
)


class Context:
    """One run's directory, scale and progress line; a `with` ends its JVMs and deletes what was made."""

    def __init__(self, directory: Path, scale: Scale, progress: Progress) -> None:
        self.directory = directory
        self.scale = scale
        self.progress = progress
        self._jvms = 0
        self._peer: JavaPeer | None = None
        self._kept: dict[str, Path] = {}
        self._servers: dict[str, Any] = {}
        self._keep = contextlib.ExitStack()

    @contextlib.contextmanager
    def java(self) -> Iterator[JavaPeer]:
        """A JVM for one bench: what another made its compiler assume is not in it."""
        if self._peer is None:
            self.progress.say("a JVM starts")
            self._jvms += 1
            self._peer = JavaPeer(self.directory / f"jvm-{self._jvms}", jvm=self.scale.jvm, log="ERROR")
        try:
            yield self._peer
        finally:
            if self.scale.jvm_a_bench:
                self._close_jvm()

    def _close_jvm(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def touch_pages(self, size: int) -> None:
        """Before each timed round of each side, which writes about `size` bytes (see bench.pages)."""
        touch_pages(self.directory, max(2 * size, self.scale.touched))

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A directory that is gone afterwards."""
        path = self.directory / name
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            self.progress.say(f"{name}: deleting")
            shutil.rmtree(path)

    def kept(self, name: str, make: Callable[[Path], object]) -> Path:
        """A directory that several benches read: made once, gone at the end of the run."""
        if name not in self._kept:
            path = self._keep.enter_context(self.scratch(name))
            with self.progress.step(f"{name}: making it"):
                make(path)
            self._kept[name] = path
        return self._kept[name]

    @contextlib.contextmanager
    def servers(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
        """What `make` starts, ended afterwards; with `jvm_a_bench` false one for all who ask, ended with the run."""
        if self.scale.jvm_a_bench:
            with make() as made:
                yield made
            return
        if name not in self._servers:
            self._servers[name] = self._keep.enter_context(make())
        yield self._servers[name]

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_jvm()
        self._keep.close()
        self.progress.clear()
