"""Schemas that change: what is taken up, what is refused, and the values moved to the new columns."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from mqlake.lake.bodies.evolution import SchemaChangeError, conform, fits, merged
from mqlake.lake.bodies.types import PLAIN, parse_ddl

OLD = parse_ddl(
    "id int, f float, item struct<name: string>, l array<struct<x: int>>, m map<string, int>, gone string"
)
NEW = parse_ddl(
    "new string, id long, f double, item struct<name: string, price: double>, l array<struct<x: long, y: int>>, "
    "m map<string, long>"
)
BOTH = parse_ddl(
    "id long, f double, item struct<name: string, price: double>, l array<struct<x: long, y: int>>, "
    "m map<string, long>, gone string, new string"
)


def test_new_fields_and_wider_numbers() -> None:
    assert merged(OLD, NEW) == BOTH
    assert merged(BOTH, OLD) == merged(BOTH, NEW) == merged(BOTH, BOTH) == BOTH
    assert merged(parse_ddl("at timestamp"), parse_ddl("at timestamp_ms")) == parse_ddl("at timestamp")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("a int", "a string", "a"),
        ("a long", "a double", "a"),
        ("a struct<b: array<int>>", "a struct<b: array<string>>", "a.b[]"),
        ("a struct<b: int>", "a map<string, int>", "a"),
        ("a decimal(9,2)", "a decimal(12,2)", "a"),
    ],
)
def test_anything_else_is_refused(old: str, new: str, field: str) -> None:
    with pytest.raises(
        SchemaChangeError, match="give the field a new name, or write to a new table"
    ) as error:
        merged(parse_ddl(old), parse_ddl(new))
    assert error.value.field == field and f"field {field!r} is " in str(error.value)


def test_what_fits_a_column_is_what_merging_leaves_as_it_is() -> None:
    """One definition: a type fits a column if the column need not change for it."""
    kinds = [
        parse_ddl(f"a {each}")
        for each in (*PLAIN, "array<int>", "array<long>", "map<string, float>", "struct<b: int>")
    ]
    for old, new in itertools.product([*kinds, OLD, NEW, BOTH], repeat=2):
        try:
            stays = merged(old, new).arrow == old.arrow
        except SchemaChangeError:
            stays = False
        assert fits(new.arrow, old.arrow) == stays, (str(new), str(old))
    assert not fits(pa.int64(), pa.int32()) and not fits(pa.int32(), pa.float64())


def test_values_move_to_the_columns() -> None:
    rows = [
        {"id": 1, "f": 0.5, "item": {"name": "x"}, "l": [{"x": 1}, None], "m": [("k", 1)], "gone": "g"},
        None,
        {"id": None, "f": None, "item": None, "l": None, "m": None, "gone": None},
    ]
    moved = conform(pa.array([{}, *rows], OLD.arrow).slice(1), BOTH.arrow)
    moved.validate(full=True)
    assert moved.type == BOTH.arrow and moved.to_pylist() == [
        {
            "id": 1,
            "f": 0.5,
            "item": {"name": "x", "price": None},
            "l": [{"x": 1, "y": None}, None],
            "m": [("k", 1)],
            "gone": "g",
            "new": None,
        },
        None,
        {"id": None, "f": None, "item": None, "l": None, "m": None, "gone": None, "new": None},
    ]
