"""Parsing values of server.ini. The original evaluates numbers with Aviator: `1024*1024*1024` is one.

deletePolicy   delete,<n>[s|m|h]   archive,<n>[s|m|h][,true|false]     hours without a unit
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass

from mqlake.errors import ConfigError

_EXPRESSION_MAX = 200
_INT64_MAX = (1 << 63) - 1


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda a, b: a - b * _divide(a, b),
}


def parse_int(text: str) -> int:
    """A number or an expression of + - * / % and brackets over numbers. ConfigError."""
    try:
        if len(text) > _EXPRESSION_MAX:
            raise ValueError
        value = _evaluate(ast.parse(text.strip(), mode="eval").body)
        if abs(value) > _INT64_MAX:
            raise ValueError
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        raise ConfigError(f"{text[:80]!r} is not a number") from None
    return value


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError


def parse_bool(text: str) -> bool:
    """ConfigError unless it is true or false."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"{text[:80]!r} is neither true nor false")
    return lowered == "true"


@dataclass(frozen=True, slots=True)
class DeletePolicy:
    """The treatment of a segment that was last changed more than `max_reserved_ms` ago."""

    name: str
    """`delete` or `archive`."""
    max_reserved_ms: int
    compress: bool = False
    """Archive as a zip file instead of renaming."""


_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}


def parse_delete_policy(text: str) -> DeletePolicy:
    """ConfigError, with the reason."""
    name, *values = text.split(",")
    if name not in ("delete", "archive"):
        raise ConfigError(f"unknown delete policy {name!r}: use delete or archive")
    if not values or not values[0]:
        raise ConfigError(f"delete policy {text!r} does not say how long to keep: {name},168 or {name},30m")
    age = values[0]
    unit = age[-1] if age[-1] in _UNITS_MS else "h"
    digits = age.removesuffix(unit)
    if not (digits.isascii() and digits.isdigit()) or len(values) > (2 if name == "archive" else 1):
        raise ConfigError(f"delete policy {text!r}: {name},<number>[s|m|h] is needed")
    compress = parse_bool(values[1]) if len(values) > 1 else False
    return DeletePolicy(name, int(digits) * _UNITS_MS[unit], compress)
