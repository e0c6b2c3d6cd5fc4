"""The DDL of columns: read, written and made Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.bodies.types import PLAIN, ColumnType, array_of, decimal_of, map_of, parse_ddl, struct_of

names = st.one_of(
    st.sampled_from(["a", "b2", "struct", "größe", "a b", "x`y", "a:b,<>", "1", "map"]),
    st.text(min_size=1, max_size=3),
)


def structs(kinds: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    fields = st.lists(
        st.tuples(names, kinds), min_size=1, max_size=3, unique_by=lambda field: field[0].lower()
    )
    return fields.map(struct_of)


kinds = st.recursive(
    st.one_of(st.sampled_from(list(PLAIN)).map(ColumnType), st.just(decimal_of(9, 2))),
    lambda inner: st.one_of(inner.map(array_of), inner.map(map_of), structs(inner)),
    max_leaves=6,
)


@given(structs(kinds))
@settings(max_examples=40)
def test_what_is_written_is_read_again(kind: ColumnType) -> None:
    assert parse_ddl(kind.ddl) == kind == parse_ddl(str(kind))


def test_arrow_types() -> None:
    kind = parse_ddl(
        "id BIGINT, `a b` string, at timestamp_ms, any json, l array<struct<x:int>>, "
        "m map<string, double>, d decimal(9, 2)"
    )
    assert kind.arrow == pa.struct(
        [
            ("id", pa.int64()),
            ("a b", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("any", pa.string()),
            ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int32())])))),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("d", pa.decimal128(9, 2)),
        ]
    )
    assert kind.uses("json") and kind.uses("map") and not kind.uses("date")


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "ends where a column was expected"),
        ("id", "''"),
        ("id long,", "ends where a column was expected"),
        ("id long name string", "'name' after the column 'id'"),
        ("id lonk", "long"),
        ("a b long", "'b'"),
        ("a map<long, long>", "keys of a map are strings, not long"),
        ("a array<long", "'its end' at 12, where '>' was expected"),
        ("a struct<b: long>>", "'>' after the column 'a'"),
        ("a long, A string", "'a' and 'A', one name to SQL"),
        ("a decimal(40,2)", "1 to 38 digits"),
        ("; long", "';' where a column was expected"),
    ],
)
def test_what_is_wrong_is_said(ddl: str, said: str) -> None:
    with pytest.raises((ConfigError, UnknownKeyError)) as error:
        parse_ddl(ddl)
    assert said in str(error.value)
