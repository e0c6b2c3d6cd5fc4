"""Messages and partitions.

A message belongs to a topic, carries data and perhaps an attribute; the broker gives it an id and a partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from mqlake.base.text import unencodable
from mqlake.errors import FormatError, IllegalTopicError, MessageError

HAS_ATTRIBUTE = 1
"""Bit 0 of a message's flag. The other bits are the application's and travel untouched."""


class Partition(NamedTuple):
    """Partition `partition` of a topic on broker `broker_id`; sorts by broker, then number."""

    broker_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """`"0-3"` → Partition(0, 3). Raises FormatError."""
        broker, dash, number = text.partition("-")
        if not dash or not all(part.isascii() and part.isdigit() for part in (broker, number)):
            raise FormatError(0, f"{text!r} is not a partition: <brokerId>-<number> is needed")
        return cls(int(broker), int(number))


def check_topic(topic: str) -> None:
    """IllegalTopicError unless `topic` can be a word of a command and a node in ZooKeeper."""
    if not topic or "/" in topic or any(character.isspace() for character in topic):
        raise IllegalTopicError(
            f"{topic!r} is not a topic name: it must not be empty or contain white space or /"
        )


@dataclass(slots=True, eq=True)
class Message:
    """`data` and `attribute` as the producer gave them; `id` and `partition` as the broker did.

    A message that `set_read_only` was called on raises MessageError when it is changed, except for
    `rollback_only`, by which a listener refuses it.
    """

    topic: str
    data: bytes
    attribute: str | None = None
    flag: int = 0
    """Bit 0 is kept in step with `attribute` by the codec."""
    id: int = 0
    partition: Partition | None = None
    read_only: bool = False
    rollback_only: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "rollback_only" and getattr(self, "read_only", False):
            raise MessageError(f"the message is read-only: {name} cannot be changed")
        object.__setattr__(self, name, value)

    @property
    def has_attribute(self) -> bool:
        """True for an empty attribute, too."""
        return self.attribute is not None

    def set_read_only(self) -> None:
        self.read_only = True


def check_types(message: Message) -> None:
    """TypeError for a value of the wrong type, MessageError for a text that UTF-8 cannot hold; both name the field."""
    for name, kinds, needed in _TYPES:
        value = getattr(message, name)
        if not isinstance(value, kinds):
            hint = ": call encode() on it" if name == "data" and isinstance(value, str) else ""
            raise TypeError(f"Message: {name} has to be {needed}, not {type(value).__name__}{hint}")
        if isinstance(value, str) and (wrong := unencodable(value)):
            raise MessageError(f"Message: {name} {wrong}")


_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("topic", (str,), "str"),
    ("data", (bytes, bytearray, memoryview), "bytes"),
    ("attribute", (str, type(None)), "str or None"),
    ("flag", (int,), "int"),
)
