"""freshness: times as clients of each language write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth.freshness import born_at, is_fresh, time_of
from mqlake.remoting.command import RemotingCommand


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("20260822T101500Z", 1787393700_000),  # Java, C++, Go, Node
        ("2026-08-22T10:15:00Z", 1787393700_000),
        ("2026-08-22T10:15:00.123456789+00:00", 1787393700_123),  # Rust
        ("2026-08-22T12:15:00+02:00", 1787393700_000),
        ("20260822T101500", 1787393700_000),
        ("yesterday", None),
        ("", None),
        ("99999999T999999Z", None),
        ("0001-01-01T00:00:00+14:00", -62135647200_000),
    ],
)
def test_times_of_grpc(text: str, ms: int | None) -> None:
    assert time_of(text) == ms


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_none(text: str) -> None:
    found = time_of(text)
    assert found is None or isinstance(found, int)


@pytest.mark.parametrize(
    ("code", "fields", "born"),
    [
        (10, {"bornTimestamp": "17"}, 17),
        (10, {"g": "17"}, None),
        (310, {"g": "-1"}, -1),
        (320, {"g": "x"}, None),
        (36, {"bornTimestamp": "17"}, None),
        (999_999, {"g": "17"}, None),
    ],
)
def test_when_a_send_was_made(code: int, fields: dict[str, str], born: int | None) -> None:
    assert born_at(RemotingCommand(code, ext_fields=fields)) == born


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.integers(0, 10**9))
def test_fresh_is_near_in_either_direction(made_at: int, now: int, age_max_s: int) -> None:
    assert is_fresh(made_at, now, age_max_s) == (now - age_max_s * 1000 <= made_at <= now + age_max_s * 1000)
    assert not is_fresh(None, now, age_max_s)
