"""SubscriptionData from what a program writes: `*`, `TagA || TagB`, or an SQL92 condition."""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.base.arguments import checked
from mqlake.base.clock import now_ms
from mqlake.errors import ConfigError
from mqlake.message import java_hash
from mqlake.remoting.bodies.client import SubscriptionData

SUB_ALL = "*"


@checked
@dataclass(frozen=True)
class MessageSelector:
    expression: str
    type: str = "TAG"

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """`*`, or tags with `||` between."""
        return cls(expression or SUB_ALL, "TAG")

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """A condition over the properties, e.g. `a > 3 AND b IS NOT NULL`; the broker evaluates it."""
        if not expression.strip():
            raise ConfigError("the SQL92 condition is empty")
        return cls(expression, "SQL92")


def build_subscription_data(topic: str, selector: MessageSelector | str = SUB_ALL) -> SubscriptionData:
    """A text is a tag expression. ConfigError when it has no tags."""
    if isinstance(selector, str):
        selector = MessageSelector.by_tag(selector)
    tags = set()
    if selector.type == "TAG" and selector.expression != SUB_ALL:
        tags = {tag for part in selector.expression.split("||") if (tag := part.strip())}
        if not tags:
            raise ConfigError(f"the tag expression {selector.expression!r} has no tags")
    return SubscriptionData(
        topic=topic,
        sub_string=selector.expression,
        tags_set=tags,
        code_set={java_hash(tag) for tag in tags},
        sub_version=now_ms(),
        expression_type=selector.type,
    )
