"""Narrow questions of a day's log that has heads, beside DuckDB on Parquet of the same rows, sorted by time.

    log      5,002 topics in turn, two of them with 22 messages; keys in no order; files of the log with their heads
    Parquet  all columns, zstd, row groups of about 16 MiB of log, page index, Bloom filters: as heads have them
    a round  a new process for each side: it starts, imports what it needs, asks, and ends

Both sides ask by DuckDB, and read the bodies of what they find.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import mqlake.lake
from bench.alternate import compared
from bench.context import Context
from bench.measure import Line
from bench.workload import BORN_HOST, STORE_HOST
from mqlake.formats.names import offset_to_file_name
from mqlake.formats.record import encode_blank, encode_message
from mqlake.lake.heads.parquet import FALSE_POSITIVES
from mqlake.lake.heads.rows import GROUP_BYTES
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.message import MessageExt, crc32
from mqlake.store import open_store

TOPICS = 5_000
RARE, OF_RARE = 2, 22
QUEUES = 4
BODY = 900
BODIES = 1 << 14
DAY_MS = 86_400_000
BEGIN_MS = 1_767_225_600_000
"""2026-01-01, midnight."""
RATIO_MIN = 0.5
"""Of Parquet's rate: a question takes twice as long at most."""

SELECT = "select count(*), sum(octet_length(body)), min(physicalOffset), max(physicalOffset) from log where "
NO_PANDAS = """
import sys
class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, NoPandas())
"""
"""As where neither side needs it: pyarrow would import it if it is there, which takes 0.25 s."""
OURS = "import duckdb, mqlake.lake; log = mqlake.lake.scan(sys.argv[1])"
PARQUET = "import duckdb; log = duckdb.read_parquet(sys.argv[1])"
ASK = "; print(duckdb.sql(sys.argv[2]).fetchall())"

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def key_of(number: Ints) -> Ints:
    """A number of eight digits for each message, no two alike, in no order."""
    return (number * 48_271 + 11) % 99_999_989


def make_day(root: Path, nbytes: int, file_size: int) -> int:
    """A log of a day, of `nbytes`, with its queues, index and heads; the number of its messages."""
    draw = np.random.default_rng(1)
    bodies = np.frombuffer(b"0123456789abcdef", np.uint8)[draw.integers(0, 16, (BODIES, BODY))]
    crcs = np.array([crc32(body.tobytes()) for body in bodies], ">u4")
    template = _template("Topic-0000", bytes(BODY))
    size = len(template)
    count, a_file = nbytes // size, (file_size - 8) // size
    number = np.arange(count)
    topic = number % TOPICS
    for rare in range(RARE):
        topic[(2 * np.arange(OF_RARE) + rare + 1) * (count // (2 * OF_RARE + RARE))] = TOPICS + rare
    in_topic = _numbered(topic)
    (root / "commitlog").mkdir(parents=True)
    for first in range(0, count, a_file):
        part = number[first : first + a_file]
        base = first // a_file * file_size
        rows = np.tile(np.frombuffer(template, np.uint8), (len(part), 1))
        rows[:, 88 : 88 + BODY] = bodies[part % BODIES]
        rows[:, 8:12] = crcs[part % BODIES].view(np.uint8).reshape(-1, 4)
        _put(rows, 12, in_topic[part] % QUEUES, ">i4")
        _put(rows, 20, in_topic[part] // QUEUES, ">i8")
        _put(rows, 28, base + (part - first) * size, ">i8")
        stored = BEGIN_MS + part * DAY_MS // count
        _put(rows, 40, stored, ">i8")
        _put(rows, 56, stored, ">i8")
        rows[:, 88 + BODY + 7 : 88 + BODY + 11] = _digits(topic[part], 4)
        _fill_in(rows, template, b"order-", _digits(key_of(part), 8))
        _fill_in(rows, template, b"7F00000100012A", _digits(part, 8))
        with (root / "commitlog" / offset_to_file_name(base)).open("wb") as file:
            file.write(rows.data)
            if len(part) == a_file:
                file.write(encode_blank(file_size - file.tell()))
            file.truncate(file_size)
    with open_store(root, {"mappedFileSizeCommitLog": file_size}) as store:
        store.wait_until_dispatched()
    HeadsWriter(str(root)).run()
    return int(count)


def _template(topic: str, body: bytes) -> bytes:
    properties = {"KEYS": "order-00000000", "TAGS": "TagA", "UNIQ_KEY": "7F00000100012A" + "0" * 18}
    message = MessageExt(topic, body, properties=properties)
    message.born_host, message.store_host = BORN_HOST, STORE_HOST
    return encode_message(message)


def _numbered(values: Ints) -> Ints:
    """Of each value how often it came before."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _put(rows: Bytes, position: int, values: Ints, kind: str) -> None:
    data = values.astype(kind).view(np.uint8).reshape(len(rows), -1)
    rows[:, position : position + data.shape[1]] = data


def _digits(values: Ints, width: int) -> Bytes:
    return (values[:, None] // 10 ** np.arange(width - 1, -1, -1) % 10 + ord("0")).astype(np.uint8)


def _fill_in(rows: Bytes, template: bytes, before: bytes, digits: Bytes) -> None:
    """Digits after a text of the template."""
    at = template.rindex(before) + len(before)
    rows[:, at : at + digits.shape[1]] = digits


def write_parquet(root: Path, path: Path, row_size: int) -> None:
    log = mqlake.lake.scan(root)
    group = GROUP_BYTES // row_size
    blooms = {name: {"ndv": group, "fpp": FALSE_POSITIVES} for name in ("keys", "uniqKey")}
    with pq.ParquetWriter(
        path, log.schema, compression="zstd", write_page_index=True, bloom_filter_options=blooms
    ) as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in log.to_reader():
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= group:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=group)
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=group)


def lake_narrow(context: Context) -> Iterator[Line]:
    """Each question twice as long as Parquet takes, at most."""
    scale = context.scale
    with context.scratch("lake-narrow") as directory:
        root, parquet = directory / "store", directory / "rows.parquet"
        with context.progress.step("lake-narrow: a log and its heads"):
            count = make_day(root, scale.narrow_log, scale.narrow_file)
        with context.progress.step("lake-narrow: its rows as Parquet"):
            write_parquet(root, parquet, scale.narrow_log // count)
        noon = "timestamptz '2026-01-01 12:00:00+00'"
        questions = {
            "one key": f"keys = 'order-{key_of(np.array([count // 3]))[0]:08}'",
            f"a topic of {OF_RARE} messages": f"topic = 'Topic-{TOPICS + 1:04}'",
            "ten minutes": f"storeTimestamp >= {noon} and storeTimestamp < {noon} + interval 10 minute",
        }
        for name, where in questions.items():
            yield compared(
                context,
                f"{name} of a day, heads",
                _asked(OURS, root, where),
                _asked(PARQUET, parquet, where),
                peer_name="Parquet",
                amount=1,
                unit="questions/s",
                ratio_min=RATIO_MIN,
                clocks=(_cpu_of_children, _cpu_of_children),
            )


def _asked(prepare: str, place: Path, where: str) -> Callable[[], str]:
    command = [sys.executable, "-c", NO_PANDAS + prepare + ASK, str(place), SELECT + where]
    return lambda: (
        subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ).stdout
    )


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
