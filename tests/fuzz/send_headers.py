"""Frames with damaged headers, each after two of the same shape, given to the compiled reader of headers.

    python -m tests.fuzz.send_headers BYTES [SEED]     so many bytes of frames

What it reads is what the codec reads, and the same whether a shape was known before or not.
"""

from __future__ import annotations

import json
import random
import struct
import sys

from mqlake.native import frame_layout as layout
from tests.native.test_frames import HEAD, assert_alike, read

ODD = b'"\\,:{} 0a9-\0\1\x7f\x80\xe4\xffu'
TEXTS = (
    "",
    "a",
    "TBW102",
    "KEYS\1order-7\2TAGS\1TagA\2UNIQ_KEY\1" + "0A" * 16 + "\2WAIT\1true\2",
    "é\u20ac",
    '"\\\n' * 3,
)
SEPARATORS = ((",", ":"), (", ", ": "), (" ,\t", " :\n"))


def header(chance: random.Random, names: list[str], separators: tuple[str, str]) -> bytes:
    """A header with fields of these names."""
    fields = {name: chance.choice((*TEXTS, str(chance.randrange(10**9)))) for name in names}
    parts = [
        ("code", chance.choice((310, 320, 10, 37))),
        ("extFields", fields),
        ("flag", 0),
        ("language", "JAVA"),
        ("opaque", chance.randrange(2**31)),
        ("serializeTypeCurrentRPC", "JSON"),
        ("version", 475),
    ]
    return json.dumps(dict(parts), separators=separators, ensure_ascii=len(names) % 2 == 0).encode()


def framed(raw: bytes, body: bytes = b"body") -> bytes:
    return struct.pack(">ii", 4 + len(raw) + len(body), len(raw)) + raw + body


def damaged(chance: random.Random, frame: bytes) -> bytes:
    """With bytes replaced, put in or left out, in the header mostly; or cut off."""
    data = bytearray(frame)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(0 if chance.random() < 0.1 else 8, len(data))
        byte = chance.choice((chance.choice(ODD), chance.randrange(256)))
        data[at : at + chance.choice((1, 1, 1, 0, 2))] = bytes((byte,)) * chance.choice((1, 1, 1, 0, 2))
    if chance.random() < 0.5:  # lengths that are right again
        raw = bytes(data[8:-4])
        return framed(raw)
    return bytes(data[: chance.choice((len(data), chance.randrange(len(data) + 1)))])


def run(size: int, seed: int = 1) -> tuple[int, int, int]:
    """(Bytes of frames, how many frames, how many of them were read); AssertionError when the readers differ."""
    chance, done, count, found = random.Random(seed), 0, 0, 0
    letters = [chr(97 + n) for n in range(13)]
    while done < size:
        names = chance.choice((letters, list(layout.LONG_NAMES[:13]), chance.sample(letters, 5)))
        separators = chance.choice(SEPARATORS)
        alike = [framed(header(chance, names, separators)) for _ in range(2)]
        data = damaged(chance, framed(header(chance, names, separators)))
        HEAD[:] = 0
        alone = read(data)
        for frame in alike:
            assert read(frame)[0] > 0 and HEAD[layout.HEAD_SHAPE] > 0
        after = assert_alike(data)
        assert after == alone[0], data
        done += len(data) + sum(map(len, alike))
        count += 1
        found += after > 0
    return done, count, found


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
