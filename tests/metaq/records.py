"""Records to put into stores."""

from __future__ import annotations

import random
from pathlib import Path

from mqlake.metaq.formats.record import MessageIterator, encode_payload, encode_record
from mqlake.metaq.store.message_store import MessageStore

SEGMENT = 20_000


def record(body: bytes, message_id: int = 1) -> bytes:
    return encode_record(body, message_id, 0)


def bodies(data: bytes) -> list[bytes]:
    return [message.data for message in MessageIterator("t", data)]


def fill(root: Path, topic: str, partition: int, count: int, seed: int = 0) -> None:
    """Messages of all kinds, over several segments."""
    chosen = random.Random(f"{topic}-{partition}-{seed}")
    store = MessageStore(str(root), topic, partition, max_segment_size=SEGMENT)
    for n in range(count):
        attribute = chosen.choice([None, None, "", f"attribute-{n}", "ä€"])
        body = chosen.randbytes(chosen.choice([0, 1, 100, 300]))
        flag = chosen.choice([0, 6]) | (attribute is not None)
        store.append(encode_record(encode_payload(body, attribute), -n - 1, flag))
    store.close()
