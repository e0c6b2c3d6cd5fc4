from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError
from mqlake.formats.trace import (
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    Trace,
    decode_traces,
    encode_trace,
    trace_keys,
)

PUB = Pub(1700000000000, "DefaultRegion", "PG", "T", "AC11", "tag", "k1 k2", "127.0.0.1:10911", 5, 3,
          MessageType.ORDER_MSG, "7F00", True)  # fmt: skip
BEFORE = SubBefore(1700000000001, "DefaultRegion", "CG", "R1", "AC11", 2, "k1 k2")
AFTER = SubAfter("R1", "AC11", 12, False, "k1 k2", 4, 1700000000002, "CG")


def test_the_layout_is_that_of_trace_data_encoder() -> None:
    assert encode_trace(PUB).replace("\x01", "|") == (
        "Pub|1700000000000|DefaultRegion|PG|T|AC11|tag|k1 k2|127.0.0.1:10911|5|3|4|7F00|true\x02"
    )
    assert encode_trace(BEFORE).replace("\x01", "|") == (
        "SubBefore|1700000000001|DefaultRegion|CG|R1|AC11|2|k1 k2\x02"
    )
    assert encode_trace(AFTER).replace("\x01", "|") == (
        "SubAfter|R1|AC11|12|false|k1 k2|4|1700000000002|CG\x02"
    )


def test_absent_text_is_written_as_java_writes_it() -> None:
    assert encode_trace(replace(BEFORE, keys="")).endswith("\x01null\x02")
    assert decode_traces(encode_trace(replace(BEFORE, keys=""))) == [replace(BEFORE, keys="")]


def test_bodies_of_older_and_newer_clients() -> None:
    old = "Pub|1|r|g|T|id|null|null|h|5|3|0|true\x02".replace("|", "\x01")
    new = "Pub|1|r|g|T|id|null|null|h|5|3|0|offset|true|10.0.0.1\x02".replace("|", "\x01")
    unknown = "Recall|1|r|g|T|id|true\x02".replace("|", "\x01")
    after = "SubAfter|r|id|5|true|null\x02".replace("|", "\x01")
    found = decode_traces(old + unknown + new + after)
    assert [type(trace).__name__ for trace in found] == ["Pub", "Pub", "SubAfter"]
    assert (found[0].offset_msg_id, found[0].success) == ("", True)  # type: ignore[union-attr]
    assert (found[1].offset_msg_id, found[1].success) == ("offset", True)  # type: ignore[union-attr]
    assert (found[2].timestamp, found[2].group) == (0, "")  # type: ignore[union-attr]


@pytest.mark.parametrize("body", ["Pub\x011\x02", "Pub\x01x\x01" + "\x01" * 11 + "\x02", "SubAfter\x01a\x02"])
def test_a_damaged_trace_is_named(body: str) -> None:
    with pytest.raises(FormatError, match="trace 0 of the body"):
        decode_traces(body)


def test_the_keys() -> None:
    assert trace_keys(replace(PUB, msg_id="A,B")) == ["A", "B", "k1", "k2"]


TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1).filter(
    lambda t: t != "null"
)
NUMBER = st.integers(0, 2**62)


def traces(kind: type[Trace]) -> st.SearchStrategy[Trace]:
    made = {"int": NUMBER, "str": TEXT, "bool": st.booleans(), "MessageType": st.sampled_from(MessageType)}
    return st.builds(kind, **{field.name: made[str(field.type)] for field in fields(kind)})


@given(st.lists(st.one_of(*map(traces, (Pub, SubBefore, SubAfter)))))
def test_what_is_written_is_read(written: list[Trace]) -> None:
    assert decode_traces("".join(map(encode_trace, written))) == written


@given(st.text())
def test_no_text_breaks_a_body(text: str) -> None:
    (found,) = decode_traces(encode_trace(replace(PUB, keys=text)))
    assert replace(PUB, keys="") == replace(found, keys="")  # type: ignore[type-var]
