"""Benches without a peer, and the process that runs them with the mqlake of one checkout (see bench.against).

    python -m bench.alone DIR SCALE     PYTHONPATH says whose mqlake; the bench itself is always this one
        ◀─ {"mqlake": FILE}
        ─▶ ["open", NAME]  ["round", NAME]  ["close", NAME]
        ◀─ {}              a Round           {}               or {"error": TEXT}; {"absent": TEXT}

What a line needs is imported when it is opened, so that a checkout without it lacks that line only.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tests.interop.brokers import MqlakeBroker
from tests.interop.java_peer import Json

from bench import append, sockets
from bench.context import MIB, Scale
from bench.measure import Round, Stopwatch
from bench.pages import touch_pages
from bench.workload import QUEUES, TOPIC, Ring, batch_template, make_log, single_template
from mqlake.formats.columns import Scan, dispatch_columns, scan_records
from mqlake.remoting.loop import run
from mqlake.store import ReadOnlyStore, open_store

CHUNK_RECORDS = 8192


class Alone(Protocol):
    """A line: amounts are messages, records or files."""

    def round(self) -> Round: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Plain:
    """A side that needs no end, or that another function ends."""

    make_round: Callable[[], Round]
    close: Callable[[], None] = lambda: None

    def round(self) -> Round:
        return self.make_round()


def _append(
    template: Json, kind: str, directory: Path, scale: Scale, produce: append.Produce = append.one_producer
) -> Alone:
    settings = {"mappedFileSizeCommitLog": scale.log_file}
    if kind == "sync":
        settings["flushDiskType"] = "SYNC_FLUSH"
    return append.MqlakeAppend(directory, settings, template, getattr(scale, kind), scale.log_max, produce)


def _log(directory: Path, scale: Scale, size: int) -> tuple[dict[str, int], int]:
    """The settings of a log that is made here, and how many messages it has."""
    settings = {"mappedFileSizeCommitLog": scale.recovered_file}
    make_log(directory, size, settings)
    with ReadOnlyStore(directory) as store:
        return settings, sum(store.max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))


def _get(decode: bool, directory: Path, scale: Scale) -> Alone:
    reading = importlib.import_module("bench.reading")
    settings, _ = _log(directory, scale, scale.get_log)
    side: Alone = reading.MqlakeGet(directory, settings, decode=decode)
    return side


def _verify(directory: Path, scale: Scale) -> Alone:
    opening, reading = importlib.import_module("bench.opening"), importlib.import_module("bench.reading")
    _, messages = _log(directory, scale, scale.recovered)
    return Plain(opening.Counted(reading.Verify(directory), messages).round)


def _opening(prepare: str, directory: Path, scale: Scale) -> Alone:
    opening = importlib.import_module("bench.opening")
    settings, messages = _log(directory, scale, scale.recovered)
    side = opening.MqlakeOpening(directory, settings, getattr(opening, prepare), compare_derived=False)
    return Plain(opening.Counted(side, messages).round)


def _start(directory: Path, scale: Scale) -> Alone:
    opening = importlib.import_module("bench.opening")
    files = scale.queue_files // 10
    opening.make_queues(directory, files, scale.queues_a_topic)
    settings = {"mappedFileSizeCommitLog": 64 * MIB}
    side = opening.MqlakeOpening(directory, settings, lambda _: None, compare_derived=False)
    return Plain(opening.Counted(side, files).round)


def _columns(name: str, directory: Path, scale: Scale) -> Alone:
    columns = importlib.import_module("bench.columns")
    _, messages = _log(directory, scale, scale.get_log)

    def make_round() -> Round:
        watch = Stopwatch()
        getattr(columns, name)(directory)
        return watch.round(messages, messages)

    return Plain(make_round)


def _scans(size: int, directory: Path, scale: Scale) -> tuple[Any, list[Scan]]:
    """A buffer of records with bodies of `size` bytes, and the scans over it."""
    ring = Ring(batch_template(size))
    with open_store(directory, {"mappedFileSizeCommitLog": scale.log_file}) as store:
        for number in range(scale.batch // ring.per_put):
            assert store.put_messages(ring.fresh(number, number % QUEUES)).is_ok  # type: ignore[arg-type]
        end = min(store.max_phy_offset, scale.log_file)
    buffer = np.fromfile(directory / "commitlog" / f"{0:020}", np.uint8, end)
    return buffer, _scan_all(buffer)


def _scan_all(buffer: Any) -> list[Scan]:
    position, scans = 0, []
    while len(scan := scan_records(buffer, position, len(buffer), 0, max_records=CHUNK_RECORDS)):
        position = scan.end
        scans.append(scan)
    return scans


def _scan(directory: Path, scale: Scale) -> Alone:
    buffer, _ = _scans(128, directory, scale)

    def make_round() -> Round:
        watch = Stopwatch()
        records = sum(len(scan) for scan in _scan_all(buffer))
        return watch.round(records, records)

    return Plain(make_round)


def _dispatch(directory: Path, scale: Scale) -> Alone:
    buffer, scans = _scans(128, directory, scale)

    def make_round() -> Round:
        watch = Stopwatch()
        for scan in scans:
            dispatch_columns(buffer, scan, delay_levels={})
        records = sum(map(len, scans))
        return watch.round(records, records)

    return Plain(make_round)


# --- a broker in a process of its own: CPU time is its, not the client's


def _broker(directory: Path, scale: Scale, **more: str) -> MqlakeBroker:
    settings = {
        **more,
        "brokerFastFailureEnable": "false",
        "osPageCacheBusyTimeOutMills": 60_000,
        "mappedFileSizeCommitLog": min(scale.broker_log_file, 256 * MIB),
    }
    broker = MqlakeBroker(directory, settings, small=False)
    broker.start()
    return broker


def _of_broker(broker: MqlakeBroker, load: sockets.SocketLoad) -> Alone:
    def close() -> None:
        load.close()
        broker.stop()

    return Plain(sockets.Side(broker, load).round, close)


def _sends(
    in_flight: int,
    batch: int,
    directory: Path,
    scale: Scale,
    *,
    connections: int = 1,
    user: tuple[str, str] | None = None,
    **settings: str,
) -> Alone:
    broker = _broker(directory, scale, **settings)
    count = scale.sends if batch == 1 else scale.batch_sends
    load = sockets.sends(
        broker.address, count, batch=batch, connections=connections, in_flight=in_flight, user=user
    )
    return _of_broker(broker, load)


def _pulls(in_flight: int, directory: Path, scale: Scale) -> Alone:
    broker = _broker(directory, scale)
    messages = sockets.fill(broker.address, sockets.PULLED_TOPIC, scale.batch_sends)
    load = sockets.pulls(broker.address, sockets.PULLED_TOPIC, messages, in_flight=in_flight)
    return _of_broker(broker, load)


def _by_clients(
    work: Callable[[MqlakeBroker, int], Awaitable[Callable[[], Awaitable[int]]]],
    directory: Path,
    scale: Scale,
    **settings: str,
) -> Alone:
    """What mqlake's own clients do. `work` prepares the n-th round, and returns what is measured: how many it did."""
    broker = _broker(directory, scale, **settings)
    numbers = itertools.count()

    async def do() -> Round:
        measured = await work(broker, next(numbers))
        before, began = broker.cpu_seconds(), time.monotonic()
        done = await measured()
        seconds = time.monotonic() - began
        return Round(done, seconds, broker.cpu_seconds() - before, (done,))

    return Plain(lambda: run(do()), broker.stop)


def _pops(directory: Path, scale: Scale) -> Alone:
    pop, count = importlib.import_module("bench.pop"), scale.popped // 5

    async def work(broker: MqlakeBroker, number: int) -> Callable[[], Awaitable[int]]:
        topic = f"Popped{number}"
        await pop.fill(broker, topic, count)
        return functools.partial(pop.drain, broker, topic, count)

    return _by_clients(work, directory, scale, timerWheelEnable="true")


def _transactions(directory: Path, scale: Scale) -> Alone:
    transactions = importlib.import_module("bench.transactions")

    async def work(broker: MqlakeBroker, _: int) -> Callable[[], Awaitable[int]]:
        return functools.partial(transactions.commit, broker, scale.popped // 10)

    return _by_clients(work, directory, scale)


LINES: dict[str, Callable[[Path, Scale], Alone]] = {
    "put-128": functools.partial(_append, single_template(128), "single"),
    "put-1k": functools.partial(_append, single_template(1024), "single"),
    "put-batch-128": functools.partial(_append, batch_template(128), "batch"),
    "put-batch-1k": functools.partial(_append, batch_template(1024), "batch"),
    "put-sync-flush": functools.partial(_append, single_template(1024), "sync", produce=append.sync_tasks),
    "get-1k": functools.partial(_get, False),
    "get-decode-1k": functools.partial(_get, True),
    "scan-128": _scan,
    "dispatch-128": _dispatch,
    "recover-1k": functools.partial(_opening, "crash"),
    "rebuild-1k": functools.partial(_opening, "lose_derived"),
    "verify-1k": _verify,
    "start": _start,
    "count-columns": functools.partial(_columns, "count_columns"),
    "parse-columns": functools.partial(_columns, "parse_columns"),
    "send-1": functools.partial(_sends, 1, 1),
    "send-64": functools.partial(_sends, 64, 1),
    "send-16-clients": functools.partial(_sends, 1, 1, connections=16),
    "send-signed": functools.partial(
        _sends,
        1,
        1,
        connections=16,
        user=("admin", "admin-secret"),
        authenticationEnabled="true",
        authorizationEnabled="true",
        initAuthenticationUser='{"username":"admin","password":"admin-secret"}',
    ),
    "send-measured": functools.partial(
        _sends, 1, 1, connections=16, metricsExporterType="PROM", metricsPromExporterPort="0"
    ),
    "send-sync-flush": functools.partial(_sends, 1, 1, connections=64, flushDiskType="SYNC_FLUSH"),
    "send-batch-8": functools.partial(_sends, 8, sockets.BATCH),
    "pull-1": functools.partial(_pulls, 1),
    "pull-64": functools.partial(_pulls, 64),
    "pop-ack": _pops,
    "transaction": _transactions,
}


def serve(directory: Path, scale: Scale) -> None:
    """Does what the lines on stdin ask, until they end."""
    import mqlake

    answers, sys.stdout = sys.stdout, sys.stderr
    sides: dict[str, Alone] = {}

    def answer(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    answer({"mqlake": mqlake.__file__})
    try:
        for line in sys.stdin:
            what, name = json.loads(line)
            try:
                if what == "open":
                    sides[name] = LINES[name](directory / name, scale)
                    answer({})
                elif what == "round":
                    touch_pages(directory, scale.touched)
                    answer(dataclasses.asdict(sides[name].round()))
                else:
                    sides.pop(name).close()
                    answer({})
            except (ImportError, AttributeError) as error:
                answer({"absent": f"{type(error).__name__}: {error}"})
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})
    finally:
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Scale(**json.loads(sys.argv[2])))
