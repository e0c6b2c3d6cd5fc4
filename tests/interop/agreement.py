"""What it means that two stores agree, and where mqlake answers otherwise than Java on purpose.

Everything is equal, except:

- by key: Java's index knows hashes only and its answer may hold records of other keys, doubles, and therefore
  fewer of the right ones. mqlake's holds the newest records that have the key, each once.
- index positions in an answer without a record: 0 in Java, how far the index has come in mqlake.
- a batch queue by time: LOWER is the first batch not older (the last one when all are), UPPER the last not newer
  (the first one when all are). Java's UPPER skips to a later batch or to 0 when no batch is of that very
  millisecond, its LOWER skips to the last batch of a file that ends with the time asked for.
- the end of a batch queue in the log: Java keeps where its last record begins, mqlake where it ends.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from mqlake.store.store_view import StoreView
from tests.golden import Golden
from tests.interop.java_peer import JavaQueue, JavaStoreContents, Json, by_key
from tests.interop.make_golden import look_ups, short
from tests.interop.mqlake_peer import answer, contents


def same_contents(view: StoreView, java: JavaStoreContents) -> None:
    """Every record with all its fields; every queue with its limits, units and messages."""
    mine = contents(view)
    assert (mine.min_physical_offset, mine.max_physical_offset) == (
        java.min_physical_offset,
        java.max_physical_offset,
    )
    for found, expected in zip(mine.records, java.records, strict=True):
        assert found == expected
    assert list(mine.queues) == list(java.queues)
    for name, queue in mine.queues.items():
        if queue.type == "BatchCQ":
            queue.max_physic_offset -= queue.units[-1]["size"]
        assert queue == java.queues[name]


def same_answers(
    view: StoreView,
    java: JavaStoreContents,
    asked: Iterable[tuple[Json, Json]],
    *,
    full_index: bool = True,
    index_from: int = 0,
) -> None:
    """mqlake's answers beside Java's. With `full_index` Java has to find by key what is there. `index_from`: the
    physical offset before which Java's own recovery left the index without entries."""
    for query, theirs in asked:
        mine, theirs = answer(view, query), short(theirs)
        if query["kind"] == "key":
            having = [r["physicalOffset"] for r in java.records if _has_key(r, query)]
            expected = [offset for offset in having if offset >= index_from][-query["max"] :]
            assert mine["physicalOffsets"] == expected, query
            if not theirs["physicalOffsets"]:
                assert not expected or not full_index, query
                continue
            assert mine["indexLastUpdatePhyoffset"] == theirs["indexLastUpdatePhyoffset"], query
            assert mine["indexLastUpdateTimestamp"] == theirs["indexLastUpdateTimestamp"], query
            if full_index and len(theirs["physicalOffsets"]) < query["max"]:
                assert set(expected) <= set(theirs["physicalOffsets"]), query
        elif query["kind"] == "time" and java.queues[query["topic"], query["queueId"]].type == "BatchCQ":
            queue = java.queues[query["topic"], query["queueId"]]
            assert mine["offset"] == _batch_by_time(queue, query), query
        else:
            assert mine == theirs, query


def _has_key(record: Json, query: Json) -> bool:
    properties = record["properties"]
    keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
    return (
        record["topic"] == query["topic"]
        and query["key"] in keys
        and query["begin"] <= record["storeTimestamp"] <= query["end"]
        # What was rolled back is not in the index.
        and record["sysFlag"] & 0xC != 0xC
    )


def _batch_by_time(queue: JavaQueue, query: Json) -> int:
    times = [message["storeTimestamp"] for message in queue.messages]
    if query["boundary"] == "LOWER":
        chosen = sum(time < query["timestamp"] for time in times)
    else:
        chosen = sum(time <= query["timestamp"] for time in times) - 1
    return int(queue.units[max(0, min(chosen, len(times) - 1))]["queueOffset"])


def questions(found: JavaStoreContents) -> list[Json]:
    """Of a store with these contents: each queue by time and by offset, each key, records in the log."""
    keys = {
        (record["topic"], key)
        for record in found.records
        for key in [record["properties"].get("UNIQ_KEY"), *record["properties"].get("KEYS", "").split(" ")]
        if key
    }
    places = [{"wroteOffset": record["physicalOffset"]} for record in found.records[-3:]]
    return [*look_ups(places, found), *(by_key(topic, key) for topic, key in sorted(keys))]


def contents_of(golden: Golden) -> JavaStoreContents:
    """What Java read from a golden."""
    expected = golden.expected
    records = [
        {
            **record,
            "body": base64.b64decode(record["body"]),
            "bornHost": tuple(record["bornHost"]),
            "storeHost": tuple(record["storeHost"]),
        }
        for record in expected["records"]
    ]
    record_at = {record["physicalOffset"]: record for record in records}
    queues = {}
    for queue in expected["queues"]:
        messages = [record_at[offset] for offset in queue["messages"]]
        queues[queue["topic"], queue["queue_id"]] = JavaQueue(**{**queue, "messages": messages})
    return JavaStoreContents(expected["info"], records, queues, [])


# --- what was put


def as_asked(ops: list[Json], results: list[Json], records: list[Json]) -> None:
    """The log holds what was acknowledged, in order and with the fields given, and nothing else."""
    at = 0
    for op, result in zip(ops, results, strict=True):
        if result["status"] != "PUT_OK":
            assert result["status"] in ("TICK", "MESSAGE_ILLEGAL", "EXCEPTION"), result
            continue
        inner = op.get("inner", False)
        parts = op["messages"] if op["op"] == "batch" and not inner else [op]
        assert result["msgNum"] == len(op.get("messages", [op]))
        some = records[at : at + len(parts)]
        at += len(parts)
        assert result["wroteOffset"] == some[0]["physicalOffset"]
        assert result["wroteBytes"] == sum(record["size"] for record in some)
        assert result["msgId"] == ",".join(record["msgId"] for record in some)
        for number, (part, record) in enumerate(zip(parts, some, strict=True)):
            _record_as_asked(op, part, record)
            assert record["storeTimestamp"] == result["storeTimestamp"]
            undecided = record["sysFlag"] & 0x4
            assert record["queueOffset"] == (0 if undecided else result["logicsOffset"] + number)
            assert int(record["properties"].get("INNER_BASE", -1)) == (
                result["logicsOffset"] if inner else -1
            )
    assert at == len(records)


def _record_as_asked(op: Json, part: Json, record: Json) -> None:
    if not op.get("inner"):
        assert base64.b64encode(record["body"]).decode() == part["body"]
    for field in ("bornTimestamp", "reconsumeTimes", "preparedTransactionOffset"):
        assert record[field] == op.get(field, record[field] if field == "bornTimestamp" else 0)
    assert record["flag"] == part.get("flag", 0)
    born, store = (
        tuple(op.get(f"{w}Host", ("127.0.0.1", p))) for w, p in (("born", 50000), ("store", 10911))
    )
    assert (record["bornHost"], record["storeHost"]) == (born, store)
    flags = 0x10 * (":" in born[0]) | 0x20 * (":" in store[0]) | 0xC0 * bool(op.get("inner"))
    assert record["sysFlag"] == op.get("sysFlag", 0) | flags
    properties = {
        key: value
        for given in (part, op)
        for key, value in given.get("properties", {}).items()
        if value and key != "__CRC32#"
    }
    for field, key in (("tags", "TAGS"), ("keys", "KEYS"), ("uniqKey", "UNIQ_KEY")):
        if field in part:
            properties[key] = part[field]
    delayed = op.get("delayLevel", 0) > 0 and not op.get("sysFlag", 0) & 0x4
    if delayed:
        level = min(op["delayLevel"], 18)
        properties |= {"REAL_TOPIC": op["topic"], "REAL_QID": str(op["queueId"]), "DELAY": str(level)}
        assert (record["topic"], record["queueId"]) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    else:
        assert (record["topic"], record["queueId"]) == (op["topic"], op["queueId"])
    assert {key: record["properties"].get(key) for key in properties} == properties


# --- files


def files(root: Path, *directories: str) -> dict[str, bytes]:
    """Path below the root → content, of all files or those in some of the store's directories."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and (not directories or name.parts[0] in directories):
            found[str(name)] = path.read_bytes()
    return found


def log_files(root: Path) -> dict[str, bytes]:
    """The commit log's files; those that were only made ahead hold nothing and are left out."""
    return {name: data for name, data in files(root, "commitlog").items() if any(data)}


def queue_files(root: Path) -> dict[str, bytes]:
    return files(root, "consumequeue", "consumequeue_ext", "batchconsumequeue")


def index_files(root: Path) -> list[bytes]:
    """In their order: the names are times of making and differ."""
    return list(files(root, "index").values())
