"""mqlake and Java append to one store in turns, each ending cleanly or in a crash: it stays one log.

mqlake ──▶ Java ──▶ mqlake ─✗─▶ Java ─✗─▶ ...        every order of writers, every kind of end between them
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.store.read_only import ReadOnlyStore
from tests.interop.agreement import as_asked, questions, same_answers, same_contents
from tests.interop.java_peer import JavaStore, Json, batch, item, put
from tests.interop.mixes import MIXES, ONE_INDEX_FILE, TOPICS
from tests.interop.mqlake_peer import Writer, contents, open_store
from tests.interop.mqlake_peer import put as mqlake_put

CLEAN, KILLED = "clean", "killed"
LOSING = "java", KILLED
"""Who opens, after what."""
TURNS = [
    ("mqlake", CLEAN),
    ("java", CLEAN),
    ("mqlake", KILLED),
    ("java", KILLED),
    ("mqlake", KILLED),
    ("java", CLEAN),
    ("mqlake", CLEAN),
    ("java", KILLED),
    ("mqlake", CLEAN),
]


def one_turn(turn: int) -> list[Json]:
    """Over a file and a half of the log, with all that has offsets of its own."""
    # Shared: found by key in every turn.
    keys = f"turn-{turn} shared"
    v6 = {"bornHost": ("2001:db8::1", 1), "storeHost": ("fe80::2", 10911)}
    ops: list[Json] = []
    for n in range(6):
        items = [item(b"%d-%d-%d" % (turn, n, k), tags=f"t{k}", flag=k, keys=f"b{k}") for k in range(n + 1)]
        ops += [
            put("Single", body(turn, n), queue_id=n % 2, tags=f"tag{n}", keys=f"{keys} k{n}", **BORN),
            put("%RETRY%" + "g" * 140, body(turn, n), keys=keys, **BORN, **v6),
            put("Later", body(turn, n), delayLevel=n + 1, queue_id=n, keys=keys, **BORN),
            put("Single", body(turn, n), sysFlag=0x4, uniqKey=f"HALF-{turn}-{n}", **BORN),
            put("Single", body(turn, n), sysFlag=(0x8, 0xC)[n % 2], preparedTransactionOffset=n, **BORN),
            batch("Classic", items, properties={"CLUSTER": "c"}, **BORN),
            batch("Inner", items, inner=True, uniqKey=f"INNER-{turn}-{n}", queue_id=n % 2, **BORN),
        ]
    return ops


BORN = {"bornTimestamp": 1_700_000_000_000}


def body(turn: int, n: int) -> bytes:
    return b"turn %d, %d; " % (turn, n) * (20 + 7 * n)


@pytest.mark.parametrize("mix", MIXES)
def test_one_log_of_two_writers(java_store: JavaStore, tmp_path: Path, mix: str) -> None:
    config = MIXES[mix] | ONE_INDEX_FILE
    ops: list[Json] = []
    results: list[Json] = []
    begins: list[int] = []
    found = None
    for turn, (writer, ending) in enumerate(TURNS):
        begins.append(found.max_physical_offset if found else 0)
        more = one_turn(turn)
        results += write(java_store, tmp_path, config, more, writer, ending)
        ops += more
        assert (tmp_path / "abort").exists() == (ending == KILLED)
        with ReadOnlyStore(tmp_path, config) as view:
            found = contents(view)
            # What is there follows without a gap, and is what both were told.
            as_asked(ops, results, found.records)
            every_queue_is_continuous(found.records)

    assert len(list((tmp_path / "commitlog").iterdir())) > len(TURNS)
    asked = questions(found)
    theirs = java_store.read(tmp_path, config, asked, topics=TOPICS)
    with ReadOnlyStore(tmp_path, config) as view:
        same_contents(view, theirs)
        index_from = indexed_from(view, begins)
        same_answers(view, theirs, zip(asked, theirs.answers, strict=True), index_from=index_from)
    with open_store(tmp_path, config, topics=TOPICS) as store:
        same_contents(store, theirs)
        same_answers(store, theirs, zip(asked, theirs.answers, strict=True), index_from=index_from)


def indexed_from(view: ReadOnlyStore, begins: list[int]) -> int:
    """Where the index begins. After a crash RocketMQ deletes an index file that is not full, and makes entries again
    only from the log file on that was begun three seconds before its checkpoint: all of them if turns take less."""
    assert view.index is not None
    first = view.index.files[0].header.begin_phy_offset
    after_crash = [n for n in range(1, len(TURNS)) if (TURNS[n][0], TURNS[n - 1][1]) == LOSING]
    assert first <= begins[max(after_crash)]
    return first


def write(java: JavaStore, root: Path, config: Json, ops: list[Json], writer: str, ending: str) -> list[Json]:
    if writer == "java":
        return java.write(root, config, ops, halt=ending == KILLED, topics=TOPICS)
    if ending == KILLED:
        with Writer() as process:
            process.open(root, config, TOPICS)
            return process.put(root, ops)
    with open_store(root, config, topics=TOPICS) as store:
        return mqlake_put(store, ops)


def every_queue_is_continuous(records: list[Json]) -> None:
    following: dict[tuple[str, int], int] = {}
    for record in records:
        if not record["sysFlag"] & 0x4:
            queue = record["topic"], record["queueId"]
            assert record["queueOffset"] == following.get(queue, 0)
            following[queue] = record["queueOffset"] + int(record["properties"].get("INNER_NUM", 1))
