"""Properties survive the trip through their stored text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.message import (
    STRING_PROPERTY,
    bytes_to_properties,
    properties_to_bytes,
    properties_to_string,
    string_to_properties,
)

NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1)


class TestProperties:
    @given(st.dictionaries(NAMES, VALUES))
    def test_round_trip(self, properties):
        text = properties_to_string(properties)
        assert text == "" or text.endswith("\x02")
        assert string_to_properties(text) == properties
        assert string_to_properties(text.removesuffix("\x02")) == properties
        assert properties_to_bytes(properties) == text.encode()
        for data in text.encode(), bytearray(text.encode()), memoryview(text.encode()):
            assert bytes_to_properties(data) == properties

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", {}),
            ("\x02\x02", {}),
            ("a\x01b", {"a": "b"}),
            ("a\x01\x02c\x01d", {"c": "d"}),
            ("\x01b\x02c\x01d\x02", {"c": "d"}),
            ("ab\x02c\x01d\x02", {"c": "d"}),
            ("a\x01b\x01c\x02", {"a": "b\x01c"}),
            ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ],
    )
    def test_what_is_no_pair_is_skipped(self, text, expected):
        assert string_to_properties(text) == expected

    def test_none_is_left_out(self):
        assert properties_to_string({"a": None, "b": "c"}) == "b\x01c\x02"  # type: ignore[dict-item]
        assert properties_to_bytes({"a": None, "b": "c"}) == b"b\x01c\x02"  # type: ignore[dict-item]

    def test_lone_surrogates_become_question_marks(self):
        assert properties_to_bytes({"a": "x\ud800y"}) == b"a\x01x?y\x02"

    @given(st.binary())
    def test_any_bytes_parse(self, data):
        for name, value in bytes_to_properties(data).items():
            assert name
            assert value

    def test_reserved_properties(self):
        assert {"KEYS", "TAGS", "UNIQ_KEY", "__CRC32#", "_SYS_MSG_PRIORITY_", "E_T"} <= STRING_PROPERTY
        assert "color" not in STRING_PROPERTY
