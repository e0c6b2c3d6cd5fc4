"""Packed records as a consumer has their messages, for stores of mqlake and of Java."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

import mqlake.lake
from mqlake.formats.batch import encode_messages
from mqlake.formats.columns import scan_records
from mqlake.formats.compression import compress_body
from mqlake.formats.record import TOPIC_LENGTH_MAX_V1, encode_record
from mqlake.lake.arrow import unpack
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.message import Message, MessageExtBrokerInner, MessageSysFlag, crc32, host_bytes
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.options import log_options
from mqlake.store import open_store
from tests.spark.stores import SETTINGS, row_of, seen, write_inner_batches

INNER = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
ZSTD = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_ZSTD_TYPE


def rows(root: Path, *filters: ds.Filter, **options: str) -> list[dict[str, object]]:
    reader = CommitLogReader(log_options({"path": str(root), **options}), list(COLUMNS))
    reader.pushFilters(list(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return sorted(found, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


def test_stores_of_java(golden_store: Path) -> None:
    assert rows(golden_store, mode="dropMalformed") == [
        row_of(message, golden_store) for message in seen(golden_store)
    ]


@pytest.mark.parametrize("split_size", ["64m", "5000", "333"])
def test_every_kind_of_record(every_kind: Path, split_size: str) -> None:
    expected = [row_of(message, every_kind) for message in seen(every_kind)]
    assert rows(every_kind, splitSize=split_size) == expected


def log_of(*records: tuple[bytes, int], host: str = "127.0.0.1", topic: bytes = b"T") -> np.ndarray:
    data = b""
    for n, (body, sys_flag) in enumerate(records):
        address = host_bytes((host, 1))
        data += encode_record(
            body,
            crc32(body),
            3,
            7,
            10 * n,
            len(data),
            sys_flag,
            5,
            address,
            6,
            address,
            2,
            9,
            topic,
            b"a\x01b",
            1 if len(topic) <= TOPIC_LENGTH_MAX_V1 else 2,
        )
    return np.frombuffer(data, np.uint8)


def unpacked(buf: np.ndarray) -> list[tuple[int, bytes]]:
    scan = scan_records(buf, 0, len(buf), 0)
    found = []
    for each in unpack.unpack(buf, scan, np.arange(len(scan)), "f", 0):
        if isinstance(each, unpack.Damage):
            found.append((each.position, each.reason.encode()))
            continue
        data, messages = each
        for n in range(len(messages)):
            start = messages.body_start[n]
            found.append(
                (int(messages.queue_offset[n]), data[start : start + messages.body_length[n]].tobytes())
            )
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("piece", [8 << 20, 1])
def test_batches_compressed_bodies_and_both(monkeypatch: pytest.MonkeyPatch, host: str, piece: int) -> None:
    monkeypatch.setattr(unpack, "PIECE_BYTES", piece)
    batch = encode_messages([Message("T", bytes([n]) * n, flag=n) for n in range(3)])
    buf = log_of(
        (batch, INNER),
        (compress_body(b"plain" * 100, ZSTD), ZSTD),
        (compress_body(batch, ZSTD), ZSTD | INNER),
        (b"", INNER),
        host=host,
    )
    inside = [b"", b"\1", b"\2\2"]
    assert unpacked(buf) == [
        *enumerate(inside),
        (10, b"plain" * 100),
        *((20 + n, body) for n, body in enumerate(inside)),
    ]


@pytest.mark.parametrize("length", [TOPIC_LENGTH_MAX_V1, TOPIC_LENGTH_MAX_V1 + 1])
def test_topics_of_any_length(length: int) -> None:
    """A longer one is in records of the second version, whose topic has two bytes for its length."""
    batch = encode_messages([Message("T", b"a"), Message("T", b"b")])
    buf = log_of((compress_body(b"x", ZSTD), ZSTD), (batch, INNER), topic=b"t" * length)
    assert unpacked(buf) == [(0, b"x"), (10, b"a"), (11, b"b")]


def test_bodies_that_are_not_what_they_say() -> None:
    buf = log_of((b"no zstd", ZSTD), (b"no batch", INNER), (compress_body(b"x", ZSTD), ZSTD))
    (first, why), (second, what), good = unpacked(buf)
    assert first == 0 and b"cannot be unpacked" in why
    assert second > 0 and b"8 bytes are no message" in what
    assert good == (20, b"x")


def test_a_bomb_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "BODY_BYTES_MAX", 1000)
    ((_, why),) = unpacked(log_of((compress_body(bytes(10**6), ZSTD), ZSTD)))
    assert b"more than 1000 bytes" in why


def incompressible(n: int) -> bytes:
    return random.Random(n).randbytes(5000)


@pytest.fixture
def larger_as_stored(tmp_path: Path) -> Path:
    """Messages that take fewer bytes unpacked than as stored: of inner batches, and with bodies that did not shrink."""
    write_inner_batches(tmp_path / "batches")
    with open_store(tmp_path / "grown", SETTINGS) as store:
        for n in range(4):
            message = MessageExtBrokerInner(
                "Jpeg", compress_body(incompressible(n), ZSTD), keys=[f"jpeg-{n}"], tags="t"
            )
            message.sys_flag = ZSTD
            message.uniq_key = f"7F00000100{n:022X}"
            assert store.put_message(message).is_ok
    return tmp_path


@pytest.mark.parametrize("skipping", ["true", "false"])
@pytest.mark.parametrize(
    ("store", "given", "wanted"),
    [
        ("batches", ds.EqualTo(("keys",), "batch-3"), [bytes(30), bytes(20), bytes(10), b""]),
        ("batches", ds.EqualTo(("tags",), "b"), [bytes(10 * n) for _ in range(12) for n in range(4)]),
        ("grown", ds.EqualTo(("keys",), "jpeg-3"), [incompressible(3)]),
        ("grown", ds.EqualTo(("tags",), "t"), [incompressible(n) for n in range(4)]),
        (
            "grown",
            ds.In(("uniqKey",), [f"7F00000100{n:022X}" for n in (1, 3)]),
            [incompressible(1), incompressible(3)],
        ),
    ],
)
def test_filters_of_messages_larger_as_stored(
    larger_as_stored: Path, store: str, given: ds.Filter, wanted: list[bytes], skipping: str
) -> None:
    root = larger_as_stored / store
    assert [row["body"] for row in rows(root, given, skipping=skipping)] == wanted
    if isinstance(given, ds.EqualTo) and given.attribute == ("keys",):
        assert [row["body"] for row in rows(root, keys=given.value, skipping=skipping)] == wanted


@pytest.mark.parametrize("mode", ["dropMalformed", "permissive"])
def test_the_number_of_rows_does_not_depend_on_the_columns(tmp_path: Path, mode: str) -> None:
    """A count and the rows of the same read are as many, also where a body is not compressed as its record says."""
    with open_store(tmp_path, SETTINGS) as store:
        for n in range(30):
            message = MessageExtBrokerInner("T", b"no zstd" if n % 5 == 2 else compress_body(b"%d" % n, ZSTD))
            message.sys_flag = ZSTD
            assert store.put_message(message).is_ok
    counts = {}
    for columns in (["body", "queueOffset"], ["queueOffset"]):
        log = mqlake.lake.scan(str(tmp_path), mode=mode, columns=columns)
        found = log.to_table()
        damaged = found["_corrupt"] if mode == "permissive" else pa.array([], pa.string())
        counts[columns[0]] = (found.num_rows, len(damaged) - damaged.null_count, log.count_rows())
    wanted = (24, 0, 24) if mode == "dropMalformed" else (30, 6, 30)
    assert set(counts.values()) == {wanted}
