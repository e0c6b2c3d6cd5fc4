"""Checkpoints and acknowledgements against what Java's broker wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.pop.checkpoint import (
    Acknowledgement,
    Checkpoint,
    CheckpointKey,
    decode_acknowledgement,
    decode_checkpoint,
    encode_acknowledgement,
    encode_checkpoint,
)
from mqlake.errors import FormatError

JAVA_5_5 = (
    b'{"bm":0,"bn":"broker-a","c":"GN","d":[0,1,2],"it":15000,"n":3,"pt":1795310500000,"q":0,'
    b'"reviveTime":1795310515000,"ro":0,"so":0,"sp":false,"t":"TN"}'
)
names = st.text(min_size=1, max_size=12)
keys = st.builds(
    CheckpointKey,
    names,
    names,
    st.integers(0, 1000),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 43),
    names,
)
distances = st.lists(st.integers(0, 1000), min_size=1, max_size=32, unique=True).map(sorted)


def test_checkpoint_of_java():
    checkpoint = decode_checkpoint(JAVA_5_5, "other", 7)
    assert checkpoint.key == ("TN", "GN", 0, 0, 1795310500000, "broker-a")
    assert checkpoint.revive_time == 1795310515000
    assert (checkpoint.open_offsets(), checkpoint.revive_offset) == ([0, 1, 2], 7)
    # 5.3.3 has no `sp`; the rest is the same, in the same order
    assert encode_checkpoint(decode_checkpoint(JAVA_5_5, "other")) == JAVA_5_5.replace(b'"sp":false,', b"")


def test_old_forms_are_read():
    checkpoint = decode_checkpoint(b'{"c":"G","it":1,"n":2,"pt":5,"q":1,"so":7,"t":"T"}', "broker-b")
    assert checkpoint.key.broker_name == "broker-b"
    assert checkpoint.open_offsets() == [7, 8]
    assert decode_acknowledgement(b'{"ao":8,"c":"G","pt":5,"q":1,"so":7,"t":"T"}', "broker-b") == (
        ("T", "G", 1, 7, 5, "broker-b"),
        [8],
    )


@given(keys, distances, st.integers(0, 1 << 40), st.data())
def test_checkpoints_round_trip(key, distances, invisible_time, data):
    checkpoint = Checkpoint(
        key,
        invisible_time,
        distances,
        bits=data.draw(st.integers(0, (1 << len(distances)) - 1)),
        re_put_times=data.draw(st.none() | st.just("3")),
        suspend=data.draw(st.booleans()),
    )
    body = encode_checkpoint(checkpoint)
    fields = json.loads(body)
    assert fields["reviveTime"] == key.pop_time + invisible_time
    assert list(fields) == sorted(fields)  # as fastjson writes them
    again = decode_checkpoint(body, "?")
    for name in ("key", "invisible_time", "distances", "bits", "count", "re_put_times", "suspend"):
        assert getattr(again, name) == getattr(checkpoint, name), name


@given(keys, st.lists(st.integers(0, 1 << 50), min_size=1, max_size=32, unique=True))
def test_acknowledgements_round_trip(key, offsets):
    body = encode_acknowledgement(Acknowledgement(key, offsets))
    fields = json.loads(body)
    assert list(fields) == sorted(fields)
    assert ("aol" in fields) == (len(offsets) > 1)
    assert decode_acknowledgement(body, "?") == (key, offsets)


@given(keys, distances, st.data())
def test_bits_follow_acknowledgements(key, distances, data):
    """Against a set of offsets."""
    checkpoint = Checkpoint(key, 1, distances)
    left = {key.start_offset + distance for distance in distances}
    for distance in data.draw(st.lists(st.integers(-5, 1010))):
        offset = key.start_offset + distance
        assert checkpoint.acknowledge(offset) == (offset in left)
        left.discard(offset)
    assert checkpoint.open_offsets() == sorted(left)
    assert checkpoint.is_done == (not left)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"c":"G","it":1,"n":2,"pt":5,"q":1,"so":7}',
        b'{"c":"G","it":1,"n":200,"pt":5,"q":1,"so":7,"t":"T"}',
        b'{"c":"G","d":[0],"it":1,"n":2,"pt":5,"q":1,"so":7,"t":"T"}',
        b'{"c":"G","d":["0"],"it":1,"n":1,"pt":5,"q":1,"so":7,"t":"T"}',
        b'{"c":"G","it":1.5,"n":2,"pt":5,"q":1,"so":7,"t":"T"}',
    ],
)
def test_what_is_no_checkpoint_is_refused(body):
    with pytest.raises(FormatError):
        decode_checkpoint(body, "b")


@pytest.mark.parametrize("body", [b"", b"7", b"{}", b'{"aol":7,"c":"G","pt":5,"q":1,"so":7,"t":"T"}'])
def test_what_is_no_acknowledgement_is_refused(body):
    with pytest.raises(FormatError):
        decode_acknowledgement(body, "b")
