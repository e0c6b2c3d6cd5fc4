"""mqlake as the peer's peer: it does what the Java peer is told, and tells what it reads as the Java peer does.

    with open_store(root, config) as store:
        results = put(store, [java_peer.put("T", b"body")])
        contents(store).queues["T", 0].messages == java.read(root, config).queues["T", 0].messages

Run as a program it opens stores, puts into them, and waits to be killed: see `Writer`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mqlake.errors import FormatError, OffsetOutOfRangeError
from mqlake.formats.batch import encode_messages
from mqlake.formats.consume_queue import UNIT
from mqlake.formats.record import BLANK_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, decode_record
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    Message,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
    java_hash,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.filter import TagFilter
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import Queue
from mqlake.store.results import BoundaryType, PutMessageResult
from mqlake.store.store_view import StoreView
from tests.interop.java_peer import Config, JavaQueue, JavaStoreContents, Json, seeded_body
from tests.waiting import PATIENCE_S

PROJECT = Path(__file__).parents[2]
Topics = Mapping[str, Mapping[str, str]]

BORN_HOST = ("127.0.0.1", 50000)
STORE_HOST = ("127.0.0.1", 10911)


# --- opening


def open_store(
    root: Path, config: Config, *, topics: Topics | None = None, clock_ms: Callable[[], int] | None = None
) -> DefaultMessageStore:
    """Recovers and starts; to be used in a `with`, or to be left as it is by a crash."""
    settings = dataclasses.replace(MessageStoreConfig.from_mapping(config), store_path_root_dir=str(root))
    attributes = topics or {}
    store = DefaultMessageStore(
        settings,
        is_batch_topic=lambda topic: attributes.get(topic, {}).get("queue.type") == "BatchCQ",
        **({} if clock_ms is None else {"clock_ms": clock_ms}),
    )
    store.load()
    store.start()
    return store


# --- putting


def put(store: DefaultMessageStore, ops: Iterable[Json]) -> list[Json]:
    """Does the operations; a result for each, as the Java peer gives them."""
    return [_put(store, op) for op in ops]


def _put(store: DefaultMessageStore, op: Json) -> Json:
    match op["op"]:
        case "put":
            return _result(store.put_message(message_of(op)))
        case "batch" if op["inner"]:
            return _result(store.put_message(inner_batch_of(op)))
        case "batch":
            return _result(store.put_messages(batch_of(op)))
        case "tick":
            store.wait_until_dispatched(PATIENCE_S)
            begin = store.clock_ms()
            while store.clock_ms() == begin:
                time.sleep(0.0001)
            return {"status": "TICK"}
    raise AssertionError(f"unknown operation {op}")


def _result(result: PutMessageResult) -> Json:
    appended = result.append_result
    if appended is None or not appended.is_ok:
        return {"status": result.status.name}
    return {
        "status": result.status.name,
        "appendStatus": appended.status.name,
        "wroteOffset": appended.wrote_offset,
        "wroteBytes": appended.wrote_bytes,
        "logicsOffset": appended.logics_offset,
        "msgNum": appended.msg_num,
        "msgId": appended.msg_id,
        "storeTimestamp": appended.store_timestamp,
    }


def message_of(op: Json) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(op["topic"], _body_of(op), **_header(op), properties=_properties(op))


def batch_of(op: Json, *more: str) -> MessageExtBatch:
    items = [
        Message(op["topic"], _body_of(item), flag=item.get("flag", 0), properties=_properties(item))
        for item in op["messages"]
    ]
    return MessageExtBatch(
        op["topic"], encode_messages(items), **_header(op), properties=_properties(op, *more)
    )


def inner_batch_of(op: Json) -> MessageExtBrokerInner:
    batch = batch_of(op, PROPERTY_INNER_NUM, PROPERTY_INNER_BASE)
    batch.sys_flag |= MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
    batch.properties[PROPERTY_INNER_NUM] = str(len(op["messages"]))
    return batch


def _body_of(op: Json) -> bytes:
    return base64.b64decode(op["body"]) if "body" in op else seeded_body(op["seed"], op["size"])


def _header(op: Json) -> dict[str, Any]:
    return {
        "queue_id": op.get("queueId", 0),
        "flag": op.get("flag", 0),
        "sys_flag": op.get("sysFlag", 0),
        "born_timestamp": op.get("bornTimestamp", 1_700_000_000_000),
        "born_host": tuple(op.get("bornHost", BORN_HOST)),
        "store_host": tuple(op.get("storeHost", STORE_HOST)),
        "reconsume_times": op.get("reconsumeTimes", 0),
        "prepared_transaction_offset": op.get("preparedTransactionOffset", 0),
    }


def _properties(op: Json, *more: str) -> dict[str, str]:
    """In Java's order, with a place for those that the store itself will fill in."""
    properties = dict(op.get("properties", {}))
    for name, field in (
        (PROPERTY_TAGS, "tags"),
        (PROPERTY_KEYS, "keys"),
        (PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "uniqKey"),
        (PROPERTY_DELAY_TIME_LEVEL, "delayLevel"),
        (PROPERTY_WAIT_STORE_MSG_OK, "waitStoreMsgOk"),
    ):
        if field in op:
            value = op[field]
            properties[name] = str(value).lower() if isinstance(value, bool) else str(value)
    undecided = op.get("sysFlag", 0) & MessageSysFlag.TRANSACTION_PREPARED_TYPE
    if op.get("delayLevel", 0) > 0 and not undecided:
        more = (*more, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID)
    return java_order(properties | dict.fromkeys(more, ""))


def java_order(properties: dict[str, str]) -> dict[str, str]:
    """The order in which a java.util.HashMap filled in the given one is walked: by bucket, then by age.

    It carries no meaning, but only with it can two stores have the same bytes."""
    buckets = 16
    while len(properties) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        code = java_hash(name) & 0xFFFFFFFF
        return (code ^ code >> 16) & (buckets - 1)

    return {name: properties[name] for name in sorted(properties, key=bucket)}


# --- reading


def contents(view: StoreView) -> JavaStoreContents:
    """Everything in the store, as the Java peer reads it."""
    found = JavaStoreContents(
        {"minPhysicalOffset": view.min_phy_offset, "maxPhysicalOffset": view.max_phy_offset}, [], {}, []
    )
    found.records = [record_line(record) for record in records(view)]
    for queue in sorted(view.consume_queues, key=lambda queue: (queue.topic, queue.queue_id)):
        found.queues[queue.topic, queue.queue_id] = _queue(view, queue)
    return found


def records(view: StoreView, at: int | None = None) -> Iterator[memoryview]:
    """The records of the log (or from the one at an offset on), each beginning where the one before it ended."""
    end = view.max_phy_offset
    if at is None:
        at = view.min_phy_offset
    while at < end:
        head = view.commit_log_files.select(at, 8)
        assert head is not None, f"no data at physical offset {at} of {end}"
        size, magic = (int.from_bytes(head[i : i + 4], "big", signed=True) for i in (0, 4))
        if magic != BLANK_MAGIC_CODE:
            record = view.commit_log_files.select(at, size)
            assert record is not None, f"no record of {size} bytes at physical offset {at} of {end}"
            yield record
        at += size
    assert at == end


def record_line(record: memoryview) -> Json:
    message = decode_record(record)
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.store_size,
        "msgId": message.msg_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCrc": message.body_crc,
        "body": bytes(message.body),
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        "propertiesString": _properties_string(record),
        "magicCode": message.magic,
    }


def _properties_string(record: memoryview) -> str:
    sys_flag = int.from_bytes(record[36:40], "big")
    at = 84 + 12 * bool(sys_flag & 0x10) + 12 * bool(sys_flag & 0x20)
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    wide = 2 if int.from_bytes(record[4:8], "big", signed=True) == MESSAGE_MAGIC_CODE_V2 else 1
    at += wide + int.from_bytes(record[at : at + wide], "big")
    length = int.from_bytes(record[at : at + 2], "big")
    assert at + 2 + length == len(record)
    return str(record[at + 2 :], "utf-8")


def _queue(view: StoreView, queue: Queue) -> JavaQueue:
    found = JavaQueue(
        queue.topic,
        queue.queue_id,
        queue.min_offset_in_queue,
        queue.max_offset_in_queue,
        queue.max_physic_offset,
        "BatchCQ" if isinstance(queue, BatchConsumeQueue) else "SimpleCQ",
    )
    found.units = list(_units(queue))
    at = found.min_offset
    while at < found.max_offset:
        got = view.get_message("peer", queue.topic, queue.queue_id, at, 32)
        found.messages += [record_line(record) for record in got.records()]
        if got.next_begin_offset <= at:
            break
        at = got.next_begin_offset
    return found


def _kept(queue: ConsumeQueue, at: int) -> int:
    """What a unit has for its tags code: the address of its extension."""
    return int(UNIT.unpack(queue.get_range_bytes(at, 1))[2])


def _units(queue: Queue) -> Iterator[Json]:
    at, end = queue.min_offset_in_queue, queue.max_offset_in_queue
    while at < end:
        units = queue.get_range(at, 1000)
        assert len(units), f"{queue}: nothing at {at} of {end}"
        for unit in units:
            line = {
                "queueOffset": at,
                "physicalOffset": int(unit["offset"]),
                "size": int(unit["size"]),
                "tagsCode": int(unit["tags_code"]),
                "batchNum": 1,
            }
            if isinstance(queue, BatchConsumeQueue):
                line |= {"queueOffset": int(unit["msg_base_offset"]), "batchNum": int(unit["batch_size"])}
            elif queue.ext is not None and (more := queue.ext.get(_kept(queue, at))) is not None:
                line |= {
                    "extStoreTime": more.store_time,
                    "extBitMap": base64.b64encode(more.filter_bit_map).decode(),
                }
            yield line
            at = line["queueOffset"] + line["batchNum"]


def answer(view: StoreView, query: Json) -> Json:
    """The answer to a query of the Java peer's; a record found is told by where it is."""
    match query["kind"]:
        case "key":
            found = view.query_message(
                query["topic"], query["key"], query["max"], query["begin"], query["end"]
            )
            return {
                "physicalOffsets": [_physical_offset(record) for record in found.buffers],
                "indexLastUpdateTimestamp": found.index_last_update_timestamp,
                "indexLastUpdatePhyoffset": found.index_last_update_phyoffset,
            }
        case "time":
            boundary = BoundaryType[query["boundary"]]
            at = view.get_offset_in_queue_by_time(
                query["topic"], query["queueId"], query["timestamp"], boundary
            )
            return {"offset": at}
        case "get":
            tags = TagFilter(query["subscription"]) if "subscription" in query else None
            got = view.get_message(
                "peer", query["topic"], query["queueId"], query["offset"], query["max"], tags
            )
            return {
                "status": got.status.name,
                "nextBeginOffset": got.next_begin_offset,
                "minOffset": got.min_offset,
                "maxOffset": got.max_offset,
                "physicalOffsets": [_physical_offset(record) for record in got.records()],
            }
        case "physical":
            try:
                return {"physicalOffset": view.look_message_by_offset(query["offset"]).physical_offset}
            except (OffsetOutOfRangeError, FormatError):
                return {}
    raise AssertionError(f"unknown query {query}")


def _physical_offset(record: memoryview) -> int:
    return int.from_bytes(record[28:36], "big", signed=True)


# --- another process


class Writer:
    """A process that has mqlake stores open, until it is killed.

    Requests are lines of JSON: {"open": root, "config", "topics"} answers {}, {"put": root, "ops"} a line for
    each operation when it is done.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.mqlake_peer"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._roots: set[Path] = set()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _send(self, request: Json) -> IO[bytes]:
        pipe_in, pipe_out = self._pipes()
        pipe_in.write(json.dumps(request).encode() + b"\n")
        pipe_in.flush()
        return pipe_out

    def open(self, root: Path, config: Config, topics: Topics | None = None) -> None:
        request = {"open": str(root), "config": dict(config), "topics": dict(topics or {})}
        assert json.loads(self._send(request).readline()) == {}

    def put(self, root: Path, ops: list[Json]) -> list[Json]:
        """Returns when all are done and dispatched."""
        answers = self._send({"put": str(root), "ops": ops})
        return [json.loads(answers.readline()) for _ in ops]

    def put_until_killed(self, root: Path, op: Json) -> Iterator[Json]:
        """Puts the same again and again, `seed` and key counted up; what it answers before `kill`."""
        for line in self._send({"forever": str(root), "op": op}):
            if line.endswith(b"\n"):
                yield json.loads(line)

    def end(self) -> None:
        """SIGKILL; what it has answered can still be read."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL, and nothing more is of interest."""
        self.end()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def numbered(op: Json, n: int) -> Json:
    """The n-th of a series."""
    return {**op, "seed": n, "keys": f"k{n}"}


def _serve() -> None:
    def tell(line: Json) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    stores: dict[str, DefaultMessageStore] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            root = request["open"]
            stores[root] = open_store(Path(root), request["config"], topics=request["topics"])
            tell({})
        elif "put" in request:
            store = stores[request["put"]]
            results = put(store, request["ops"])
            store.wait_until_dispatched(PATIENCE_S)
            for result in results:
                tell(result)
        else:
            store, n = stores[request["forever"]], 0
            while True:
                tell(_put(store, numbered(request["op"], n)))
                n += 1


if __name__ == "__main__":
    _serve()
