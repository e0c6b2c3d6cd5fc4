"""The compiled writer of records beside the one in Python: the same bytes, and none where a batch is damaged."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mqlake import native
from mqlake.formats.columns import plain
from tests.formats.columns_cases import V6, record

COMPILED = native.module("append")
HOSTS: tuple[dict[str, Any], ...] = (
    {},
    {"born_host": V6, "sys_flag": 16},
    {"store_host": V6, "sys_flag": 32},
    {"born_host": V6, "store_host": V6, "sys_flag": 48},
)


def batched(module: Any, blob: bytes, extra: bytes, max_blank: int, hosts: dict[str, Any]) -> list[Any]:
    head = record(body=b"", topic=b"", properties=b"", **hosts)[:-3]
    out, offsets, sizes = np.full(700, 0xEE, np.uint8), np.zeros(8, np.int64), np.zeros(8, np.int32)
    template = np.frombuffer(head + b"\x05Topic" + extra, np.uint8)
    end = len(head) + 6
    found = module.append_batch(
        out,
        7,
        max_blank,
        np.frombuffer(blob, np.uint8),
        template,
        len(head),
        end,
        3,
        1000,
        300,
        offsets,
        sizes,
    )
    return [found, out.tobytes(), offsets.tolist(), sizes.tolist()]


def item(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    head = size.to_bytes(4, "big") + bytes(8) + (7).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + len(properties).to_bytes(2, "big") + properties


@pytest.mark.parametrize("seed", range(200))
def test_batches_are_written_alike(seed: int) -> None:
    rng = random.Random(seed)
    ends = (b"", b"a\x01b", b"a\x01b\x02")
    items = [item(rng.randbytes(rng.randrange(200)), rng.choice(ends)) for _ in range(rng.randrange(4))]
    blob = bytearray(b"".join(items))
    if blob and rng.random() < 0.3:
        blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
    arguments = bytes(blob), rng.choice((b"", b"x\x01y\x02")), rng.choice((100, 690)), rng.choice(HOSTS)
    compiled, expected = batched(COMPILED, *arguments), batched(plain, *arguments)
    if compiled[0][0] >= 0:
        # the first record's size is left to who publishes
        assert compiled == expected
    assert compiled[0] == expected[0] and compiled[1] == expected[1]


def test_a_template_that_is_none() -> None:
    out, numbers = np.zeros(100, np.uint8), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="a template of 20 bytes"):
        COMPILED.append_batch(  # type: ignore[union-attr]
            out, 0, 100, out, np.zeros(20, np.uint8), 20, 20, 0, 0, 100, numbers, np.zeros(1, np.int32)
        )
