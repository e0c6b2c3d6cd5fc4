"""Messages and batches of a program, most of them odd in some way, put into a store by the compiled way and Python's.

    python -m tests.fuzz.put_messages BYTES [SEED]     so many bytes of bodies

What is read back are the bytes that were put.
"""

from __future__ import annotations

import random
import sys
import tempfile

from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store import open_store

HOSTS = (("127.0.0.1", 10911), ("10.1.2.3", 7), ("2001:db8::1", 9))
NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "é" * 9, "x" * 300, "a", "WAIT")
FILE_SIZE = 256 * 1024


def message(chance: random.Random, body: bytes) -> MessageExtBrokerInner:
    properties = {name: "v" * chance.randrange(1, 40) for name in chance.sample(NAMES, chance.randrange(5))}
    if chance.random() < 0.05:
        properties |= {f"n{n}": "v" for n in range(chance.choice((60, 64, 65, 80)))}
    made = MessageExtBrokerInner(chance.choice(("T", "Other", "t" * 127)), body, properties=properties)
    made.queue_id, made.flag = chance.randrange(4), chance.choice((0, -(2**31), 2**31 - 1))
    made.sys_flag = chance.choice((0, 0, 0, 1, 4, 8, 12))
    made.born_host, made.store_host = chance.choice(HOSTS), chance.choice(HOSTS)
    return made


def batch(chance: random.Random, body: bytes) -> MessageExtBatch:
    blob = bytearray(encode_messages([Message("T", body[n::3], tags="A") for n in range(3)]))
    if chance.random() < 0.3:
        blob[chance.randrange(len(blob))] ^= 1 << chance.randrange(8)
    made = MessageExtBatch("T", bytes(blob[: chance.choice((len(blob), chance.randrange(len(blob) + 1)))]))
    made.born_host, made.store_host = chance.choice(HOSTS), chance.choice(HOSTS)
    return made


def run(size: int, seed: int = 1) -> tuple[int, int]:
    """(Bytes of bodies, how many puts went well); AssertionError when other bytes are read."""
    chance, done, well = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as directory:
        while done < size:
            with open_store(f"{directory}/{done}", {"mappedFileSizeCommitLog": FILE_SIZE}) as store:
                for _ in range(2000):
                    body = chance.randbytes(chance.choice((0, 1, 30, 700, 5000)))
                    done += len(body)
                    if chance.random() < 0.3:
                        well += store.put_message(batch(chance, body)).is_ok
                        continue
                    put = message(chance, body)
                    result = store.put_message(put)
                    if not result.is_ok:
                        continue
                    well += 1
                    found = store.look_message_by_offset(put.physical_offset)
                    assert found is not None and found.body == body and found.properties == put.properties
    return done, well


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
