"""Transaction ids as text: `TX:<sessionId>:<n>` and `XID:<formatId>:<global>:<branch>:<uniqueQualifier>`.

A local transaction belongs to the session of a connection; an XA transaction to the transaction manager that
chose its global and branch ids (bytes, written as lower-case hex) and to the resource `uniqueQualifier`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.errors import FormatError

_INT32 = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class LocalTransactionId:
    session_id: str
    value: int

    def __str__(self) -> str:
        return f"TX:{self.session_id}:{self.value}"


@dataclass(frozen=True, slots=True)
class XATransactionId:
    format_id: int
    global_transaction_id: bytes
    branch_qualifier: bytes
    unique_qualifier: str

    def __str__(self) -> str:
        parts = (self.format_id, self.global_transaction_id.hex(), self.branch_qualifier.hex())
        return ":".join(("XID", *map(str, parts), self.unique_qualifier))


TransactionId = LocalTransactionId | XATransactionId


def parse_transaction_id(text: str) -> TransactionId:
    """The inverse of `str()`. Raises FormatError."""
    parts = text.split(":")
    try:
        if parts[0] == "TX" and len(parts) == 3:
            return LocalTransactionId(parts[1], _number(parts[2]))
        if parts[0] == "XID" and len(parts) == 5:
            return XATransactionId(_number(parts[1]), _bytes(parts[2]), _bytes(parts[3]), parts[4])
    except ValueError:
        pass
    raise FormatError(0, f"{text!r} is not a transaction id")


def _number(text: str) -> int:
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        raise ValueError(text)
    value = int(text)
    if value not in _INT32:
        raise ValueError(text)
    return value


def _bytes(text: str) -> bytes:
    if any(character.isspace() for character in text):
        raise ValueError(text)
    return bytes.fromhex(text)
