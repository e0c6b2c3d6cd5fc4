from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.broker.filter import compile_expression, is_tag_type
from mqlake.broker.filter.sql92 import EXPRESSION_LENGTH_MAX, NESTING_MAX, PARTS_MAX, compile_sql92
from mqlake.errors import FilterExpressionError
from tests.broker.filter import random_expressions as random

ALL = "a=3 and b<>4 And c>5 AND d<=4"
ANY = "a=3 or b<>4 Or c>5 OR d<=4"


def props(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("text", "properties", "value"),
    [
        (ALL, props(a=3, b=5, c=6, d=1), True),
        (ALL, props(a=4, b=5, c=6, d=1), False),
        (ANY, props(a=3), True),
        (ANY, props(a=4, b=5), True),
        (ANY, props(a=4, b=4, c=6), True),
        (ANY, props(a=4, b=4, c=3, d=2), True),
        (ANY, props(a=4, b=4, c=3, d=10), False),
        # three values
        ("a = 1 AND b = 1", props(b=2), False),
        ("a = 1 AND b = 1", props(b=1), None),
        ("a = 1 OR b = 1", props(b=1), True),
        ("a = 1 OR b = 1", props(b=2), None),
        ("NOT (a = 1)", {}, None),
        ("NOT (a = 1)", props(a=2), True),
        ("NULL OR a = 1", props(a=1), True),
        ("NULL AND a = 1", props(a=1), None),
        ("TRUE", {}, True),
        ("FALSE", {}, False),
        ("NULL", {}, None),
        # null
        ("a IS NULL", {}, True),
        ("a IS NULL", props(a=2), False),
        ("a IS NOT NULL", props(a=2), True),
        ("a IS NOT NULL", {}, False),
        ("a is null OR a='hello'", {}, True),
        ("a is null OR a='hello'", props(a="hello"), True),
        ("a is null OR a='hello'", props(a="abc"), False),
        ("a is not null and a='hello'", props(a="hello"), True),
        ("a is not null and a='hello'", {}, False),
        ("a = b", {}, True),  # both are missing
        ("a = b", props(a=1), False),
        ("a = b", props(b=1), None),
        ("a > 5", {}, None),
        # texts
        ("a = 'hello'", props(a="hello"), True),
        ("a <> 'hello'", props(a="Hello"), True),
        ("a=b", props(a="3.14", b="3.14"), True),
        ("a=b", props(a="3.14", b="3.140"), False),
        ("a<>b", props(a="3.14", b="3.141"), True),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
        ("a = ''", props(a="x"), False),
        ("a = 'München 漢字'", props(a="München 漢字"), True),
        # numbers in texts
        ("a > 3.14", props(a="3.1415"), True),
        ("a > 3.1E10", props(a="31415000000.0"), True),
        ("a > b", props(a=10, b=20), False),
        ("a > b", props(a=20, b=10), True),
        ("a > b", props(a="9", b="10"), False),
        ("a = 5", props(a="+5"), True),
        ("a = 5", props(a="٥"), True),
        ("a = 5.0", props(a="5"), True),
        ("a = 5.0", props(a=" 5e0 "), True),
        ("5 < a", props(a=6), True),
        ("a = -5", props(a=-5), True),
        ("a > - 5", props(a=-4), True),
        ("a = +5", props(a=5), True),
        ("a = 2147483648", props(a=2147483648), True),
        ("a > 5000000000L", props(a=5000000001), True),
        ("a = - b", props(a=1, b=1), False),  # a text is not negated
        ("1 = 1.0", {}, True),
        ("2147483648 > 1", {}, True),
        ("1 < 2147483648", {}, True),
        # booleans
        ("a=TRUE OR b=FALSE", props(a="true", b="false"), True),
        ("a=TRUE OR b=FALSE", props(a="false", b="true"), False),
        ("a = TRUE", props(a="TrUe"), True),
        ("a = FALSE", props(a="anything"), True),
        ("5 = TRUE", {}, False),
        ("(a > 5) = TRUE", props(a=6), True),
        ("a > 5 = FALSE", props(a=6), False),
        # a property alone is no boolean, whatever it says
        ("a", props(a="true"), False),
        ("a", {}, None),
        ("NOT a", props(a="true"), True),
        ("NOT a = TRUE", props(a="x"), True),  # NOT binds tighter
        # sets and ranges
        ("a in ('3', '4', '5')", props(a=4), True),
        ("a in ('3', '4', '5')", props(a=8), False),
        ("a in ('3')", {}, None),
        ("a not in ('3', '4', '5')", props(a=8), True),
        ("a not in ('3', '4', '5')", props(a=3), False),
        ("(a) IN ('it''s')", props(a="it's"), True),
        ("a between 2 and 10", props(a=2), True),
        ("a between 2 and 10", props(a=10), True),
        ("a between 2 and 10", props(a=1), False),
        ("a between 2 and 10", props(a=11), False),
        ("a between 2 and 2", props(a=2), True),
        ("a not between 2 and 10", props(a=1), True),
        ("a not between 2 and 10", props(a=11), True),
        ("a not between 2 and 10", props(a=2), False),
        ("a not between 10 and 2", props(a=5), True),
        ("a between -10 and -2", props(a=-5), True),
        ("a between up and low", props(a=3.14), None),
        # parts of texts
        ("a CONTAINS 'bc'", props(a="abcd"), True),
        ("a contains 'xx'", props(a="abcd"), False),
        ("a NOT CONTAINS 'bc'", props(a="abcd"), False),
        ("a STARTSWITH 'ab'", props(a="abcd"), True),
        ("a NOT STARTSWITH 'b'", props(a="abcd"), True),
        ("a ENDSWITH 'cd'", props(a="abcd"), True),
        ("a NOT ENDSWITH 'cd'", props(a="abcd"), False),
        ("'axb' CONTAINS 'x'", {}, True),
        ("a CONTAINS 'x'", {}, False),  # never unknown
        ("a NOT CONTAINS 'x'", {}, False),
        ("a CONTAINS ''", props(a="x"), False),
        ("a NOT CONTAINS ''", props(a="x"), False),
        # form
        ("$a_1 = 1 -- a remark", {"$a_1": "1"}, True),
        ("a /* a * remark */ = /**/ 1\n-- and more\n", props(a=1), True),
        ("NOTa = 1 AND inside = 1 AND ORder = 1", {"NOTa": "1", "inside": "1", "ORder": "1"}, True),
        ("((((a))=((1))))", props(a=1), True),
        ("a=1 OR a=2 AND b=1", props(a=1), True),  # AND binds tighter
    ],
)
def test_values(text, properties, value):
    expression = compile_expression("SQL92", text)
    assert expression.evaluate(properties) is value
    assert expression.matches(properties) is (value is True)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a > 5", props(a="abc")),
        ("a > 5 OR b = 1", props(a="abc", b=1)),
        ("a > 5", props(a="5.5")),  # no whole number
        ("a > 5", props(a="3000000000")),  # a literal of 32 bits makes numbers of 32 bits
        ("a > 5", props(a="1_000")),
        ("a > 5.0", props(a="0x10")),
        ("a > b", props(a="x", b="1")),
        ("a between up and low", props(a="3.14", up="up", low="low")),
        ("key is not null and key between 0 and 100", props(key="con")),
        ("TRUE = a", props(a="true")),
    ],
)
def test_what_cannot_be_compared_does_not_match_whatever_else_is_there(text, properties):
    assert not compile_sql92(text).matches(properties)
    assert not compile_sql92(f"{text} OR TRUE").matches(properties)


def test_earlier_parts_decide_before_a_comparison_fails():
    expression = compile_sql92("b = 1 OR a > 5")
    assert expression.matches(props(b=1, a="abc"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a >", "ends too early"),
        ("(a = 1", "ends too early"),
        ("a = 'x", "from character 5 on"),
        ("a = 1 b", "from character 7 on: 'b'"),
        ("a LIKE 'x%'", "from character 3 on"),
        ("a = 007", "from character 5"),
        ("a = 1 + 2", "makes no sense"),
        ("a == 1", "makes no sense"),
        ('a = "x"', "makes no sense"),
        ("a; b", "makes no sense"),
        ("'x'", "a condition is needed"),
        ("5", "a condition is needed"),
        ("a = 1 AND 'x'", "a condition is needed"),
        ("-a", "a condition is needed"),
        ("a = NULL", "use IS NULL"),
        ("NULL <> a", "use IS NULL"),
        ("TRUE = 5", "cannot be compared"),
        ("a > 'x'", "only properties and numbers"),
        ("a > TRUE", "only properties and numbers"),
        ("a > NULL", "only properties and numbers"),
        ("a > b > c", "only properties and numbers"),
        ("a between 10 and 2", "wrong way round"),
        ("a between 'a' and 'b'", "only properties and numbers"),
        ("a between 1 and null", "only properties and numbers"),
        ("a in ()", "makes no sense"),
        ("a in (1)", "makes no sense"),
        ("'a' in ('a')", "needs a property"),
        ("a contains b", "makes no sense"),
        ("a = 9223372036854775808", "64 bits"),
        ("a = " + "9" * 5000, "64 bits"),
        ("a = 1e999", "too large"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_place(text, reason):
    with pytest.raises(FilterExpressionError, match=reason):
        compile_sql92(text)


def test_limits():
    values = ", ".join(f"'{number}'" for number in range(1_500))
    assert compile_sql92(f"a IN ({values})").matches({"a": "1499"})
    assert compile_sql92(" OR ".join(f"a = '{n}'" for n in range(PARTS_MAX // 2))).matches({"a": "7"})
    with pytest.raises(FilterExpressionError, match="comparisons"):
        compile_sql92(" OR ".join(f"a = '{n}'" for n in range(PARTS_MAX)))
    with pytest.raises(FilterExpressionError, match="characters"):
        compile_sql92("a = '" + "x" * EXPRESSION_LENGTH_MAX + "'")
    compile_sql92("(" * 5_000 + "a = 1" + ")" * 5_000)  # parentheses cost nothing
    with pytest.raises(FilterExpressionError, match="nests"):
        compile_sql92("NOT " * (NESTING_MAX + 1) + "a")
    text = "a = 1"
    for _ in range(NESTING_MAX // 2):
        text = f"(({text}) AND b = 1) OR c = 1"
    with pytest.raises(FilterExpressionError, match="nests"):
        compile_sql92(text)


def test_types_of_expressions():
    assert is_tag_type(None) and is_tag_type("") and is_tag_type("TAG") and not is_tag_type("SQL92")
    with pytest.raises(FilterExpressionError, match="XPATH"):
        compile_expression("XPATH", "/a")
    with pytest.raises(FilterExpressionError, match="empty"):
        compile_expression("SQL92", None)


@settings(max_examples=300, deadline=None)
@given(random.conditions, random.properties)
def test_random_expressions_mean_what_the_rules_say(node, properties):
    assert compile_sql92(random.text_of(node)).matches(properties) == random.matches(node, properties)


TOKENS = (
    "a",
    "b",
    "1",
    "2.5",
    "'x'",
    "'",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "+",
    "-",
    "NOT",
    "AND",
    "or",
    "IS",
    "NULL",
)
TOKENS += (
    "BETWEEN",
    "IN",
    "TRUE",
    "CONTAINS",
    "ENDSWITH",
    "--",
    "/*",
    "*/",
    "\n",
    "1L",
    "5abc",
    ".",
    "$",
    "ü",
    "\x00",
    "\ud800",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join) | st.text(max_size=20))
def test_any_text_is_an_expression_or_is_refused_with_a_reason(text):
    try:
        expression = compile_sql92(text)
    except FilterExpressionError as error:
        assert str(error)
    else:
        assert expression.matches({"a": "1", "b": "x"}) in (True, False)
