"""JSON as a page shows it, whole and cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.console.json_text import indented

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
DOCUMENTS = st.lists(VALUES, max_size=4) | st.dictionaries(st.text(), VALUES, max_size=4)


def surrogates(text: str) -> bool:
    return any(0xD800 <= ord(each) < 0xE000 for each in text)


@given(DOCUMENTS, st.sampled_from([None, 4]), st.booleans())
def test_a_whole_document_looks_as_python_would_indent_it(
    value: object, indent: int | None, ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    if not surrogates(expected):
        assert indented(text, 1 << 20) == (expected, True)


@given(DOCUMENTS, st.data())
def test_a_document_that_is_cut_shows_its_beginning(value: object, data: st.DataObject) -> None:
    """A body longer than a page is still shown as JSON."""
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text)))]
    found = indented(cut, 1 << 20, is_whole=False)
    assert found is not None and not found[1]
    whole, _ = indented(text, 1 << 20) or ("", False)
    assert whole.startswith(found[0].rstrip())


@pytest.mark.parametrize("depth", [100, 900])
def test_no_document_makes_a_page_larger_than_it_may_be(depth: int) -> None:
    """Deep nesting makes a text of 256 KiB 200 times as long with its indentation."""
    text = "[" + ",".join(["[" * depth + "]" * depth] * (100_000 // depth)) + "]"
    found = indented(text, 50_000)
    assert found is not None and len(found[0]) == 50_000 and not found[1]


def test_what_is_empty_stays_on_its_line() -> None:
    assert indented('{"a": [ ], "b": {\n}, "c": []}', 1000) == (
        '{\n  "a": [],\n  "b": {},\n  "c": []\n}',
        True,
    )


def test_half_a_character_stays_the_escape_that_it_is() -> None:
    """As a character it could be written into no page."""
    found = indented('{"a": "\\ud800", "b": "\\u00e4"}', 1000)
    assert found == ('{\n  "a": "\\ud800",\n  "b": "ä"\n}', True)


@pytest.mark.parametrize(
    "text",
    ["", "plain", '"text"', "[1", "[1}", "{]", "[ }", "[1] [2]", "[2026-01-31 12:00] started", "[" * 5000],
)
def test_what_is_no_json_is_not_shown_as_such(text: str) -> None:
    assert indented(text, 1000) is None


@pytest.mark.parametrize(
    "text", ["[1} ...", "[ } ...", "]", "[1] [2] ...", "[2026-01-31 12:00] started", "[1, x y"]
)
def test_nor_is_the_beginning_of_what_is_no_json(text: str) -> None:
    assert indented(text, 1000, is_whole=False) is None
