"""Every kind of message in one store."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.agreement import questions
from tests.interop.java_peer import TICK, JavaStore, JavaStoreContents, Json, batch, item, put
from tests.interop.make_golden import CONFIG, cases

TOPICS = {"Inner": {"queue.type": "BatchCQ"}}

# Files of the index that roll several times too.
SMALL: Json = {**CONFIG, "maxHashSlotNum": 30, "maxIndexNum": 120}
MIXES: dict[str, Json] = {
    "plain": SMALL,
    "crc tails and extensions": {
        **SMALL,
        "enabledAppendPropCRC": True,
        "forceVerifyPropCRC": True,
        "enableConsumeQueueExt": True,
    },
}


# The same with one file of the index. Java names such a file by the millisecond, and takes one of that name for a
# new one: where it makes the index again at once, after a crash, it may write over what it has just written.
ONE_INDEX_FILE: Json = {"maxHashSlotNum": 1000, "maxIndexNum": 4000}


def everything() -> list[Json]:
    """The operations of the goldens, one after the other."""
    # Bit maps are put into extension units by a broker's filter, which this is not about.
    left_out = "killed", "propcrc", "cqext"
    ops = [op for name, case in cases().items() if name not in left_out for op in case.ops]
    # So often that no two files of the index begin in one millisecond.
    return [each for first in range(0, len(ops), 8) for each in (*ops[first : first + 8], TICK)]


def at_the_limits(max_message_size: int) -> list[Json]:
    """What is just taken, what is just refused, and what is odd; for SMALL_FILES and TOPICS.

    Not here, as Java's store takes it, and mqlake's on purpose not: topics that its broker would refuse, and
    batches whose merged properties are over 32767 bytes (such a record keeps Java's dispatch from going on).
    """

    def one(topic: str = "T", body: bytes = b"x", **fields: Any) -> Json:
        return put(topic, body, bornTimestamp=1, **fields)

    def several(items: list[Json], topic: str = "T", **fields: Any) -> Json:
        return batch(topic, items, bornTimestamp=1, **fields)

    def properties(length: int) -> Json:
        return {"p": "x" * (length - 3)}

    two = [item(b"x"), item(b"y")]
    each, count = 1000, max_message_size // 1000
    most = [item(seed=n, size=each - 22) for n in range(count)]
    rest = max_message_size - count * each - 22
    sizes = [
        put("T", seed=n, size=max_message_size + n, properties=large, bornTimestamp=1)
        for n in (0, 1)
        for large in ({}, properties(30_000))
    ]
    topics = [
        *(one("t" * n) for n in (127, 128)),
        *(one("%RETRY%" + "t" * (n - 7)) for n in (127, 128, 255, 256)),
    ]
    batches = [
        several([*most, item(seed=0, size=rest)]),
        several([*most, item(seed=0, size=rest + 1)]),
        several([]),
        several(two, sysFlag=0x4),
        several(two, sysFlag=0x8),
        several(two, delayLevel=3),
        several(two, properties={"header": "1"}),
        several([item(b"x", properties=properties(20_000))], properties={"q": "y" * 12_700}),
        several(two, "Inner"),
        several(two, inner=True),
    ]
    flags = [one(sysFlag=flag) for flag in (0x40, 0x80, 0x703, 0x7FFF_F000)]
    numbers = [
        one(queue_id=-1),
        one(queue_id=2**31 - 1),
        one(reconsumeTimes=-1),
        one(flag=2**31 - 1),
        put("T", b"x", bornTimestamp=-5),
        put("T", b"x", bornTimestamp=2**63 - 1),
        one(delayLevel=-1),
        one(delayLevel=2, sysFlag=0xC),
        one(properties={"DELAY": "abc"}),
        one(properties={"INNER_NUM": "3"}),
        one("Inner", properties={"INNER_NUM": "3"}),
        one("Inner"),
    ]
    texts = [
        *(one(properties=properties(n)) for n in (32_747, 32_748, 32_767, 32_768)),
        one(body=b""),
        one(keys=" a  b ", uniqKey="u v"),
        one(keys="", tags=""),
        one(tags="\ude80 half of a pair", properties={"a": "\ud83d"}),
        one(properties={"a": "b\x01c", "d": "e\x02f"}),
        one(properties={"__RMQ.TRANSIENT.x": "1", "INNER_MULTI_DISPATCH": "%LMQ%a"}),
        one(properties={f"k{n}": str(n) for n in range(40)}),
        one(waitStoreMsgOk=True),
    ]
    return [*sizes, *topics, *batches, *flags, *numbers, *texts]


@dataclass(frozen=True)
class JavaMix:
    """A store that Java has written and closed, to be read, or copied and changed."""

    root: Path
    config: Json
    topics: dict[str, dict[str, str]]
    puts: list[tuple[Json, Json]]
    contents: JavaStoreContents
    answers: list[tuple[Json, Json]]

    def copy(self, directory: Path) -> Path:
        return Path(shutil.copytree(self.root, directory / "copy"))


def java_mix(java: JavaStore, root: Path, config: Json) -> JavaMix:
    ops = everything()
    with java.open(root, config, topics=TOPICS) as store:
        results = store.put(ops)
        contents = store.contents()
        asked = questions(contents)
        answers = store.query(asked)
    puts = list(zip(ops, results, strict=True))
    return JavaMix(root, config, TOPICS, puts, contents, list(zip(asked, answers, strict=True)))
