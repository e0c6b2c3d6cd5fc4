"""JSON texts as values of Python, by one set of rules for all that reads bodies: orjson's, and a limit to the nesting.

Every parser has a limit of its own (orjson 1,024 levels, its writer 254, recursion in Python what the interpreter
allows), so without this one it would depend on the column, and on the version of Python, which bodies can be read.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson

DEPTH_MAX = 200
"""Levels of objects and arrays in a body."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def loads(body: bytes) -> Any:
    """The value. ValueError for what is no JSON, and for more than DEPTH_MAX levels."""
    # cheap for most bodies, which have fewer brackets in all
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and depth(body) > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels of objects and arrays")
    return orjson.loads(body)


def depth(body: bytes) -> int:
    """How many levels of objects and arrays a JSON text has."""
    octets = np.frombuffer(_TEXT.sub(b"", body), np.uint8)
    opens, closes = (octets == ord("[")) | (octets == ord("{")), (octets == ord("]")) | (octets == ord("}"))
    return int(np.cumsum(opens.astype(np.int64) - closes).max(initial=0))
