"""What becomes of a batch of a stream: by the rule, and by random lives of streams against a list of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import StoreCorruptError, TableError
from mqlake.lake.tables.files import QueueRange
from mqlake.lake.tables.sink import (
    APPEND,
    FAIL,
    SINK,
    SKIP,
    App,
    Batch,
    SinkState,
    asked,
    decide,
    floors_of,
)

QUEUE = "Orders@a:0"


def batch(number: int, first: int, last: int, query: str = "q", app: str = "", queue: str = QUEUE) -> Batch:
    rows = {queue: QueueRange(first, last, last - first + 1)} if last >= first else {}
    return Batch(app or query, query, number, rows, bool(app))


def after(*batches: Batch) -> SinkState:
    state = None
    for each in batches:
        state = decide(state, each, FAIL, "t")
    assert state is not None
    return state


WRITTEN = after(batch(0, 0, 9), batch(1, 10, 19))


def test_batches_follow_each_other() -> None:
    assert WRITTEN.apps == {"q": App("q", 1, {QUEUE: 20})} and WRITTEN.queues == {QUEUE: (20, "q")}
    late = decide(WRITTEN, batch(2, 5, 25), FAIL, "t")
    assert late is not None and late.queues == {QUEUE: (26, "q")}, (
        "a stream may give out its rows in any order"
    )


def test_the_last_batch_may_come_again() -> None:
    assert decide(WRITTEN, batch(1, 10, 19), FAIL, "t") is None
    empty = after(batch(0, 0, 9), batch(1, 0, -1))
    assert decide(empty, batch(1, 0, -1), FAIL, "t") is None
    assert decide(WRITTEN, Batch("q", "q", 1, None), FAIL, "t") is None


@pytest.mark.parametrize(
    ("said", "given_batch"),
    [
        ("the checkpoint is older", batch(1, 10, 29)),
        ("the checkpoint is older", batch(1, 10, 14)),
        ("the checkpoint is older", batch(0, 0, 9)),
        ("was taken back", batch(3, 30, 39)),
        ("there twice", batch(0, 0, 9, query="new")),
        ("there twice", batch(0, 15, 29, query="new")),
        ("3 batches were written, the table has none", batch(3, 30, 39, query="new")),
        ("began again", Batch("q", "new", 0, None, True)),
        ("streams have written to it before", Batch("new", "new", 0, None)),
    ],
)
def test_what_is_refused_says_what_to_do(said: str, given_batch: Batch) -> None:
    with pytest.raises(TableError, match=said) as caught:
        decide(WRITTEN, given_batch, FAIL, "shop.Orders")
    assert "shop.Orders" in str(caught.value) and "onReplay=" in str(caught.value)
    taken = decide(WRITTEN, given_batch, APPEND, "shop.Orders")
    assert taken is not None and taken.apps[given_batch.app].query == given_batch.query


def test_a_new_query_goes_on_where_the_table_ends() -> None:
    state = decide(WRITTEN, batch(0, 20, 29, query="new"), FAIL, "t")
    assert state is not None and state.queues == {QUEUE: (30, "new")}
    with pytest.raises(TableError, match="another stream has written rows of Orders@a:0"):
        decide(state, batch(2, 20, 24), FAIL, "t")
    assert decide(WRITTEN, Batch("named", "new", 0, None, True), FAIL, "t") is not None
    assert decide(WRITTEN, batch(0, 0, 9, query="new", queue="Other@a:0"), FAIL, "t") is not None


def test_a_state_is_kept_in_properties_and_transactions() -> None:
    state = replace(WRITTEN, commit_id="ab" * 16, rows=7, writer="q")
    assert SinkState.from_properties(state.to_properties(), "t") == replace(state, writer="")
    kept = state.to_transactions()
    cut = SinkState.from_transactions(kept.get, asked("q", "q"))
    assert cut is not None and cut.apps == {"q": App("q", 1)} and cut.is_cut
    assert decide(cut, batch(1, 10, 19), FAIL, "t") is None
    going_on = decide(cut, batch(2, 20, 29), FAIL, "t")
    assert going_on is not None and not going_on.is_cut
    other = SinkState.from_transactions(kept.get, asked("q", "new"))
    assert other is not None
    with pytest.raises(TableError, match="began again"):
        decide(other, batch(0, 0, 9, query="new", app="q"), FAIL, "t")
    assert SinkState.from_transactions({}.get, asked("q", "q")) is None
    with pytest.raises(StoreCorruptError, match="cannot be read"):
        SinkState.from_properties({SINK: "{}"}, "t")


STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "run", "run", "again", "new", "older", "rollback"]), st.integers(1, 6)),
    max_size=25,
)


@given(STEPS, st.sampled_from([FAIL, SKIP]))
def test_streams_whose_checkpoints_and_tables_go_back(steps: list[tuple[str, int]], on_replay: str) -> None:
    """The oracle is a list of the rows in the table: none is there twice, and none is missing below its end unless the
    stream was refused and nobody began it with a new checkpoint."""
    table: list[tuple[SinkState | None, list[int]]] = [(None, [])]
    checkpoints = [("q0", 0, 0)]  # query, next batch, next offset
    planned: tuple[int, int] | None = None
    queries = 0
    for action, size in steps:
        query, number, offset = checkpoints[-1]
        state, rows = table[-1]
        if action == "new":
            queries += 1
            checkpoints = [(f"q{queries}", 0, 0)]
            planned = None
            continue
        if action == "older":
            checkpoints = checkpoints[: max(1, len(checkpoints) - size)]
            planned = None
            continue
        if action == "rollback":
            table = table[: max(1, len(table) - size)]
            continue
        first, last = planned if planned is not None else (offset, offset + size - 1)
        planned = (first, last)
        floors = floors_of(state, query, query, on_replay)
        kept = [n for n in range(first, last + 1) if n >= floors.get(QUEUE, 0)]
        written = {QUEUE: QueueRange(kept[0], kept[-1], len(kept))} if kept else {}
        try:
            following = decide(state, Batch(query, query, number, written), on_replay, "t")
        except TableError:
            continue
        if following is not None:
            table.append((following, rows + kept))
        if action == "run":  # else Spark lost its note of the batch's end
            checkpoints.append((query, number + 1, last + 1))
            planned = None
        found = table[-1][1]
        assert max(Counter(found).values(), default=1) == 1
        assert sorted(found) == list(range(max(found, default=-1) + 1))


def test_which_rows_are_left_out_as_the_table_has_them() -> None:
    """A stream that goes on knows its own rows; those of other streams count with onReplay=skip alone."""
    other = "Orders@a:1"
    state = replace(WRITTEN, queues={**WRITTEN.queues, other: (7, "other")})
    assert floors_of(state, "q", "q", SKIP) == {other: 7}
    assert floors_of(state, "q", "new", SKIP) == floors_of(state, "new", "new", SKIP) == {QUEUE: 20, other: 7}
    known = replace(state, apps={"q": App("q", 1, {}, {QUEUE: 3, other: 9})})
    assert floors_of(known, "q", "q", SKIP) == {QUEUE: 3, other: 9}
    assert floors_of(known, "q", "q", FAIL) == {QUEUE: 3, other: 9}
    for app, query, on_replay in (("q", "new", FAIL), ("new", "new", FAIL), ("q", "q", APPEND)):
        assert floors_of(known, app, query, on_replay) == {}
    assert floors_of(None, "q", "q", SKIP) == {}


@pytest.mark.parametrize(("count", "said"), [(3, ""), (4, " and others")])
def test_some_of_many_queues_are_named(count: int, said: str) -> None:
    names = [f"Orders@a:{number}" for number in range(count)]
    rows = {name: QueueRange(0, 9, 10) for name in names}
    state = decide(None, Batch("q", "q", 0, rows), FAIL, "t")
    with pytest.raises(TableError) as caught:
        decide(state, Batch("new", "new", 0, rows), FAIL, "t")
    assert f"{', '.join(names[:3])}{said}" in str(caught.value) and said in str(caught.value)
    assert ("and others" in str(caught.value)) is bool(said)
