"""Text that UTF-8 cannot hold."""

from __future__ import annotations

import pytest

from mqlake.base.text import encodable, unencodable


@pytest.mark.parametrize("text", ["", "plain", "日本 😀"])
def test_text_that_travels(text: str):
    assert unencodable(text) == ""
    assert encodable(text) == text


def test_what_cannot_travel_is_named():
    """Without the place nobody finds the one bad character of a long property."""
    surname = b"M\xfcller".decode(errors="surrogateescape")
    assert (
        unencodable(surname)
        == "holds the byte 0xFC, which is no UTF-8, at character 2 (U+DCFC); give it as UTF-8"
    )
    assert unencodable("日\ud83d") == "holds half a character, at character 2 (U+D83D); give it as UTF-8"
    assert encodable("a\ud83d\udcffb") == "a??b"
