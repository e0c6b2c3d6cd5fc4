"""Logs made of given records, and the heads that an independent decoder finds in a store."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mqlake.formats.record import encode_blank, encode_record
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.message import crc32, host_bytes
from tests.spark.stores import decoded, time_of

Row = dict[str, Any]
HOST = host_bytes(("127.0.0.1", 10911))
NOW = 1_700_000_000_000


def heads_of(root: Path) -> list[Row]:
    """The heads of all records of a sound store, each decoded by itself."""
    return [
        {
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "physicalOffset": message.physical_offset,
            "size": message.store_size,
            "storeTimestamp": time_of(message.store_timestamp),
            "bornTimestamp": time_of(message.born_timestamp),
            "sysFlag": message.sys_flag,
            "reconsumeTimes": message.reconsume_times,
            "tags": message.properties.get("TAGS"),
            "keys": message.properties.get("KEYS"),
            "uniqKey": message.properties.get("UNIQ_KEY"),
            "bodySize": len(message.body),
        }
        for message in decoded(root)
    ]


def write_log(root: Path, records: Iterable[Row], file_size: int, first: int = 0) -> Path:
    """A store of nothing but a log with these records; what a record does not say is usual."""
    (root / "commitlog").mkdir(parents=True)
    at, data = first, bytearray()
    for given in records:
        record = _encoded(given, at)
        room = file_size - len(data)
        if len(record) + 8 > room:
            data += encode_blank(room)
            _save(root, at + room - file_size, data, file_size)
            at, data = at + room, bytearray()
            record = _encoded(given, at)
        data += record
        at += len(record)
    if data:
        _save(root, at - len(data), data, file_size)
    return root


def _save(root: Path, base: int, data: bytes, file_size: int) -> None:
    (root / "commitlog" / f"{base:020}").write_bytes(bytes(data).ljust(file_size, b"\0"))


def _encoded(given: Row, physical_offset: int) -> bytes:
    body = given.get("body", b"body")
    return encode_record(
        body,
        crc32(body),
        given.get("queue_id", 0),
        0,
        given.get("queue_offset", 0),
        physical_offset,
        given.get("sys_flag", 0),
        given.get("born", NOW),
        HOST,
        given.get("stored", NOW),
        HOST,
        given.get("reconsume_times", 0),
        0,
        given.get("topic", b"T"),
        given.get("properties", b""),
    )


def random_records(seed: int, count: int) -> list[Row]:
    """Of few and many topics, with clocks that jump, texts that are no UTF-8, and properties of all shapes."""
    draw = random.Random(seed)
    texts = [b"", b"plain", b"\xff\xfe", "标签".encode(), b"\xe6\xa0", b"a\0b", b"x" * 300]
    found, clock = [], NOW
    for _ in range(count):
        clock += draw.choice((0, 1, 1000, -5_000_000, 5_000_000, 10**12 if draw.random() < 0.1 else 0))
        pairs = []
        for name in (b"KEYS", b"TAGS", b"UNIQ_KEY", b"other", b"KEYS", b"\xff"):
            if draw.random() < 0.6:
                pairs.append(name + b"\1" + draw.choice(texts))
        if draw.random() < 0.2:
            pairs.append(draw.choice((b"torn", b"\1", b"no\1", b"")))
        found.append(
            {
                "topic": draw.choice(
                    (b"T", b"Orders", b"\xfftopic", b"%RETRY%g", b"t%d" % draw.randrange(50))
                ),
                "queue_id": draw.choice((0, 1, 7, 2**31 - 1)),
                "queue_offset": draw.choice((0, 5, 2**40)),
                "sys_flag": draw.choice((0, 4, 8, 12)),
                "born": draw.choice((0, NOW, -1, 2**63 - 1, clock)),
                "stored": clock,
                "reconsume_times": draw.choice((0, 3)),
                "body": draw.randbytes(draw.choice((0, 1, 50, 900))),
                "properties": b"\2".join(pairs) + (b"\2" if draw.random() < 0.5 else b""),
            }
        )
    return found


def write_all(root: Path) -> list[Path]:
    """Writes the heads of a store; its files of heads, oldest first."""
    report = HeadsWriter(str(root)).run()
    assert not report.damaged
    return sorted((root / "heads").iterdir())
