"""Bodies: the formats of bodies that the operator has named, and one body decoded by the format of its topic.

    --body 'Orders=avro:order.avsc'   --body 'Events-*=protobuf:events.desc#shop.Event'   --body '*=confluent:schemas/'

The decoders are those of the lake (`mqlake.lake.bodies`); they are imported when the first format is named.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mqlake.errors import ConfigError

KINDS = ("avro", "protobuf", "json-schema", "confluent")


@dataclass(frozen=True, slots=True)
class Decoded:
    """`text` is JSON; empty where the body does not fit, with the reason."""

    format: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Format:
    pattern: str
    name: str
    decoder: Any


class Bodies:
    """The first format whose pattern fits a topic decides."""

    def __init__(self, formats: Sequence[_Format] = ()) -> None:
        self._formats = formats

    @classmethod
    def given(cls, texts: Sequence[str]) -> Bodies:
        """Each text is TOPIC=KIND:FILE, for Protobuf also FILE#MESSAGE; TOPIC may have `*` and `?`.

        ConfigError for another form or a schema that cannot be used, MissingPartError without the extra `bodies`.
        """
        return cls([_format(text) for text in texts])

    def decode(self, topic: str, body: bytes) -> Decoded | None:
        """None: no format is named for the topic."""
        for each in self._formats:
            if fnmatch.fnmatchcase(topic, each.pattern):
                return _decoded(each, body)
        return None


def _format(text: str) -> _Format:
    pattern, equals, rest = text.partition("=")
    kind, colon, file = rest.partition(":")
    if not (pattern and equals and colon and file) or kind not in KINDS:
        raise ConfigError(f"{text!r}: write TOPIC=KIND:FILE, where KIND is one of {', '.join(KINDS)}")
    from mqlake.lake.requirements import require_modules

    require_modules("pyarrow", "fastavro", "ptars", command="pip install 'mqlake[bodies]'")
    from mqlake.lake.bodies.body_format import BodyFormat

    return _Format(pattern, kind, BodyFormat.parse(rest).decoder())


def _decoded(format: _Format, body: bytes) -> Decoded:
    import pyarrow as pa

    value, reason = format.decoder.decode(pa.array([body], pa.binary()))
    if (why := reason[0].as_py()) is not None:
        return Decoded(format.name, "", why)
    shown = json.dumps(value[0].as_py(), ensure_ascii=False, default=_plain)
    return Decoded(format.name, shown, "")


def _plain(value: Any) -> str:
    """Returns a text for values that JSON has no form for: bytes in hexadecimal, times and decimals as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
