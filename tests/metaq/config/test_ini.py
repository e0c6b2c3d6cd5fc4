from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.config.ini import parse_ini, replace_sections

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


def test_sections_of_another_file_take_the_place_of_ones_own() -> None:
    own = "; head\n[system]\na = 1 \\\n[topic=no section]\n[topic=x]\nb=2\n[zookeeper]\nc=3"
    other = "[system]\na=9\n[ topic=y ]\n; said there\nd=4\n[topic=z]\n"
    text = replace_sections(own, other, "topic=")
    assert text.startswith(
        "; head\n[system]\na = 1 \\\n[topic=no section]\n[zookeeper]\nc=3\n[ topic=y ]\n; said"
    )
    assert parse_ini(text) == {
        "system": {"a": "1 [topic=no section]"},
        "zookeeper": {"c": "3"},
        "topic=y": {"d": "4"},
        "topic=z": {},
    }
