"""Random filter expressions as trees, their text, and what they mean by the shortest reading of the rules."""

from __future__ import annotations

import math
import re
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "$d_1")
TEXTS = (
    "",
    "x",
    "xy",
    "it's",
    "1",
    "5",
    "-3",
    "007",
    "2.5",
    "1e2",
    "true",
    "FALSE",
    "NaN",
    "3000000000",
    " 5",
    "5f",
)
NUMBERS = ("0", "1", "5", "3", "2147483647", "2147483648", "3000000000L", "2.5", ".5", "1e2", "5.", "99L")

texts = st.sampled_from(TEXTS)
variables = st.builds(lambda name: ("var", name), st.sampled_from(NAMES))
numbers = st.builds(lambda text: ("num", text), st.sampled_from(NUMBERS))
strings = st.builds(lambda text: ("str", text), texts)
negatives = st.builds(lambda inner: ("neg", inner), st.one_of(numbers, variables))
ordered_operands = st.one_of(variables, variables, numbers, negatives)
equal_operands = st.one_of(ordered_operands, strings, st.just(("bool", True)), st.just(("bool", False)))

leaves = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), ordered_operands, ordered_operands),
    st.tuples(st.sampled_from(["=", "<>"]), st.one_of(variables, ordered_operands), equal_operands),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), st.one_of(variables, negatives)),
    st.tuples(st.just("IN"), variables, st.lists(texts, min_size=1, max_size=6), st.booleans()),
    st.tuples(st.just("NOT BETWEEN"), variables, numbers, numbers),
    st.tuples(st.just("BETWEEN"), variables, variables, numbers),
    st.tuples(
        st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
        st.one_of(variables, strings, negatives),
        texts,
        st.booleans(),
    ),
    st.tuples(st.just("cast"), variables),
    st.just(("bool", True)),
    st.just(("bool", False)),
    st.just(("null",)),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.just("NOT"), inner),
        st.tuples(
            st.sampled_from(["=", "<>"]),
            leaves.filter(lambda node: node[0] in ("<", "=")),
            inner.filter(lambda node: node[0] != "null" and node[0] != "cast"),
        ),
    ),
    max_leaves=8,
)
properties = st.dictionaries(st.sampled_from(NAMES), texts.filter(bool), max_size=4)


def text_of(node: Any) -> str:
    kind = node[0]
    if kind == "var":
        return str(node[1])
    if kind == "num":
        return str(node[1])
    if kind == "str":
        return quoted(node[1])
    if kind == "bool":
        return "TRUE" if node[1] else "FALSE"
    if kind == "null":
        return "NULL"
    if kind == "neg":
        return f"- {text_of(node[1])}"
    if kind == "cast":
        return text_of(node[1])
    if kind == "NOT":
        return f"NOT ({text_of(node[1])})"
    if kind in ("IS NULL", "IS NOT NULL"):
        return f"{text_of(node[1])} {kind}"
    if kind == "IN":
        return f"{text_of(node[1])} {'NOT ' * node[3]}IN ({', '.join(map(quoted, node[2]))})"
    if kind in ("BETWEEN", "NOT BETWEEN"):
        return f"{text_of(node[1])} {kind} {text_of(node[2])} AND {text_of(node[3])}"
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"{text_of(node[1])} {'NOT ' * node[3]}{kind} {quoted(node[2])}"
    return f"({text_of(node[1])}) {kind} ({text_of(node[2])})"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class NoMatchError(Exception):
    pass


def meaning(node: Any, props: dict[str, str]) -> Any:
    """(type, value) of RocketMQ's: ("int", 5), ("long", 5), ("double", 2.5), ("str", "x"), ("bool", True), None."""
    kind = node[0]
    if kind == "var":
        return ("str", props[node[1]]) if node[1] in props else None
    if kind == "num":
        if re.fullmatch(r"[0-9]+L?", node[1]):
            value = int(node[1].rstrip("L"))
            return ("int" if value < 2**31 else "long", value)
        return ("double", float(node[1]))
    if kind in ("str", "bool"):
        return (kind, node[1])
    if kind == "null":
        return None
    if kind == "neg":
        value = meaning(node[1], props)
        return (value[0], -value[1]) if value is not None and value[0] in ("int", "long", "double") else None
    if kind == "cast":
        return None if meaning(node[1], props) is None else ("bool", False)
    if kind == "NOT":
        return negated(meaning(node[1], props))
    if kind in ("AND", "OR"):
        decisive = ("bool", kind == "OR")
        left = meaning(node[1], props)
        if left == decisive:
            return decisive
        right = meaning(node[2], props)
        if right == decisive:
            return decisive
        return None if left is None or right is None else ("bool", kind == "AND")
    if kind == "IS NULL":
        return ("bool", meaning(node[1], props) is None)
    if kind == "IS NOT NULL":
        return ("bool", meaning(node[1], props) is not None)
    if kind == "IN":
        value = meaning(node[1], props)
        return None if value is None else ("bool", (value[1] in node[2]) != node[3])
    if kind == "BETWEEN":
        _, value, low, high = node
        return meaning(("AND", (">=", value, low), ("<=", value, high)), props)
    if kind == "NOT BETWEEN":
        _, value, low, high = node
        return meaning(("OR", ("<", value, low), (">", value, high)), props)
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        value = meaning(node[1], props)
        if not node[2] or value is None or value[0] != "str":
            return ("bool", False)
        holds = {
            "CONTAINS": node[2] in value[1],
            "STARTSWITH": value[1].startswith(node[2]),
            "ENDSWITH": value[1].endswith(node[2]),
        }[kind]
        return ("bool", holds != node[3])
    left, right = meaning(node[1], props), meaning(node[2], props)
    if kind == "<>":
        return negated(equal(left, right))
    if kind == "=":
        return equal(left, right)
    if left is None or right is None:
        return None
    if left[0] == right[0] == "str":
        left, right = ("double", double(left[1])), ("double", double(right[1]))
    sign = compared(left, right)
    return ("bool", {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[kind])


def negated(value: Any) -> Any:
    return None if value is None else ("bool", not value[1])


def equal(left: Any, right: Any) -> Any:
    if left is None:
        return ("bool", True) if right is None else None
    if right is None:
        return ("bool", False)
    return ("bool", compared(left, right) == 0)


def compared(left: Any, right: Any) -> int:
    (lt, lv), (rt, rv) = left, right
    if lt == "bool" and rt == "str":
        raise NoMatchError
    if lt == "bool" and rt != "bool":
        return -1
    if rt == "bool" and lt not in ("bool", "str"):
        return -1
    if lt == "str" and rt != "str":
        lt, lv = rt, converted(lv, rt)
    elif rt == "str" and lt != "str":
        rv = converted(rv, lt)
    elif {lt, rt} > {"double"}:
        lt, lv, rv = "double", float(lv), float(rv)
    if lt == "double" and (math.isnan(lv) or math.isnan(rv)):
        return int(math.isnan(lv)) - int(math.isnan(rv))
    if lt == "double" and lv == rv == 0:
        lv, rv = math.copysign(1, lv), math.copysign(1, rv)
    return (lv > rv) - (lv < rv)


def converted(text: str, kind: str) -> Any:
    if kind == "bool":
        return text.lower() == "true"
    if kind == "double":
        return double(text)
    limit = 2**31 if kind == "int" else 2**63
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -limit <= int(text) < limit:
        raise NoMatchError
    return int(text)


def double(text: str) -> float:
    match = re.fullmatch(r"([+-]?(NaN|Infinity|[0-9.]+([eE][+-]?[0-9]+)?))[fFdD]?", text.strip())
    try:
        return float(match[1]) if match else float("no")
    except ValueError:
        raise NoMatchError from None


def matches(node: Any, props: dict[str, str]) -> bool:
    try:
        return meaning(node, props) == ("bool", True)
    except NoMatchError:
        return False
