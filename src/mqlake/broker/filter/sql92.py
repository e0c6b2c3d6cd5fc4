"""SQL92 conditions on properties, as RocketMQ understands them: `a > 5 AND (b IS NULL OR c IN ('x', 'y'))`.

An expression is parsed once (the grammar is sql92.lark) and becomes closures, each of which computes a value from a
message's properties. Conditions are true, false or unknown (None): a comparison with a missing property is unknown,
and a message matches only if the whole expression is true.

Limits bound the cost of an expression: its length, the number of its comparisons and how deep they nest. A chain of
ANDs or ORs is one level however long, and a list of IN is one comparison.

RocketMQ's parser stops at the first token that does not continue the expression and ignores the rest (`a = 1 b`,
`a LIKE 'x%'`); this one refuses it, as such a filter never does what was meant.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from mqlake.broker.filter.values import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    Long,
    NotComparableError,
    Value,
    compare,
    compare_in_order,
)
from mqlake.errors import FilterExpressionError

if TYPE_CHECKING:
    from lark import Lark, Token

EXPRESSION_LENGTH_MAX = 16_384
"""Characters."""
PARTS_MAX = 500
"""Comparisons and the operators that join them; each costs up to a microsecond per message."""
NESTING_MAX = 64


class Properties(Protocol):
    """The source of an expression's properties: a dict, or a reader of a record."""

    def get(self, name: str, /) -> str | None: ...


Evaluate = Callable[[Properties], Value]


class Expression:
    """A compiled filter; `text` is its source."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def evaluate(self, properties: Properties) -> Value:
        """True, False, or None for unknown. NotComparableError."""
        return self._evaluate(properties)

    def matches(self, properties: Properties) -> bool:
        """True if a message with these properties is wanted. Never raises."""
        try:
            return self._evaluate(properties) is True
        except NotComparableError:
            return False


def compile_sql92(text: str) -> Expression:
    """Compiles an expression. FilterExpressionError says what is wrong and where."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise FilterExpressionError(
            f"the filter expression has {len(text)} characters, {EXPRESSION_LENGTH_MAX} are allowed"
        )
    compiled = _compiled(text)
    if isinstance(compiled, str):
        raise FilterExpressionError(compiled)
    return compiled


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Expression | str:
    """The expression, or its error. Cached, as every heartbeat repeats the same expressions."""
    from lark import exceptions

    if not text.strip():
        return "the filter expression is empty"
    try:
        node = _parser().parse(text)
        return Expression(text, _condition(cast(_Node, node)).evaluate)
    except exceptions.UnexpectedInput as error:
        return _unexpected(text, error)
    except exceptions.VisitError as error:
        if not isinstance(error.orig_exc, FilterExpressionError):
            raise
        return str(error.orig_exc)
    except FilterExpressionError as error:
        return str(error)


def _unexpected(text: str, error: Any) -> str:
    position = error.pos_in_stream
    if position is None or getattr(getattr(error, "token", None), "type", "") == "$END":
        return f"the filter expression ends too early: {_shown(text[-40:])}"
    shown = _shown(text[position : position + 40])
    return f"the filter expression makes no sense from character {position + 1} on: {shown}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


@functools.cache
def _parser() -> Lark:
    from importlib import resources

    from lark import Lark, Transformer, v_args

    class Compiler(Transformer[Any, _Node]):
        """Bottom up while parsing: no tree is made, nothing recurses."""

    for name, build in _BUILDERS.items():
        setattr(Compiler, name, v_args(inline=True)(staticmethod(build)))
    grammar = resources.files("mqlake.broker.filter").joinpath("sql92.lark").read_text()
    return Lark(grammar, parser="lalr", transformer=Compiler())


# --- what the parts become ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression. `parts`: the operands, while an AND or OR may still grow."""

    evaluate: Evaluate
    kind: str  # "constant", "property", "condition" or "value"
    depth: int = 0
    size: int = 0
    constant: Value = None
    joined_by: str = ""
    parts: tuple[Evaluate, ...] = ()


def _made(kind: str, evaluate: Evaluate, *operands: _Node) -> _Node:
    depth = 1 + max(operand.depth for operand in operands)
    return _within_limits(_Node(evaluate, kind, depth, 1 + sum(operand.size for operand in operands)))


def _within_limits(node: _Node) -> _Node:
    if node.depth > NESTING_MAX:
        raise FilterExpressionError(f"the filter expression nests deeper than {NESTING_MAX} levels")
    if node.size > PARTS_MAX:
        raise FilterExpressionError(
            f"the filter expression has more than {PARTS_MAX} comparisons; use IN for lists of values"
        )
    return node


def _constant(value: Value) -> _Node:
    return _Node(lambda properties: value, "constant", constant=value)


def _string(token: Token) -> _Node:
    return _constant(_unquoted(token))


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _integer(token: Token) -> _Node:
    value = int(token.rstrip("lL")) if len(token) <= 20 else LONG_MAX + 1
    if value > LONG_MAX:
        raise FilterExpressionError(f"{_shown(str(token))} does not fit into 64 bits")
    return _constant(value if value <= INT_MAX else Long(value))


def _floating(token: Token) -> _Node:
    value = float(token)
    if value == float("inf"):
        raise FilterExpressionError(f"{_shown(str(token))} is too large")
    return _constant(value)


def _property(token: Token) -> _Node:
    name = str(token)
    return _Node(lambda properties: properties.get(name), "property")


def _negate(operand: _Node) -> _Node:
    inner = operand.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if type(value) is int:
            return -value if value != INT_MIN else value  # as 32 bits do
        if type(value) is Long:
            return Long(-value)
        return -value if type(value) is float else None

    return _made("value", evaluate, operand)


def _condition(node: _Node) -> _Node:
    """The node as a condition; a property alone would be true only if it were a boolean, so never."""
    if node.kind == "condition" or (node.kind == "constant" and type(node.constant) in (bool, type(None))):
        return node
    if node.kind != "property":
        raise FilterExpressionError("a condition is needed where there is a value; compare it with something")
    inner = node.evaluate
    return _made("condition", lambda properties: None if inner(properties) is None else False, node)


def _negation(operand: _Node) -> _Node:
    condition = _condition(operand)
    inner = condition.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _made("condition", evaluate, condition)


def _joined(joined_by: str, decisive: bool) -> Callable[[_Node, _Node], _Node]:
    """AND (False decides) or OR (True decides); otherwise one unknown makes the result unknown."""

    def build(left: _Node, right: _Node) -> _Node:
        left, right = _condition(left), _condition(right)
        parts = left.parts if left.joined_by == joined_by else (left.evaluate,)
        parts = (*parts, right.evaluate)
        depth = max(left.depth if left.joined_by == joined_by else left.depth + 1, right.depth + 1)
        size = left.size + right.size + 1

        def evaluate(properties: Properties) -> Value:
            unknown = False
            for part in parts:
                value = part(properties)
                if value is decisive:
                    return decisive
                if value is None:
                    unknown = True
            return None if unknown else not decisive

        return _within_limits(_Node(evaluate, "condition", depth, size, joined_by=joined_by, parts=parts))

    return build


def _equality(left: _Node, right: _Node) -> _Node:
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        a = first(properties)
        b = second(properties)
        if a is None:
            return True if b is None else None
        if b is None:
            return False
        return compare(a, b) == 0

    return _made("condition", evaluate, left, right)


def _equal(left: _Node, right: _Node) -> _Node:
    for operand in (left, right):
        if operand.kind == "constant" and operand.constant is None:
            raise FilterExpressionError("NULL cannot be compared; use IS NULL")
    if type(left.constant) is bool and right.kind == "constant" and type(right.constant) is not bool:
        raise FilterExpressionError(f"{left.constant} cannot be compared with {_shown(str(right.constant))}")
    return _equality(left, right)


def _not_equal(left: _Node, right: _Node) -> _Node:
    return _negation(_equal(left, right))


def _is_null(operand: _Node) -> _Node:
    return _equality(operand, _constant(None))


def _is_not_null(operand: _Node) -> _Node:
    return _negation(_is_null(operand))


_ORDERS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _ordered(left: _Node, order: str, right: _Node) -> _Node:
    for operand in (left, right):
        is_number = type(operand.constant) in (int, Long, float)
        if operand.kind == "condition" or (operand.kind == "constant" and not is_number):
            raise FilterExpressionError(f"only properties and numbers can be compared by {order}")
    first, second, holds = left.evaluate, right.evaluate, _ORDERS[order]

    def evaluate(properties: Properties) -> Value:
        a = first(properties)
        if a is None:
            return None
        b = second(properties)
        if b is None:
            return None
        return holds(compare_in_order(a, b), 0)

    return _made("condition", evaluate, left, right)


def _between(value: _Node, low: _Node, high: _Node) -> _Node:
    condition = _both(_ordered(value, ">=", low), _ordered(value, "<=", high))
    if low.kind == high.kind == "constant" and compare(high.constant, low.constant) < 0:
        raise FilterExpressionError(
            f"the bounds of BETWEEN are the wrong way round: {low.constant} must not be more than {high.constant}"
        )
    return condition


def _not_between(value: _Node, low: _Node, high: _Node) -> _Node:
    return _either(_ordered(value, "<", low), _ordered(value, ">", high))


def _in(negated: bool) -> Callable[..., _Node]:
    def build(operand: _Node, *tokens: Token) -> _Node:
        if operand.kind != "property":
            raise FilterExpressionError("IN needs a property on its left")
        inner, wanted = operand.evaluate, frozenset(map(_unquoted, tokens))

        def evaluate(properties: Properties) -> Value:
            value = inner(properties)
            return None if value is None else (value in wanted) is not negated

        return _made("condition", evaluate, operand)

    return build


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _text_test(negated: bool) -> Callable[[_Node, str, Token], _Node]:
    """Never unknown: a value that is not text, and an empty literal, give false, negated or not."""

    def build(operand: _Node, test: str, token: Token) -> _Node:
        inner, search, holds = operand.evaluate, _unquoted(token), _TEXT_TESTS[test.upper()]

        def evaluate(properties: Properties) -> Value:
            value = inner(properties)
            return type(value) is str and search != "" and holds(value, search) is not negated

        return _made("condition", evaluate, operand)

    return build


_both = _joined("AND", decisive=False)
_either = _joined("OR", decisive=True)

_BUILDERS: dict[str, Callable[..., _Node]] = {
    "either": _either,
    "both": _both,
    "equal": _equal,
    "not_equal": _not_equal,
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "ordered": _ordered,
    "text_test": _text_test(negated=False),
    "not_text_test": _text_test(negated=True),
    "between": _between,
    "not_between": _not_between,
    "is_in": _in(negated=False),
    "is_not_in": _in(negated=True),
    "negate": _negate,
    "negation": _negation,
    "string": _string,
    "integer": _integer,
    "floating": _floating,
    "true": lambda: _constant(True),
    "false": lambda: _constant(False),
    "null": lambda: _constant(None),
    "property": _property,
}
