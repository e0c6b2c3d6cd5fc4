"""The peer itself: what the Java store is told to write is what it reads back, also after a crash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop import java_peer
from tests.interop.java_peer import (
    SMALL_FILES,
    TEST_JVM,
    TICK,
    JavaBench,
    JavaPeerError,
    JavaStore,
    batch,
    by_key,
    by_physical_offset,
    by_time,
    class_options,
    get,
    item,
    put,
    seeded_body,
    warm_up,
)
from tests.parts import PartMissingError

BROKER = "org.apache.rocketmq.broker.BrokerStartup"
EVERY_FIELD = {
    "tags": "标签",
    "keys": "k1 ключ",
    "uniqKey": "UNIQ-1",
    "properties": {"colour": "grün", "emoji": "🚀"},
    "flag": -7,
    "sysFlag": 0x301,
    "bornTimestamp": 1_700_000_000_123,
    "bornHost": ("2001:db8::1", 40000),
    "storeHost": ("10.1.2.3", 10911),
    "reconsumeTimes": 3,
    "preparedTransactionOffset": 77,
}


def test_round_trip_of_every_field(java_store: JavaStore, tmp_path: Path) -> None:
    ops = [
        put("T-1", b"\x00body\xff", queue_id=2, **EVERY_FIELD),
        put("T-1", seed="s", size=3000, queue_id=2),
    ]
    results = java_store.write(tmp_path, SMALL_FILES, ops)
    assert [result["status"] for result in results] == ["PUT_OK", "PUT_OK"]
    assert not (tmp_path / "abort").exists()

    contents = java_store.read(tmp_path, SMALL_FILES)
    assert contents.info["lastExitOk"]
    assert contents.max_physical_offset == sum(result["wroteBytes"] for result in results)
    queue = contents.queues["T-1", 2]
    assert (queue.min_offset, queue.max_offset) == (0, 2)
    assert queue.messages == contents.records
    first, second = contents.records
    given = {
        key: value
        for key, value in EVERY_FIELD.items()
        if key not in ("tags", "keys", "uniqKey", "properties")
    }
    # The store adds the flag of an IPv6 born host.
    assert {key: first[key] for key in given} == {**given, "sysFlag": 0x311}
    assert first["body"] == b"\x00body\xff"
    assert first["properties"] == {
        "TAGS": "标签",
        "KEYS": "k1 ключ",
        "UNIQ_KEY": "UNIQ-1",
        "colour": "grün",
        "emoji": "🚀",
    }
    assert first["msgId"] == results[0]["msgId"]
    assert second["body"] == seeded_body("s", 3000)
    assert (second["physicalOffset"], second["size"]) == (results[1]["wroteOffset"], results[1]["wroteBytes"])


def test_halted_store_is_recovered_by_java(java_store: JavaStore, tmp_path: Path) -> None:
    ops = [put("T", seed=n, size=2000, keys=f"k{n}") for n in range(70)]
    results = java_store.write(tmp_path, SMALL_FILES, ops, halt=True)
    assert (tmp_path / "abort").exists()
    assert len(list((tmp_path / "commitlog").iterdir())) >= 3

    contents = java_store.read(tmp_path, SMALL_FILES)
    assert not contents.info["lastExitOk"]
    assert [record["physicalOffset"] for record in contents.records] == [
        put["wroteOffset"] for put in results
    ]
    assert [message["body"] for message in contents.queues["T", 0].messages] == [
        seeded_body(n, 2000) for n in range(70)
    ]
    assert not (tmp_path / "abort").exists()


def test_batches(java_store: JavaStore, tmp_path: Path) -> None:
    topics = {"Inner": {"queue.type": "BatchCQ"}}
    items = [item(b"%d" % n, tags="t", flag=n) for n in range(5)]
    ops = [
        batch("Classic", items, properties={"CLUSTER": "c"}),
        batch("Inner", items, inner=True, uniqKey="U"),
        batch("Inner", items[:2], inner=True, uniqKey="V"),
    ]
    results = java_store.write(tmp_path, SMALL_FILES, ops, topics=topics)
    assert [(result["logicsOffset"], result["msgNum"]) for result in results] == [(0, 5), (0, 5), (5, 2)]
    assert results[0]["msgId"].count(",") == 4

    contents = java_store.read(tmp_path, SMALL_FILES, topics=topics)
    classic, inner = contents.queues["Classic", 0], contents.queues["Inner", 0]
    assert [message["flag"] for message in classic.messages] == [0, 1, 2, 3, 4]
    assert all(message["properties"] == {"TAGS": "t", "CLUSTER": "c"} for message in classic.messages)
    assert (inner.type, inner.max_offset) == ("BatchCQ", 7)
    assert [(unit["queueOffset"], unit["batchNum"]) for unit in inner.units] == [(0, 5), (5, 2)]
    assert [message["properties"]["INNER_BASE"] for message in inner.messages] == ["0", "5"]
    assert all(message["sysFlag"] & 0xC0 == 0xC0 for message in inner.messages)


def test_queries(java_store: JavaStore, tmp_path: Path) -> None:
    ops = [
        put("T", b"1", tags="a", keys="k1"),
        TICK,
        put("T", b"2", tags="b", keys="k1 k2"),
        TICK,
        put("T", b"3"),
    ]
    with java_store.open(tmp_path, SMALL_FILES) as store:
        first, _, second, _, third = store.put(ops)
        store.settle()
        answers = store.query(
            [
                by_key("T", "k1"),
                by_key("T", "k2"),
                by_time("T", 0, second["storeTimestamp"]),
                by_time("T", 0, first["storeTimestamp"], "UPPER"),
                by_time("T", 0, third["storeTimestamp"] + 1),
                get("T", 0, 0, subscription="b"),
                get("T", 0, 4),
                by_physical_offset(third["wroteOffset"]),
                by_physical_offset(third["wroteOffset"] + 1),
            ]
        )
    offsets = [first["wroteOffset"], second["wroteOffset"]]
    assert answers[0]["physicalOffsets"] == offsets
    assert answers[1]["physicalOffsets"] == offsets[1:]
    assert [answer["offset"] for answer in answers[2:5]] == [1, 0, 3]
    assert (answers[5]["status"], answers[5]["physicalOffsets"]) == ("FOUND", offsets[1:])
    assert (answers[6]["status"], answers[6]["nextBeginOffset"]) == ("OFFSET_OVERFLOW_BADLY", 3)
    assert answers[7]["message"]["body"] == b"3"
    assert answers[8] == {}


def test_refused_puts_change_nothing(java_store: JavaStore, tmp_path: Path) -> None:
    ops = [
        put("T", seed=1, size=SMALL_FILES["maxMessageSize"] + 1),
        put("T" * 128, b"x"),
        put("%RETRY%" + "T" * 249, b"x"),
        put("T"),
        put("T", b"x", properties={"p": "x" * 32767}),
        put("T", b"x", sysFlag=0xC0),
        batch("T", [item(b"x")], delayLevel=1),
        put("T", b"last"),
    ]
    results = java_store.write(tmp_path, SMALL_FILES, ops)
    assert [result["status"] for result in results] == [
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "PUT_OK",
    ]
    assert (results[-1]["wroteOffset"], results[-1]["logicsOffset"]) == (0, 0)


def test_failing_requests_leave_the_peer_serving(java_store: JavaStore, tmp_path: Path) -> None:
    with pytest.raises(JavaPeerError, match="unknown configuration key mappedFileSizeCommitlog"):
        java_store.write(tmp_path, {"mappedFileSizeCommitlog": 1024}, [])
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"of a wrong size")
    with pytest.raises(JavaPeerError, match="load"):
        java_store.read(tmp_path, SMALL_FILES)
    assert java_store.peer.request("hello")["rocketmq"] == "V5_3_3"


def test_a_killed_jvm_is_reported(java_store: JavaStore) -> None:
    with java_store.new_peer() as peer:
        peer.request("hello")
        peer.kill()
        with pytest.raises(JavaPeerError, match="ended"):
            peer.request("hello")


def test_a_jvm_takes_its_classes_from_the_archive() -> None:
    options = class_options()
    (archive,) = (option.partition("=")[2] for option in options if "SharedArchiveFile" in option)
    done = subprocess.run(
        ["java", *TEST_JVM, "-Xshare:on", *options, "-Xlog:class+load", BROKER, "-h"],
        capture_output=True,
        text=True,
    )
    assert Path(archive).stat().st_size > 1 << 20
    assert f"{BROKER} source: shared objects file (top)" in done.stdout


def test_missing_tools_name_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_peer, "TARGET", tmp_path / "target")
    with pytest.raises(PartMissingError, match="apt-get install openjdk-17-jdk-headless"):
        java_peer.build()


def test_bench_rounds(java_store: JavaStore, tmp_path: Path) -> None:
    single = put("Bench", seed="%d", size=100, tags="a", keys="k%d")
    several = batch("Bench", [item(seed="%d", size=100, keys="k%d")] * 8)
    with JavaBench(
        java_store.peer, "append", root=str(tmp_path), config=SMALL_FILES, op=single, threads=2
    ) as bench:
        first, second = bench.round(count=100), bench.round(count=100)
    assert (first["count"], second["count"], second["round"], second["failed"]) == (100, 100, 2, 0)
    assert 0 < first["seconds"] <= first["dispatchedSeconds"]

    with JavaBench(
        java_store.peer, "append", root=str(tmp_path), config=SMALL_FILES, op=several, queues=2
    ) as bench:
        assert bench.round(count=80)["count"] == 80
    with JavaBench(
        java_store.peer, "get", root=str(tmp_path), config=SMALL_FILES, topic="Bench", queues=2, decode=True
    ) as bench:
        assert bench.round(count=500)["count"] == 500
    with JavaBench(java_store.peer, "recover") as bench:
        done = bench.round(root=str(tmp_path), config=SMALL_FILES)
    assert done["lastExitOk"] and done["bytes"] > first["bytes"] + second["bytes"]


def test_warm_up_ends_when_the_rate_stops_rising() -> None:
    rates = iter([1.0, 5.0, 9.0, 9.1, 8.0, 9.0, 9.5, 9.4, 9.3, 9.2, 100.0])
    assert warm_up(lambda: next(rates), patience=3) == [1.0, 5.0, 9.0, 9.1, 8.0, 9.0]
