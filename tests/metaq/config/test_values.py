from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.config.values import DeletePolicy, parse_bool, parse_delete_policy, parse_int


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024*1024*1024", 1 << 30), ("7", 7), (" -3 ", -3), ("(2+3)*4-1", 19), ("-7/2", -3), ("-7%2", -1)],
)
def test_numbers_are_expressions(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", "2**99", "1.5", "__import__('os')", "1;2", "9" * 30, "(" * 300, "True", "1_0+"]
)
def test_other_things_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="not a number"):
        parse_int(text)


def test_truth() -> None:
    assert parse_bool("true") and not parse_bool("False")
    with pytest.raises(ConfigError):
        parse_bool("yes")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete,168", DeletePolicy("delete", 168 * 3600_000)),
        ("delete,3s", DeletePolicy("delete", 3000)),
        ("delete,2m", DeletePolicy("delete", 120_000)),
        ("archive,1h", DeletePolicy("archive", 3600_000)),
        ("archive,24,true", DeletePolicy("archive", 24 * 3600_000, True)),
        ("archive,24,false", DeletePolicy("archive", 24 * 3600_000)),
    ],
)
def test_delete_policies(text: str, policy: DeletePolicy) -> None:
    assert parse_delete_policy(text) == policy


@pytest.mark.parametrize(
    "text", ["", "keep,1", "delete", "delete,", "delete,x", "delete,1d", "archive,1,perhaps"]
)
def test_policies_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_delete_policy(text)
