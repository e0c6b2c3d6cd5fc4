"""Message filters of a pull: first on the consume queue's tags code, then on the record itself.

The queue knows only the hash of a message's tags, so a filter on tags lets collisions pass; clients compare
the text again, as RocketMQ's do.
"""

from __future__ import annotations

from typing import Protocol

from mqlake.message import tags_code

SUBSCRIBE_ALL = "*"


class MessageFilter(Protocol):
    def is_matched_by_consume_queue(self, code: int) -> bool:
        """True if a unit with this tags code may match."""
        ...

    def is_matched_by_commit_log(self, record: memoryview) -> bool:
        """True if the record itself matches."""
        ...


class TagFilter:
    """`*`, or tags with `||` between them: `TagA || TagB`."""

    __slots__ = ("codes",)

    def __init__(self, expression: str = SUBSCRIBE_ALL) -> None:
        tags = [tag.strip() for tag in expression.split("||")]
        everything = expression.strip() in ("", SUBSCRIBE_ALL)
        self.codes = frozenset() if everything else frozenset(tags_code(tag) for tag in tags if tag)

    def is_matched_by_consume_queue(self, code: int) -> bool:
        return not self.codes or code in self.codes

    def is_matched_by_commit_log(self, record: memoryview) -> bool:
        return True
