from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.config.ini import parse_ini

TEXT = r"""
; a comment
# another
[system]
brokerId = 0
dataPath: /a b/c
deletePolicy = archive,24, \
               true
path=C:\\x\ty
x =
[topic=a\u0062c]
stat=false
[system]
brokerId=7
"""


def test_sections_and_keys() -> None:
    assert parse_ini(TEXT) == {
        "system": {
            "brokerId": "7",
            "dataPath": "/a b/c",
            "deletePolicy": "archive,24, true",
            "path": "C:\\x\ty",
            "x": "",
        },
        "topic=abc": {"stat": "false"},
    }
    assert parse_ini("") == {}
    assert parse_ini("\ufeff[a]\r\nb=c\\") == {"a": {"b": "c"}}


@pytest.mark.parametrize(("text", "line"), [("[a\n", 1), ("[a]\n\nb\n", 3), ("a=b\n", 1)])
def test_what_is_wrong_is_named_by_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"line {line}:"):
        parse_ini(text)
