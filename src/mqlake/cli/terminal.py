"""Makes text of others safe for a terminal: without the characters that would steer it.

Messages are what somebody sent: ESC sequences in them may rewrite the screen or type commands, BEL rings, U+202E turns
text around. A terminal shows such characters as the escapes of JSON; a pipe or a file gets the bytes as they are.
"""

from __future__ import annotations

import codecs
import re

_STEERING = re.compile(
    # control characters but tab and newline, marks of direction, separators of lines, tags, bytes that are no text
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with escapes for what would steer a terminal. Bytes that were no text (surrogates) become `\\xNN`."""
    return _STEERING.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number > 0xFFFF:  # as JSON has it: two halves
        number -= 0x10000
        return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
    return f"\\u{number:04x}"


class Visible:
    """A stream of bytes made visible, piece after piece; a character may be cut by the end of a piece."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")

    def __call__(self, data: bytes) -> bytes:
        return visible(self._decoder.decode(data)).encode(self._encoding, "replace")
