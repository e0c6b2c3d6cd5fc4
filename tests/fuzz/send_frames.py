"""Frames of sends, batches and commits with bytes damaged, given to a broker's compiled ways of reading them.

    python -m tests.fuzz.send_frames BYTES [SEED]     so many bytes of frames

As one read of a connection or as two, in a buffer that ends where the read does. What is answered is fuzz_sends' to
compare: here nothing may be read or written that is not there.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from mqlake.broker.fast.fast_send import FastSend
from mqlake.remoting.codes import SerializeType
from tests.broker.fast.test_fast_send import batch, half, item, own, send
from tests.fuzz.two_brokers import TwoBrokers, draw_alike

KINDS = list(SerializeType)
ODD = b'"\\,:{} 0a9-\0\1\2\x7f\x80\xe4\xffu'
RUNS_A_DIRECTORY = 2000


class Exact:
    """The reader of sends, given the bytes of a read in an array of their own."""

    def __init__(self, sends: Any) -> None:
        self._sends = sends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sends, name)

    def take(self, data: memoryview, *more: object) -> int:
        taken: int = self._sends.take(bytes(data), *more)
        return taken


def frame(chance: random.Random) -> bytes:
    kind, opaque = chance.choice(KINDS), chance.randrange(2**31)
    body = chance.randbytes(chance.choice((0, 4, 100, 900)))
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: send(body, opaque=opaque, kind=kind),
        lambda: send(body, opaque=opaque, kind=kind, code=10, long_names=True),
        lambda: half(body, opaque=opaque, kind=kind),
        lambda: batch(*(item(body[n:], own(n)) for n in range(5)), opaque=opaque, kind=kind),
    )
    return chance.choice(makers)()


def frames(chance: random.Random) -> bytes:
    """A read of some, damaged in half of the cases."""
    data = bytearray(b"".join(frame(chance) for _ in range(chance.choice((1, 2, 6)))))
    for _ in range(chance.choice((0, 0, 1, 4))):
        at = chance.randrange(len(data))
        data[at] = chance.choice((chance.choice(ODD), chance.randrange(256)))
    return bytes(data[: chance.choice((len(data), len(data), chance.randrange(len(data) + 1)))])


def run(size: int, seed: int = 1) -> tuple[int, int]:
    """(Bytes of frames, bytes of log that were made of them)."""
    chance, done, log = random.Random(seed), 0, 0
    logging.disable(logging.CRITICAL)
    draw_alike()
    while done < size:
        brokers = TwoBrokers(tempfile.gettempdir())
        fast = brokers.fast.server.fast_paths[0]
        assert isinstance(fast, FastSend)
        fast.native = Exact(fast.native)
        while brokers.runs < RUNS_A_DIRECTORY and done < size:
            data = frames(chance)
            done += len(data)
            brokers.give(data, chance.choice((None, None, chance.randrange(len(data) + 1))))
        log += brokers.fast.broker.store.max_phy_offset
        brokers.close()
    return done, log


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
