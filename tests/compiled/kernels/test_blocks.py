from __future__ import annotations

import random

import numpy as np
import pytest

from mqlake.compiled.kernels import blocks
from mqlake.compiled.kernels.blocks import BLOCK


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


def test_copies_of_every_length() -> None:
    data = array(random.Random(1).randbytes(4 * BLOCK))
    for length in range(2 * BLOCK + 3):
        out = np.full(4 * BLOCK, 0xEE, np.uint8)
        assert blocks.put_blocks(out, 5, data, 9, length) == 5 + length
        blocks_end = 5 + -(-length // BLOCK) * BLOCK
        assert (out[5:blocks_end] == data[9 : 4 + blocks_end]).all()
        assert (out[:5] == 0xEE).all() and (out[blocks_end:] == 0xEE).all(), length


@pytest.mark.parametrize("code", range(256))
def test_what_is_plain(code: int) -> None:
    is_plain = 0x20 <= code <= 0x7E and code not in b'"\\'
    for place in (0, 1, 15, 16, BLOCK - 1):
        data = array(b"." + b"~" * place + bytes((code,)) + b"\0" * BLOCK)
        assert blocks.plain_length(data, 1) == min(BLOCK, place + is_plain)


def test_which_bytes_differ() -> None:
    source = random.Random(2)
    for _ in range(50):
        places = source.sample(range(BLOCK), source.randrange(4))
        a = array(source.randbytes(2 * BLOCK))
        b = np.concatenate([array(b"12345"), a])
        b[[8 + place for place in places]] ^= source.randrange(1, 256)
        assert blocks.unlike(a, 3, b, 8) == sum(1 << place for place in places)
