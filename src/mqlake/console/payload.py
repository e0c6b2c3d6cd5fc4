"""The views of a body: decoded by its schema, JSON, text, and hexadecimal."""

from __future__ import annotations

from typing import Any

from mqlake.console.bodies import Bodies, Decoded
from mqlake.console.excerpts import Excerpt
from mqlake.console.json_text import indented
from mqlake.console.record_bytes import ascii_of

TEXT_SHOWN = 256 * 1024
"""Characters of a body that a page shows."""
HEX_SHOWN = 4096


def payload_views(found: Excerpt, topic: str, bodies: Bodies) -> dict[str, Any]:
    """`best` names the view to show first; a view that makes no sense for this body is missing.

    `size` counts what was unpacked; `more` says that the body is longer, `cut` that not all of it is shown.
    """
    views = _views(found)
    decoded = bodies.decode(topic, found.body) if found.is_whole and not found.note else None
    if decoded is None:
        return views | {"note": found.note}
    if decoded.reason:
        return views | {"note": _reason(decoded)}
    text, is_whole = indented(decoded.text, TEXT_SHOWN) or (decoded.text[:TEXT_SHOWN], True)
    return views | {"decoded": text, "format": decoded.format, "best": "decoded", "cut": not is_whole}


def _reason(decoded: Decoded) -> str:
    return f"this is no {decoded.format} of the schema that was given: {decoded.reason}"


def _views(found: Excerpt) -> dict[str, Any]:
    body = found.body
    is_whole = found.is_whole and len(body) <= TEXT_SHOWN
    views: dict[str, Any] = {
        "size": len(body),
        "more": not found.is_whole,
        "cut": not is_whole,
        "hex": hex_rows(body[:HEX_SHOWN]),
        "note": "",
    }
    try:
        text = body[:TEXT_SHOWN].decode("utf-8", "strict" if is_whole else "ignore")
    except UnicodeDecodeError:
        return views | {"best": "hex"}
    if any(ord(each) < 32 and each not in "\r\n\t" for each in text[:4096]):
        return views | {"best": "hex", "text": text}
    views["text"] = text
    if (shown := indented(text, TEXT_SHOWN, is_whole=is_whole)) is not None:
        views["json"], shown_whole = shown
        views["cut"] = not shown_whole
    return views | {"best": "json" if "json" in views else "text"}


def hex_rows(data: bytes) -> list[dict[str, Any]]:
    """16 bytes a row: `offset`, `hex` and `text`."""
    return [
        {
            "offset": start,
            "hex": data[start : start + 16].hex(" "),
            "text": ascii_of(data[start : start + 16]),
        }
        for start in range(0, len(data), 16)
    ]
