"""A table's position as properties and as Delta's txn actions: both give it back, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.offsets import LastMessage
from mqlake.lake.tables.state import (
    COMMIT_ID,
    LASTS,
    OFFSETS,
    POSITION,
    ROWS,
    UNTIL,
    TableState,
    commit_number,
    queue_name,
)

STATE = TableState(
    {"a": Mark(4096, 77), "b": Mark(12)},
    {"a:0": 5, "a:3": 900, "b:1": 7},
    "0123456789abcdef" * 2,
    11,
    1_700_000_000_000,
    {"a:3": LastMessage(4000, 1_699_999_999_000), "b:1": LastMessage(0, 5)},
)


def test_properties() -> None:
    given = STATE.to_properties()
    assert TableState.from_properties(given, "t") == STATE
    assert json.loads(given[POSITION]) == {"a": {"offset": 4096, "tail": 77}, "b": {"offset": 12}}
    early = {name: given[name] for name in (POSITION, OFFSETS)}  # the rest came later
    assert TableState.from_properties(early, "t") == TableState(STATE.stores, STATE.queues)


@pytest.mark.parametrize("name", [POSITION, OFFSETS, LASTS, ROWS, UNTIL])
@pytest.mark.parametrize("text", ["", "{", "[5]", '{"a:0": {}}', '{"a:0": [1]}', '{"a:0": "x"}', "null", "x"])
def test_properties_that_are_no_position(name: str, text: str) -> None:
    with pytest.raises(StoreCorruptError, match=r"^mqlake\.T.*its position cannot be read"):
        TableState.from_properties({**STATE.to_properties(), name: text}, "mqlake.T")


def test_properties_that_are_missing() -> None:
    for name in (POSITION, OFFSETS):
        given = STATE.to_properties()
        del given[name]
        with pytest.raises(StoreCorruptError, match="its position cannot be read"):
            TableState.from_properties(given, "t")
    given = STATE.to_properties()
    del given[COMMIT_ID]
    assert TableState.from_properties(given, "t").commit_id == ""


def test_transactions() -> None:
    """Numbers of 63 bits by names: the commit's id is cut to what such a number holds, rows are not kept."""
    kept = STATE.to_transactions()
    assert all(0 <= value < 1 << 63 for value in kept.values())
    assert kept["commit"] == commit_number(STATE.commit_id) == 0x0123456789ABCDE
    assert commit_number("f" * 32) == (1 << 60) - 1
    found = TableState.from_transactions(kept.get, ["a", "b", "not there"])
    assert found == TableState(STATE.stores, STATE.queues, until=STATE.until, lasts=STATE.lasts)
    only = TableState.from_transactions(kept.get, ["b"])
    assert only == TableState(
        {"b": Mark(12)}, {"b:1": 7}, until=STATE.until, lasts={"b:1": LastMessage(0, 5)}
    )
    assert TableState.from_transactions({}.get, ["a"]) is None
    assert TableState.from_transactions({"commit": 1}.get, ["a"]) == TableState()


def test_queues_have_the_names_of_their_brokers() -> None:
    assert queue_name("broker-a", 3) == "broker-a:3"
