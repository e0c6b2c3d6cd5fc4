"""Properties to tags codes and index keys."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given

from mqlake.formats import columns
from mqlake.formats.columns import plain
from mqlake.formats.index import build_key, index_key_hash
from mqlake.formats.record import (
    decode_record,
)
from mqlake.message import SCHEDULE_TOPIC, java_hash, tags_code
from mqlake.native import columns as kernels
from tests.formats.columns_cases import (
    DELAY_LEVELS,
    INPUT,
    dispatch,
    log_of,
    logs,
    many,
    record,
    scan,
    working_with,
)


def reference_keys(message: Any) -> list[int]:
    if message.sys_flag & 0xC == 0xC:
        return []
    keys = [message.properties.get("UNIQ_KEY"), *message.properties.get("KEYS", "").split(" ")]
    return [index_key_hash(build_key(message.topic, key)) for key in keys if key]


class TestDispatchColumns:
    def test_tags_and_keys(self, twin: ModuleType) -> None:
        found = dispatch(
            log_of(
                [
                    {"topic": b"TopicTest", "properties": b"KEYS\x01OrderID188\x02TAGS\x01TagB\x02"},
                    {"topic": b"TopicTest", "properties": b""},
                    {"topic": b"TopicTest", "properties": b"KEYS\x01 a  b \x02UNIQ_KEY\x01U\x02"},
                ]
            )
        )
        assert found.tags_code.tolist() == [2598920, 0, 0]
        assert found.has_keys.tolist() == [True, False, True]
        names = ["OrderID188", "U", "a", "b"]
        assert found.key_hash.tolist() == [index_key_hash(f"TopicTest#{name}") for name in names]
        assert found.key_hash[0] == 1231271670
        assert found.key_record.tolist() == [0, 2, 2, 2]
        assert [column.dtype for column in found] == [
            np.int64,
            np.bool_,
            np.int16,
            np.int64,
            np.int32,
            np.int32,
        ]

    def test_transactions(self, twin: ModuleType) -> None:
        properties = b"KEYS\x01k\x02TAGS\x01t\x02"
        found = dispatch(log_of([{"sys_flag": kind, "properties": properties} for kind in (0, 4, 8, 12)]))
        assert found.has_keys.tolist() == [True, True, True, False]
        assert found.key_record.tolist() == [0, 1, 2]
        assert found.tags_code.tolist() == [116] * 4

    @pytest.mark.parametrize(
        ("delay", "expected"),
        [
            (b"1", 1000),
            (b"+5", 60_000),
            (b"18", 7_200_000),
            (b"99", 7_200_000),
            (b"0", None),
            (b"-1", None),
            (b"x", None),
        ],
    )
    def test_delayed(self, twin: ModuleType, delay: bytes, expected: int | None) -> None:
        spec = {"properties": b"TAGS\x01TagA\x02DELAY\x01" + delay + b"\x02", "store_timestamp": 5_000_000}
        found = dispatch(log_of([spec | {"topic": SCHEDULE_TOPIC.encode()}, spec | {"topic": b"Other"}]))
        due = 2598919 if expected is None else 5_000_000 + expected
        assert found.tags_code.tolist() == [due, 2598919]

    def test_a_level_that_is_not_in_the_table(self, twin: ModuleType) -> None:
        buf = INPUT.put(
            record(topic=SCHEDULE_TOPIC.encode(), properties=b"DELAY\x012\x02", store_timestamp=7)
        )
        found = columns.scan_records(buf, 0, len(buf), 0)
        assert columns.dispatch_columns(buf, found, delay_levels={1: 5, 3: 9}).tags_code.tolist() == [1007]
        assert columns.dispatch_columns(buf, found, delay_levels={}).tags_code.tolist() == [0]

    def test_inner_batch(self, twin: ModuleType) -> None:
        found = dispatch(
            log_of(
                [
                    {"properties": b"INNER_NUM\x0132\x02INNER_BASE\x0177\x02"},
                    {"properties": b"INNER_NUM\x0132\x02", "queue_offset": 9},
                    {"properties": b"INNER_NUM\x0140000\x02INNER_BASE\x011\x02", "queue_offset": 10},
                ]
            )
        )
        assert found.inner_num.tolist() == [32, 1, 1]
        assert found.inner_base.tolist() == [77, 9, 10]

    def test_the_last_of_equal_names_counts(self, twin: ModuleType) -> None:
        found = dispatch(record(properties=b"TAGS\x01TagA\x02TAGS\x01TagB\x02TAGS\x01\x02"))
        assert found.tags_code.tolist() == [2598920]

    @pytest.mark.parametrize(
        "text",
        [
            "Ümläut".encode(),
            "标签".encode(),
            "😀a".encode(),
            b"\xf4\x8f\xbf\xbf",
            b"\xff",
            b"\xc3",
            b"\xe4\xb8",
            b"\xe4\xb8A",
            b"\xf0\x9f\x98",
            b"\xf0\x9f\x98A",
            b"\xf0\x9fA",
            b"\xed\xa0\x80",
            b"\xc0\x80",
            b"\xe0\x80\x80",
            b"\xf4\x90\x80\x80",
            b"\xf8\x88\x80\x80\x80",
        ],
    )
    def test_any_bytes_as_text(self, twin: ModuleType, text: bytes) -> None:
        spec = {"topic": b"T" + text, "properties": b"TAGS\x01" + text + b"\x02KEYS\x01" + text + b"\x02"}
        found = dispatch(record(**spec))
        meant = text.decode("utf-8", "replace")
        assert found.tags_code.tolist() == [java_hash(meant)]
        assert found.key_hash.tolist() == [index_key_hash(f"T{meant}#{meant}")]

    def test_the_hash_without_a_positive_twin(self, twin: ModuleType) -> None:
        # "T#" + this text hashes to -2^31.
        text = next(t for t in _texts_hashing_to_minimum("T#"))
        assert java_hash("T#" + text) == -(2**31)
        assert dispatch(record(topic=b"T", properties=f"KEYS\x01{text}\x02".encode())).key_hash.tolist() == [
            0
        ]

    def test_more_keys_than_expected(self, twin: ModuleType) -> None:
        keys = [f"{i:x}" for i in range(4000)]
        properties = f"KEYS\x01{' '.join(keys)}\x02".encode()
        found = dispatch(log_of([{}, {"properties": properties}, {"properties": properties}, {}]))
        assert found.has_keys.tolist() == [False, True, True, False]
        expected = [index_key_hash(f"Topic#{key}") for key in keys]
        assert found.key_hash.tolist() == expected * 2
        assert found.key_record.tolist() == [1] * 4000 + [2] * 4000

    @pytest.mark.parametrize("other", ["", "é", "标", "😀"])
    def test_texts_of_any_length(self, twin: ModuleType, other: str) -> None:
        texts = []
        for length in [*range(100), 500]:
            text = "".join(chr(33 + (length * 7 + n * n) % 94) for n in range(length))
            texts.append(text)
            texts += [text[:at] + other + text[at:] for at in range(0, length, 3)] if other else []
        buf = log_of([{"properties": f"TAGS\x01{text}\x02KEYS\x01{text}\x02".encode()} for text in texts])
        found = dispatch(buf)
        assert found.tags_code.tolist() == [java_hash(text) for text in texts]
        assert found.key_hash.tolist() == [index_key_hash(f"Topic#{text}") for text in texts if text]

    def test_twins_agree_on_separators_at_any_place(self) -> None:
        numbers = random.Random(11)
        pieces = [
            b"\1",
            b"\2",
            b"\2",
            b"x",
            b" ",
            b"y" * 20,
            b"TAGS\1",
            b"KEYS\1",
            b"UNIQ_KEY\1",
            b"DELAY\0013",
        ]
        records = [
            {"topic": numbers.choice([b"T", SCHEDULE_TOPIC.encode()]), "properties": b"".join(some)}
            for some in (numbers.choices(pieces, k=numbers.randrange(60)) for _ in range(2000))
        ]
        # each as the last one too, at the end of what may be read
        for some in ([one] for one in records[:300]), [records]:
            for log in map(log_of, some):
                results = []
                for module in (plain, kernels):
                    with working_with(module):
                        results.append([column.tolist() for column in dispatch(log)])
                assert results[0] == results[1]

    def test_nothing(self, twin: ModuleType) -> None:
        assert [len(column) for column in dispatch(b"")] == [0] * 6

    def test_a_scan_of_another_buffer(self, twin: ModuleType) -> None:
        found = scan(record())
        with pytest.raises(ValueError, match="another, longer buffer"):
            columns.dispatch_columns(np.zeros(100, np.uint8), found, delay_levels={})

    @many
    @given(logs())
    @example((record(properties=b"KEYS\x01a\xff b\x02"), 0))
    def test_agrees_with_the_single_codec(self, twin: ModuleType, log: tuple[bytes, int]) -> None:
        data, base_offset = log
        buf = INPUT.put(data)
        found = columns.scan_records(buf, 0, len(buf), base_offset, check_crc=False)
        result = columns.dispatch_columns(buf, found, delay_levels=DELAY_LEVELS)
        keys, owners = [], []
        for n, position in enumerate(found.position.tolist()):
            message = decode_record(data, position, check_crc=False)
            hashes = reference_keys(message)
            keys += hashes
            owners += [n] * len(hashes)
            assert result.has_keys[n] == bool(hashes)
            if message.topic != SCHEDULE_TOPIC:
                assert result.tags_code[n] == tags_code(message.tags)
        assert result.key_hash.tolist() == keys
        assert result.key_record.tolist() == owners

    @pytest.mark.parametrize("seed", range(4))
    def test_twins_agree_on_properties_of_one_shape(self, seed: int) -> None:
        log = log_of(properties_of_few_shapes(random.Random(seed), 1000))
        results = []
        for module in (plain, kernels):
            with working_with(module):
                results.append([column.tolist() for column in dispatch(log)])
        assert results[0] == results[1]

    @many
    @given(logs())
    def test_twins_agree(self, log: tuple[bytes, int]) -> None:
        results = []
        for module in (plain, kernels):
            with working_with(module):
                results.append([column.tolist() for column in dispatch(*log)])
        assert results[0] == results[1]


MODELS = [
    b"KEYS\x01a b1\x02UNIQ_KEY\x010A0000010001\x02TAGS\x01TagA\x02DELAY\x0112\x02x\x01y\x02",
    b"TAGS\x01TagB\x02UNIQ_KEY\x010A0000010001\x02" + b"name\x01value\x02" * 4 + b"KEYS\x01b1\x02",
    b"INNER_NUM\x013\x02INNER_BASE\x0170\x02TAGS\x01"
    + "Tagé".encode()
    + b"\x02KEYS\x01"
    + b"k" * 57
    + b"\x02",
    b"TAGS\x01T\x02\x01no name\x02no value\x01\x02nothing\x02\x02KEYS\x01a\x01b\x02WAIT\x01true",
    b"x\x01" + b"y" * 500 + b"\x02KEYS\x01" + b"z" * 60 + b"\x02",
]


def properties_of_few_shapes(numbers: random.Random, count: int) -> list[dict[str, Any]]:
    """Records of which many have properties as long as one before, and differ in single bytes."""
    records = []
    for _ in range(count):
        properties = bytearray(numbers.choice(MODELS))
        for _ in range(numbers.choice([0, 0, 1, 1, 2, 4])):
            place = numbers.randrange(len(properties))
            byte = numbers.choice([1, 2, 32, 49, 75, properties[place - 1], numbers.randrange(256)])
            properties[place] = byte
            if numbers.random() < 0.1:
                properties[place : place + 1] = b"12"
        topic = numbers.choice([b"T", SCHEDULE_TOPIC.encode()])
        records.append({"topic": topic, "properties": bytes(properties)})
    return records


def _texts_hashing_to_minimum(prefix: str) -> Iterator[str]:
    """Printable ASCII continuations of `prefix` whose hash is -2^31: the last 6 characters are solved for."""
    for first in range(0x21, 0x7F):
        for second in range(0x21, 0x7F):
            start = java_hash(prefix + chr(first) + chr(second))
            need = (0x80000000 - start * 31**6) % 2**32
            digits = []
            for power in range(5, -1, -1):
                digit = min(0x7E, max(0x21, (need - 0x21 * (31**power - 1) // 30) // 31**power))
                digits.append(digit)
                need -= digit * 31**power
            if need == 0:
                yield chr(first) + chr(second) + "".join(map(chr, digits))
