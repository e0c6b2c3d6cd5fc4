"""Every kind of message in one store."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.interop.agreement import questions
from tests.interop.java_peer import JavaStore, JavaStoreContents, Json
from tests.interop.make_golden import CONFIG, Case, cases

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


def everything(*names: str) -> list[Json]:
    """The operations of the goldens (all, or some), one after the other."""
    known: dict[str, Case] = cases()
    # Bit maps are put into extension units by a broker's filter, which this is not about.
    chosen = names or [name for name in known if name not in ("killed", "propcrc", "cqext")]
    return [op for name in chosen for op in known[name].ops]


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
