"""Filters on the properties of messages, for subscriptions beyond tags.

expression = compile_expression("SQL92", "price > 10 AND region IN ('eu', 'us')")
expression.matches({"price": "12", "region": "eu"})
"""

from __future__ import annotations

from mqlake.broker.filter.sql92 import Expression, compile_sql92
from mqlake.errors import FilterExpressionError

TAG = "TAG"
SQL92 = "SQL92"

__all__ = ["SQL92", "TAG", "Expression", "compile_expression", "is_tag_type"]


def is_tag_type(expression_type: str | None) -> bool:
    """True if a subscription is by tags, which is the default."""
    return not expression_type or expression_type == TAG


def compile_expression(expression_type: str | None, text: str | None) -> Expression:
    """The filter of a subscription. FilterExpressionError."""
    if expression_type != SQL92:
        raise FilterExpressionError(
            f"the expression type {expression_type!r} is not known; use {SQL92} or {TAG}"
        )
    return compile_sql92(text or "")
