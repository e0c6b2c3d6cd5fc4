"""Properties of many records against the parser of one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.lake.arrow import properties
from mqlake.lake.arrow.properties import Properties
from mqlake.message import bytes_to_properties

raw_properties = st.lists(
    st.one_of(
        st.text("ab\x01\x02é", max_size=12).map(str.encode),
        st.binary(max_size=8),
        st.sampled_from(
            [
                b"",
                b"KEYS\x01a b\x02TAGS\x01t\x02",
                b"TAGS\x01old",
                b"a\x011\x02a\x012\x02",
                b"\xe4\x01\xe4\x02",
            ]
        ),
    ),
    max_size=12,
)


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(properties, "kernels", lambda: None)


def read(records: list[bytes], gap: bytes = b"\x02?\x01") -> Properties:
    """The records with other bytes between them, as in a log."""
    starts, blob = [], b""
    for record in records:
        blob += gap
        starts.append(len(blob))
        blob += record
    lengths = np.array([len(record) for record in records], np.int32)
    return Properties(
        np.frombuffer(blob + gap, np.uint8),
        np.array(starts, np.int64),
        lengths,
        properties.kernels(),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw_properties)
def test_maps_are_those_of_the_plain_parser(records: list[bytes]) -> None:
    maps = read(records).as_map()
    maps.validate(full=True)
    assert [dict(pairs) for pairs in maps.to_pylist()] == [bytes_to_properties(record) for record in records]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw_properties, st.sampled_from(["TAGS", "a", "é", "KEYS"]))
def test_one_property(records: list[bytes], name: str) -> None:
    values = read(records).value_of(name)
    values.validate(full=True)
    expected = [bytes_to_properties(record).get(name) for record in records]
    assert values.to_pylist() == expected


@pytest.mark.parametrize("records", [[], [b""], [b"", b""], [b"\x02\x02", b"\x01", b"x\x01"]])
def test_nothing_to_find(records: list[bytes]) -> None:
    assert [dict(pairs) for pairs in read(records).as_map().to_pylist()] == [{}] * len(records)
