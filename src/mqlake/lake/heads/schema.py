"""The row of a head, and what a file of heads says of the log file that it was made from.

    DIR/commitlog/00000000000000000000      a full log file, which never changes
    DIR/heads/00000000000000000000.parquet  its records but for their bodies, a row each, in the order of the log

The columns are those of the log's rows (lake.arrow.schema) with `unpack` off, and `bodySize`: the bytes of the body as
it is stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mqlake.errors import UnfitHeadsError
from mqlake.lake.arrow.schema import arrow_schema

COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "storeTimestamp",
    "bornTimestamp",
    "sysFlag",
    "reconsumeTimes",
    "tags",
    "keys",
    "uniqKey",
    "bodySize",
)

SCHEMA = arrow_schema(COLUMNS)

FORMAT = 1
"""Version of what Origin says and of the seal."""

ORIGIN_KEY = b"mqlake.heads"
"""Key of the Origin in the metadata of the Parquet file."""


@dataclass(frozen=True)
class Origin:
    """The log file that a file of heads was made from. Offsets are physical."""

    file: str
    """Name of the log file."""
    begin: int
    end: int
    """The range of the log file, all of it."""
    records: int
    checksum: int
    """CRC-32 over size and body CRC of each record."""
    last: int
    """Offset of the last record; `begin` if there is none."""
    last_size: int
    """Bytes of the last record; 0 if there is none."""
    tail: int
    """CRC-32 of what lies before the end of the last record, and of the head of the blank behind it."""
    writer: str
    format: int = FORMAT

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Origin:
        """UnfitHeadsError for what is none, or one of another version."""
        try:
            given = json.loads(text)
            version = given["format"]
            if version != FORMAT:
                raise UnfitHeadsError(f"heads of format {version!r}; this version reads {FORMAT}")
            found = cls(**given)
        except (ValueError, TypeError, KeyError) as error:
            raise UnfitHeadsError(f"no origin of heads: {error}") from error
        numbers = (value for name, value in asdict(found).items() if name not in ("file", "writer"))
        if not all(isinstance(value, int) for value in numbers):
            raise UnfitHeadsError("no origin of heads: a number is none")
        return found
