"""Writes tests/golden/java-5.3.3 anew with the Java store: all cases, or the ones named.

    .venv/bin/python -m tests.interop.make_golden [case ...]

Only ever run by hand: goldens are evidence of what Java wrote, and every new run carries new timestamps.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tarfile
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden import CASES, DIRECTORY
from tests.interop.java_peer import (
    ROCKETMQ_VERSION,
    TICK,
    JavaStore,
    JavaStoreContents,
    Json,
    OpenJavaStore,
    batch,
    by_key,
    by_physical_offset,
    by_time,
    get,
    item,
    put,
)

CONFIG: Json = {
    "mappedFileSizeCommitLog": 16 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "mappedFileSizeConsumeQueueExt": 1024,
    "mapperFileSizeBatchConsumeQueue": 46 * 8,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 12 * 1024,
}
BORN = 1_700_000_000_000
V6_HOSTS = {"bornHost": ("2001:db8::17", 40001), "storeHost": ("fe80::1:2:3", 10911)}


@dataclass
class Case:
    """What is put, and what is asked besides a look-up of each put (the queue by its time, its record)."""

    ops: list[Json]
    queries: list[Json] = field(default_factory=list)
    config: Json = field(default_factory=dict)
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    halt: bool = False


def body(number: int, size: int = 40) -> bytes:
    """Bodies that compress, for the sake of the repository's size."""
    return (b"body %d; " % number * (size // 8 + 1))[:size]


def everyday(count: int) -> list[Json]:
    """Messages of three topics and five queues: tags, keys, ids, flags, with bursts in one millisecond."""
    ops: list[Json] = []
    for n in range(count):
        topic, queue_id = (("Orders", n % 3), ("Payments-2", 0), ("audit_log|x", n % 2))[n % 3]
        fields: Json = {"bornTimestamp": BORN + n, "flag": n * 7 - 3, "uniqKey": f"7F0000010000{n:020X}"}
        if n % 4:
            fields["tags"] = ("TagA", "TagB", "标签-三")[n % 4 - 1]
        if n % 5:
            fields["keys"] = " ".join(f"order-{n + k}" for k in range(n % 5))
        if n % 6 == 0:
            fields["properties"] = {"user": f"ü{n}", "empty after": "", "emoji": "🚀"}
        ops.append(put(topic, body(n, 20 + 13 * n % 200), queue_id=queue_id, **fields))
        if n % 5 == 4:
            ops.append(TICK)
    return ops


def odd_messages() -> list[Json]:
    """Every flag and kind that fits beside others."""
    packed = zlib.compress(body(1, 500), 5)
    return [
        put("Odd", b"", bornTimestamp=BORN),
        put("Odd", b"no property at all", bornTimestamp=BORN),
        put("Odd", packed, sysFlag=0x1, tags="zlib-legacy", bornTimestamp=BORN),
        put("Odd", packed, sysFlag=0x301, tags="zlib", bornTimestamp=BORN),
        put("Odd", b"said to be lz4", sysFlag=0x101, bornTimestamp=BORN),
        put("Odd", b"said to be zstd", sysFlag=0x201, bornTimestamp=BORN),
        put("Odd", b"multi", sysFlag=0x2, tags="a||b", bornTimestamp=BORN),
        put("Odd", b"retried", reconsumeTimes=16, flag=-(2**31), bornTimestamp=BORN),
        put(
            "%RETRY%group", b"again", reconsumeTimes=1, properties={"RETRY_TOPIC": "Odd"}, bornTimestamp=BORN
        ),
        put("%DLQ%group", b"dead", properties={"DLQ_ORIGIN_TOPIC": "Odd"}, bornTimestamp=BORN),
        put("Odd", b"not waited for", waitStoreMsgOk=False, bornTimestamp=BORN),
        put("Odd", bytes(range(256)), queue_id=2**16, keys="  two  spaces  ", bornTimestamp=2**62),
        put("Odd", b"long", properties={"p": "x" * 3000}, bornTimestamp=BORN),
        put("Odd", b"same hash", tags="Aa", keys="Aa", bornTimestamp=BORN),
        put("Odd", b"same hash", tags="BB", keys="BB", bornTimestamp=BORN),
    ]


def v2_topics() -> list[Json]:
    retry = "%RETRY%"
    return [
        put("a" * 127, b"the longest of version 1", tags="t", bornTimestamp=BORN),
        put(retry + "b" * 120, b"also 127 characters", keys="k", bornTimestamp=BORN),
        put(retry + "c" * 121, b"128 characters: version 2", tags="t", keys="k", bornTimestamp=BORN),
        put(retry + "d" * 240, b"247 characters", bornTimestamp=BORN, **V6_HOSTS),
        put(retry + "d" * 240, b"247 characters", bornTimestamp=BORN, tags="x", queue_id=3),
        batch(retry + "d" * 240, [item(body(n), tags="t") for n in range(3)], bornTimestamp=BORN),
    ]


def hosts() -> list[Json]:
    both = [
        {key: value for key, value in V6_HOSTS.items() if key in keys}
        for keys in ((), ("bornHost",), ("storeHost",), ("bornHost", "storeHost"))
    ]
    fields = {"tags": "t", "keys": "k", "bornTimestamp": BORN}
    return [
        *(put("Hosts", body(n), **fields, **given) for n, given in enumerate(both)),
        *(
            batch("Hosts", [item(body(n)), item(body(9))], bornTimestamp=BORN, **g)
            for n, g in enumerate(both)
        ),
    ]


def delays() -> list[Json]:
    fields = {"keys": "delayed", "bornTimestamp": BORN}
    return [
        *(
            put("Later", body(level), delayLevel=level, queue_id=level % 4, tags="t", **fields)
            for level in range(20)
        ),
        put("Later", b"beyond", delayLevel=1000, **fields),
        put("Later", b"committed", delayLevel=2, sysFlag=0x8, preparedTransactionOffset=99, **fields),
        put("Later", b"prepared: not delayed", delayLevel=2, sysFlag=0x4, **fields),
    ]


def transactions() -> list[Json]:
    half = {"TRAN_MSG": "true", "PGROUP": "producers", "REAL_TOPIC": "Paid", "REAL_QID": "1"}
    fields = {"tags": "t", "keys": "tx", "bornTimestamp": BORN}
    return [
        put("Paid", b"before", queue_id=1, **fields),
        put("RMQ_SYS_TRANS_HALF_TOPIC", b"half", uniqKey="TX1", properties=half, **fields),
        put(
            "Paid",
            b"committed",
            queue_id=1,
            sysFlag=0x8,
            preparedTransactionOffset=150,
            properties=half,
            **fields,
        ),
        put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,", tags="d", bornTimestamp=BORN),
        put("Paid", b"prepared", queue_id=1, sysFlag=0x4, uniqKey="TX2", **fields),
        put(
            "Paid",
            b"rolled back",
            queue_id=1,
            sysFlag=0xC,
            uniqKey="TX3",
            preparedTransactionOffset=7,
            **fields,
        ),
        put("Paid", b"after", queue_id=1, **fields),
    ]


def batches(topic: str) -> list[Json]:
    def items(count: int, size: int) -> list[Json]:
        return [item(body(n, size + n), tags=f"t{n % 3}", keys=f"b{n}", flag=n) for n in range(count)]

    header: Json = {"properties": {"CLUSTER": "cluster", "MSG_REGION": "region"}, "bornTimestamp": BORN}
    return [
        batch(topic, items(1, 100), **header),
        batch(topic, items(10, 0), queue_id=1, **header),
        batch(topic, [item(b"no property"), item(b"x", properties={"p": "1"})], bornTimestamp=BORN),
        batch(topic, items(32, 200), **header),
        # Does not fit into what is left of the first file, and is not split.
        batch(topic, items(32, 10), **header, **V6_HOSTS),
        put(topic, b"single between", bornTimestamp=BORN),
        batch(topic, items(2, 10), **header),
        # Too large: refused as a whole.
        batch(topic, items(32, 400), **header),
    ]


def inner_batches() -> list[Json]:
    ops = []
    for n in range(20):
        items = [item(body(k), tags="t", keys=f"i{n}-{k}") for k in range(n % 4 + 1)]
        ops.append(
            batch(
                "Inner", items, queue_id=n % 2, inner=True, uniqKey=f"INNER{n}", tags="t", bornTimestamp=BORN
            )
        )
        if n % 4 == 3:
            ops.append(TICK)
    return ops


def ext_messages() -> list[Json]:
    ops = []
    for n in range(120):
        properties = {"PEER_BIT_MAP": base64.b64encode(bytes([n] * (n % 9))).decode()} if n % 3 else {}
        tags = {"tags": f"tag{n}"} if n % 2 else {}
        ops.append(put("Ext", body(n), properties=properties, queue_id=n % 2, bornTimestamp=BORN, **tags))
    return ops


def rolling() -> list[Json]:
    """Files that end with 8 bytes left, with more left, before a batch; and queue files that roll."""
    header = 91 + len("R")
    exact = [put("R", body(n, 8000 - header), bornTimestamp=BORN) for n in range(2)]
    last = put("R", body(3, 16384 - 2 * 8000 - 8 - header), bornTimestamp=BORN)
    one_too_long = [
        *(put("R", body(n, 8000 - header), bornTimestamp=BORN) for n in range(2)),
        put("R", body(3, 16384 - 2 * 8000 - 7 - header), bornTimestamp=BORN),
    ]
    many = [put("R", b"%d" % n, tags=f"t{n}", bornTimestamp=BORN) for n in range(230)]
    wide = batch("R", [item(body(n, 700)) for n in range(10)], bornTimestamp=BORN)
    return [*exact, last, *one_too_long, *many, wide, wide, wide]


def index_rolling() -> list[Json]:
    ops: list[Json] = []
    for n in range(70):
        keys = ("Aa", "BB", "AaAa BBBB AaBB", f"k{n}", f"k{n} k{n % 7}")[n % 5]
        ops.append(put("Indexed", body(n), keys=keys, uniqKey=f"U{n}", bornTimestamp=BORN))
        # A file of the index is named by the millisecond of its creation.
        ops.append(TICK)
    return ops


def cases() -> dict[str, Case]:
    keys = [by_key("Orders", f"order-{n}") for n in range(0, 60, 7)] + [
        by_key("Odd", k) for k in ("Aa", "BB", "x")
    ]
    delayed = [by_key("SCHEDULE_TOPIC_XXXX", "delayed"), by_key("Later", "delayed")]
    index = [
        by_key("Indexed", key) for key in ("Aa", "BB", "AaAa", "BBBB", "AaBB", "k3", "U0", "U69", "none")
    ]
    index += [by_key("Indexed", "Aa", max_count=3)]
    subscriptions = [
        get("Orders", 0, 0, subscription=text) for text in ("*", "TagA", "TagA || 标签-三", "none")
    ]
    return {
        "clean": Case([*everyday(60), *odd_messages()], keys + subscriptions),
        "killed": Case([*odd_messages(), *everyday(150)], keys, halt=True),
        "v2topic": Case(v2_topics(), [by_key("%RETRY%" + "c" * 121, "k")]),
        "ipv6": Case(hosts(), [by_key("Hosts", "k")]),
        "delay": Case(delays(), delayed),
        "transaction": Case(transactions(), [by_key("Paid", key) for key in ("tx", "TX2", "TX3")]),
        "batch": Case(batches("Classic"), [by_key("Classic", "b1")]),
        "innerbatch": Case(
            inner_batches(), [by_key("Inner", "INNER3")], topics={"Inner": {"queue.type": "BatchCQ"}}
        ),
        "propcrc": Case(
            [
                *odd_messages(),
                put("Odd", b"replaced", properties={"__CRC32#": "1234567890", "p": "1"}, bornTimestamp=BORN),
                *v2_topics(),
                *hosts(),
                *batches("Classic"),
                *inner_batches()[:3],
            ],
            config={"enabledAppendPropCRC": True},
            topics={"Inner": {"queue.type": "BatchCQ"}},
        ),
        "cqext": Case(
            ext_messages(), [get("Ext", 0, 0, subscription="tag3")], config={"enableConsumeQueueExt": True}
        ),
        "rolled": Case(rolling()),
        "index-rolled": Case(index_rolling(), index, config={"maxHashSlotNum": 10, "maxIndexNum": 30}),
    }


def look_ups(results: list[Json], contents: JavaStoreContents) -> list[Json]:
    """Every queue by time, around every store time in it; the record at every put and one byte further."""
    queries = []
    for (topic, queue_id), queue in sorted(contents.queues.items()):
        times = {message["storeTimestamp"] for message in queue.messages}
        for time in sorted({t + d for t in times for d in (-1, 0, 1)}):
            queries += [by_time(topic, queue_id, time, boundary) for boundary in ("LOWER", "UPPER")]
        last = queue.max_offset
        queries += [get(topic, queue_id, offset, max_count=2) for offset in (-1, 0, last - 1, last, last + 1)]
    for result in results[-3:]:
        if "wroteOffset" in result:
            queries += [by_physical_offset(result["wroteOffset"] + further) for further in (0, 1)]
    return queries


def plain(value: Any) -> Any:
    """For JSON: bytes as base64, hosts as lists."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def write_store(case: Case, store: OpenJavaStore) -> tuple[list[Json], list[Json], list[Json]]:
    results = store.put(case.ops)
    queries = [*case.queries, *look_ups(results, store.contents())]
    return results, queries, store.query(queries)


def make(name: str, case: Case, java: JavaStore, directory: Path) -> int:
    """Writes one case; the size of its files."""
    root = directory / name
    config = {**CONFIG, **case.config}
    if case.halt:
        with java.new_peer() as peer:
            store = OpenJavaStore(peer, root, config, topics=case.topics)
            results, queries, answers = write_store(case, store)
            peer.halt()
    else:
        with java.open(root, config, topics=case.topics) as store:
            results, queries, answers = write_store(case, store)

    golden = DIRECTORY / name
    shutil.rmtree(golden, ignore_errors=True)
    golden.mkdir(parents=True)
    archive = golden / "store.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, ".", filter=anonymous)

    opened = java.read(root, config, queries, topics=case.topics)
    (golden / "expected.json").write_text(
        json.dumps(
            plain(expected(case, config, results, list(zip(queries, answers, strict=True)), opened)),
            ensure_ascii=False,
            indent=0,
            separators=(",", ":"),
        )
        + "\n"
    )
    return sum(path.stat().st_size for path in golden.iterdir())


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    return info


def expected(
    case: Case, config: Json, results: list[Json], asked: list[tuple[Json, Json]], opened: JavaStoreContents
) -> Json:
    record_at = {record["physicalOffset"]: record for record in opened.records}
    queues = []
    for queue in opened.queues.values():
        # A message is its record: the physical offset says it all.
        assert all(message == record_at[message["physicalOffset"]] for message in queue.messages)
        offsets = [message["physicalOffset"] for message in queue.messages]
        queues.append({**vars(queue), "messages": offsets})
    queries = []
    for (query, answer), after in zip(asked, opened.answers, strict=True):
        answer, after = short(answer), short(after)
        queries.append(
            {"query": query, "answer": answer, **({"afterRecovery": after} if after != answer else {})}
        )
    info = {key: value for key, value in opened.info.items() if key != "loadSeconds"}
    return {
        "config": config,
        "topics": case.topics,
        "puts": [
            {"op": op, "result": result}
            for op, result in zip(case.ops, results, strict=True)
            if op["op"] != TICK["op"]
        ],
        "info": info,
        "records": opened.records,
        "queues": queues,
        "queries": queries,
    }


def short(answer: Json) -> Json:
    """A record found is told by where it is."""
    return {"physicalOffset": answer["message"]["physicalOffset"]} if "message" in answer else answer


def main(names: list[str]) -> None:
    known = cases()
    assert tuple(known) == CASES
    with tempfile.TemporaryDirectory() as directory, JavaStore(Path(directory) / "java") as java:
        hello = java.peer.request("hello")
        for name in names or CASES:
            size = make(name, known[name], java, Path(directory))
            print(f"{name:14} {size:9,} bytes")
    (DIRECTORY / "README.md").write_text(
        f"""Written by the Java store {ROCKETMQ_VERSION} (org.apache.rocketmq:rocketmq-store,
{hello["rocketmq"]}, Java {hello["java"]}) with

    .venv/bin/python -m tests.interop.make_golden

which writes all cases anew; named cases only: add their names. `tests/golden/__init__.py` says what a case
holds, `tests/interop/make_golden.py` what each case is about.
"""
    )


if __name__ == "__main__":
    main(sys.argv[1:])
