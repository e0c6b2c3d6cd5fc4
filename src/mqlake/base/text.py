"""Text that cannot travel: UTF-8 has no bytes for a lone surrogate.

Python makes such text of bytes that are none in the terminal's encoding (a command line's arguments, file names), and
of JSON that escapes half a character.
"""

from __future__ import annotations


def unencodable(text: str) -> str:
    """Names what UTF-8 cannot hold in `text`, as the rest of a sentence; empty if it can hold it all."""
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        kind = (
            f"the byte 0x{code - 0xDC00:02X}, which is no UTF-8"
            if 0xDC80 <= code <= 0xDCFF
            else "half a character"
        )
        return f"holds {kind}, at character {error.start + 1} (U+{code:04X}); give it as UTF-8"
    return ""


def encodable(text: str) -> str:
    """The text with `?` for what UTF-8 cannot hold, as Java writes it."""
    return text.encode("utf-8", "replace").decode()
