import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.java_properties import format_properties, parse_properties, read_properties
from mqlake.errors import ConfigError

PROPERTIES = r"""
# a comment, also with a backslash at its end \
! another
plain=value
  spaced   =   out
colon:value
blank	tab
only.key
joined = one, \
         two
escaped\ key\=\: = tab\there \u4e2d \ud83d\ude00 \q
trailing = x\\
twice = 1
twice = 2
"""


def test_properties_as_java_reads_them():
    assert parse_properties(PROPERTIES) == {
        "plain": "value",
        "spaced": "out",
        "colon": "value",
        "blank": "tab",
        "only.key": "",
        "joined": "one, two",
        "escaped key=:": "tab\there 中 😀 q",
        "trailing": "x\\",
        "twice": "2",
    }
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(r"a=\u12")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=5))
def test_round_trip(mapping):
    assert parse_properties(format_properties(mapping)) == mapping


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    try:
        assert all(isinstance(value, str) for value in parse_properties(text).values())
    except ConfigError:
        pass


def test_a_properties_file_in_either_encoding(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_bytes("storePathRootDir=/données\r\nbrokerName=a\r\n".encode())
    assert read_properties(str(path))["storePathRootDir"] == "/données"
    path.write_bytes("storePathRootDir=/données".encode("latin-1"))
    assert read_properties(str(path)) == {"storePathRootDir": "/données"}
    with pytest.raises(ConfigError, match="No such file"):
        read_properties(str(tmp_path / "missing.conf"))
    path.write_bytes(
        b"a=\\u" + 5000 * b"\x80"
    )  # the wrong file: its error named no file, and filled the screen
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: malformed") as raised:
        read_properties(str(path))
    assert len(str(raised.value)) < len(str(path)) + 500
