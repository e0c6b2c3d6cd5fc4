"""An Arrow filter expression as conditions on records, as far as it can be told.

    (topic == "Orders") and (queueId == 1 or tags == "x") and (storeTimestamp >= …)
     └─ Condition            └─ not told: Arrow applies it  └─ Condition

pyarrow has no way to look into an expression, but writes one for pickling as a record batch: literals as columns, and
the calls in prefix order in the schema's metadata:

    call: 'and_kleene'   call: 'equal'   field_ref: 'topic'   literal: '0'   end: 'equal'   …   end: 'and_kleene'

Whatever is not understood gives no condition. That is always safe, as the reader's rows are filtered by the expression
itself again.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.arrow.filters import TEXTS, Condition
from mqlake.lake.arrow.schema import NUMBERS, TIMES

_LINE = re.compile(r"(call|end|field_ref|literal|options|nested_field_ref): '(.*)'", re.DOTALL)
_COMPARISONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "equal": (operator.eq, "equal"),
    "greater": (operator.gt, "less"),
    "greater_equal": (operator.ge, "less_equal"),
    "less": (operator.lt, "greater"),
    "less_equal": (operator.le, "greater_equal"),
}
"""For each function, its comparison, and its name with the sides exchanged."""
_ALIKE = {"and_kleene", "and"}


@dataclass(frozen=True)
class _Call:
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] | None


@dataclass(frozen=True)
class _Field:
    name: str


@dataclass(frozen=True)
class _Literal:
    value: Any


def conditions_of(expression: pc.Expression | None) -> tuple[Condition, ...]:
    """Conditions that hold for every row for which the expression is true; parts that cannot be converted give none."""
    if expression is None:
        return ()
    try:
        tree = _parse(expression)
    except (ValueError, TypeError, KeyError, IndexError, StopIteration, ImportError, pa.ArrowException):
        return ()  # an expression that another pyarrow writes in another way
    return tuple(found for each in _conjuncts(tree) if (found := _condition(each)) is not None)


def columns_of(expression: pc.Expression | None, names: Sequence[str]) -> list[str]:
    """Returns those of `names` that the expression may refer to."""
    if expression is None:
        return []
    words = set(re.findall(r"\w+", str(expression)))
    return [name for name in names if name in words]


def _parse(expression: pc.Expression) -> Any:
    batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    text = batch.schema.to_string(
        truncate_metadata=False, show_field_metadata=False, show_schema_metadata=True
    )
    _, _, metadata = text.partition("-- schema metadata --\n")
    lines = iter([_LINE.fullmatch(line).groups() for line in metadata.splitlines()])  # type: ignore[union-attr]
    return _read(next(lines), lines, batch)


def _read(line: tuple[str, ...], lines: Iterator[tuple[str, ...]], batch: pa.RecordBatch) -> Any:
    kind, value = line
    if kind == "field_ref":
        return _Field(value)
    if kind == "literal":
        return _Literal(batch.column(int(value))[0].as_py())
    if kind != "call":
        raise ValueError(kind)
    arguments, options = [], None
    while (following := next(lines)) != ("end", value):
        if following[0] == "options":
            options = batch.column(int(following[1]))[0].as_py()
        else:
            arguments.append(_read(following, lines, batch))
    return _Call(value, tuple(arguments), options)


def _conjuncts(node: Any) -> Iterator[Any]:
    if isinstance(node, _Call) and node.name in _ALIKE:
        for argument in node.arguments:
            yield from _conjuncts(argument)
    else:
        yield node


def _condition(node: Any) -> Condition | None:
    if not isinstance(node, _Call):
        return None
    if node.name in ("or_kleene", "or"):
        return _any_of([_condition(argument) for argument in node.arguments])
    if node.name == "is_in" and isinstance(node.arguments[0], _Field) and node.options is not None:
        return _known(node.arguments[0].name, None, tuple(node.options["value_set"]))
    if node.name not in _COMPARISONS or len(node.arguments) != 2:
        return None
    left, right = node.arguments
    name = node.name
    if isinstance(left, _Literal):
        left, right, name = right, left, _COMPARISONS[name][1]
    if not isinstance(left, _Field) or not isinstance(right, _Literal):
        return None
    return _known(left.name, _COMPARISONS[name][0], (right.value,))


def _any_of(found: list[Condition | None]) -> Condition | None:
    """One of several values of the same column."""
    values: list[Any] = []
    column = ""
    for each in found:
        if each is None or each.allowed is None or column not in ("", each.column):
            return None
        column = each.column
        values += each.values
    return Condition(column, None, tuple(values))


def _known(
    column: str, compare: Callable[[Any, Any], Any] | None, values: tuple[Any, ...]
) -> Condition | None:
    if column in TEXTS:
        fits = compare in (None, operator.eq) and all(isinstance(value, str) for value in values)
    elif column in NUMBERS:
        fits = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    else:
        fits = column in TIMES and all(isinstance(value, datetime) and value.tzinfo for value in values)
    return Condition(column, compare, values) if fits and values else None
