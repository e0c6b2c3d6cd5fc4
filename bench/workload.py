"""What the benches put: a ring of prepared messages, the same bytes on both sides, made from fixed seeds.

A template is an operation of the Java peer (`tests.interop.java_peer.put` and `batch`) with `%d` for the number
of the message; the peer and `Ring` fill it in alike. What a broker does before its store is called is done once,
before: each put is a new message around a prepared body and prepared properties.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.interop.java_peer import Json, batch, item, put, seeded_body

from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store import DefaultMessageStore, open_store

TOPIC = "BenchTopic"
QUEUES = 8
RING = 1024
BATCH = 32
BORN_HOST, STORE_HOST = ("127.0.0.1", 50000), ("127.0.0.1", 10911)


def single_template(size: int) -> Json:
    return put(TOPIC, seed="%d", size=size, tags="TagA", keys="order-%d", uniqKey="7F0000010001-%d")


def batch_template(size: int) -> Json:
    return batch(
        TOPIC,
        [
            item(seed=f"%d-{n}", size=size, tags="TagA", keys=f"order-%d-{n}", uniqKey=f"7F0000010001-%d-{n}")
            for n in range(BATCH)
        ],
    )


def _properties(op: Json) -> dict[str, str]:
    return {"TAGS": op["tags"], "KEYS": op["keys"], "UNIQ_KEY": op["uniqKey"]}


class Ring:
    """Prepared messages, made from a template; `fresh(n)` is the n-th put's message."""

    def __init__(self, template: Json) -> None:
        self.batch = template["op"] == "batch"
        self._kind = MessageExtBatch if self.batch else MessageExtBrokerInner
        self.per_put = len(template["messages"]) if self.batch else 1
        self._items: list[tuple[bytes, dict[str, str]]] = []
        for number in range(RING // 16 if self.batch else RING):
            op = json.loads(json.dumps(template).replace("%d", str(number)))
            if self.batch:
                messages = [
                    Message(TOPIC, seeded_body(m["seed"], m["size"]), properties=_properties(m))
                    for m in op["messages"]
                ]
                self._items.append((encode_messages(messages), {}))
            else:
                self._items.append((seeded_body(op["seed"], op["size"]), _properties(op)))

    def fresh(self, number: int, queue_id: int) -> MessageExtBrokerInner:
        body, properties = self._items[number % len(self._items)]
        message = self._kind(TOPIC, body, properties=properties)
        message.queue_id = queue_id
        message.born_timestamp = time.time_ns() // 1_000_000
        message.born_host, message.store_host = BORN_HOST, STORE_HOST
        return message

    def put_into(self, store: DefaultMessageStore) -> Callable[[MessageExtBrokerInner], object]:
        return store.put_messages if self.batch else store.put_message  # type: ignore[return-value]


def make_log(root: Path, nbytes: int, settings: Json) -> None:
    """A store of at least `nbytes` of log, 1 KB bodies in batches, cleanly shut down."""
    ring = Ring(batch_template(1024))
    puts = 0
    with open_store(root, settings) as store:
        while store.max_phy_offset < nbytes:
            assert store.put_messages(ring.fresh(puts, puts % QUEUES)).is_ok  # type: ignore[arg-type]
            puts += 1
