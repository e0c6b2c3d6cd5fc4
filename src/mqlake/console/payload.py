"""The views of a body: decoded by its schema, JSON, text, and hexadecimal."""

from __future__ import annotations

import json
from typing import Any

from mqlake.console.bodies import Decoded
from mqlake.console.record_bytes import ascii_of

TEXT_SHOWN = 256 * 1024
"""Characters of a body that a page shows."""
HEX_SHOWN = 4096


def payload_views(body: bytes, decoded: Decoded | None = None) -> dict[str, Any]:
    """`best` names the view to show first; a view that makes no sense for this body is missing."""
    views = _views(body)
    if decoded is None:
        return views
    if decoded.reason:
        return views | {"note": f"this is no {decoded.format} of the schema that was given: {decoded.reason}"}
    return views | {"decoded": decoded.text, "format": decoded.format, "best": "decoded"}


def _views(body: bytes) -> dict[str, Any]:
    views: dict[str, Any] = {
        "size": len(body),
        "cut": len(body) > TEXT_SHOWN,
        "hex": hex_rows(body[:HEX_SHOWN]),
        "note": "",
    }
    try:
        text = body[:TEXT_SHOWN].decode("utf-8", "strict" if len(body) <= TEXT_SHOWN else "ignore")
    except UnicodeDecodeError:
        return views | {"best": "hex"}
    if any(ord(each) < 32 and each not in "\r\n\t" for each in text[:4096]):
        return views | {"best": "hex", "text": text}
    views["text"] = text
    if len(body) <= TEXT_SHOWN and text.lstrip()[:1] in ("{", "["):
        try:
            views["json"] = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
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
