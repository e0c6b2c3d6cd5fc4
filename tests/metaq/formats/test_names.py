from __future__ import annotations

import pytest

from mqlake.errors import FormatError
from mqlake.metaq.formats.names import parse_store_name, segment_name, segment_offset, store_name


def test_segments() -> None:
    assert segment_name(0) == "00000000000000000000.meta"
    assert segment_offset(segment_name(1234567)) == 1234567
    for name in ("0.meta", "00000000000000000000", "00000000000000000000.meta.arc", "x", "lock"):
        assert segment_offset(name) is None


def test_a_topic_may_have_dashes_in_it() -> None:
    assert parse_store_name(store_name("a-b-c", 7)) == ("a-b-c", 7)
    for name in ("transactions", "-1", "a-", "a-b", "a--", "a-2147483648", f"a-{10**30}"):
        with pytest.raises(FormatError):
            parse_store_name(name)
