"""JSON bodies to columns, against what Python's own json says of each body alone."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
import pickle
import re
import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError
from mqlake.lake.bodies import decoder as shared
from mqlake.lake.bodies.json_bodies import JsonDecoder
from mqlake.lake.bodies.json_text import DEPTH_MAX
from mqlake.lake.bodies.types import ColumnType, parse_ddl

DDL = (
    "a long, i int, d double, f float, s string, b boolean, at timestamp, ms timestamp_ms, day date, raw binary, "
    "o struct<x: int, l: array<long>>, many array<struct<x: int, at: timestamp>>"
)
MAPS = "a long, m map<string, array<int>>, any json"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MisfitError(Exception):
    pass


def no_constant(text: str) -> None:
    raise MisfitError(text)


def finite(text: str) -> float:
    if math.isinf(found := float(text)):
        raise MisfitError
    return found


def expected(kind: ColumnType, value: Any) -> Any:
    """The value that a column has, by Python's own means."""
    if value is None:
        return None
    if kind.name == "struct":
        return {name: expected(each, need(value, dict).get(name)) for name, each in kind.fields}
    if kind.name == "array":
        return [expected(kind.element, each) for each in need(value, list)]
    if kind.name == "map":
        return [(key, expected(kind.element, each)) for key, each in need(value, dict).items()]
    if kind.name == "json":
        return value if type(value) is str else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if kind.name == "boolean":
        return need(value, bool)
    if kind.name in ("int", "long", "timestamp_ms"):
        bits = 31 if kind.name == "int" else 63
        if not -(2**bits) <= need(value, int) < 2**bits:
            raise MisfitError
        return value if kind.name != "timestamp_ms" else moment(lambda: EPOCH + timedelta(milliseconds=value))
    if kind.name in ("double", "float"):
        if type(value) is int:
            value = float(value)
        if not math.isfinite(need(value, float)):
            raise MisfitError
        if kind.name == "double":
            return value
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            raise MisfitError from None
    text = need(value, str)
    if kind.name == "string":
        return text
    if kind.name == "binary":
        try:
            return base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise MisfitError from None
    if kind.name == "date":
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise MisfitError
        return moment(lambda: date.fromisoformat(text))
    assert kind.name == "timestamp"
    return moment(lambda: iso(text))


def iso(text: str) -> datetime:
    found = re.fullmatch(
        r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
        r"(?:[T ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(\.[0-9]{1,9})?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?",
        text,
    )
    if not found or (found[4] and not found[3]):
        raise MisfitError
    day, minutes, seconds, fraction, zone = (each or "" for each in found.groups())
    sign, hours, rest = zone[:1], zone[1:3] or "0", zone[3:].strip(":") or "0"
    if sign in "+-" and sign and (int(hours) > 23 or int(rest) > 59):
        raise MisfitError
    away = timedelta() if zone in ("", "Z") else timedelta(hours=int(hours), minutes=int(rest))
    micros = int(fraction[1:7].ljust(6, "0")) if fraction else 0
    there = datetime.fromisoformat(f"{day}T{minutes or '00:00'}{seconds or ':00'}").replace(tzinfo=UTC)
    return there + timedelta(microseconds=micros) + (away if sign == "-" else -away)


def moment(made: Any) -> Any:
    try:
        return made()
    except (ValueError, OverflowError):
        raise MisfitError from None


def need(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise MisfitError
    return value


def oracle(kind: ColumnType, body: bytes | None) -> tuple[Any, bool]:
    """The value, and whether the body fits. An empty one has neither."""
    if not body:
        return None, True
    try:
        if max(itertools.accumulate((c in b"[{") - (c in b"]}") for c in body)) > DEPTH_MAX:
            raise MisfitError  # no body here has brackets in a text
        value = json.loads(body.decode("utf-8"), parse_constant=no_constant, parse_float=finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
        return expected(kind, need(value, dict)), True
    except (MisfitError, ValueError):
        return None, False


NASTY = [
    b"",
    b" ",
    b"null",
    b"5",
    b"[]",
    b"[{}]",
    b"{}",
    b" {} ",
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b"{}\n{}",
    b'{"a":1}\n{"a":2}',
    b'{"a":',
    b"1}",
    b"}",
    b"{",
    b'{"a":1},"w":2',
    b'{"a":1},"v":{"a":2}',
    b'{"a":1}}',
    b'{"a":1},',
    b'{"a":1}\x00',
    b'{"a":1,"a":2}',
    b'{"q":1,"q":2,"a":3}',
    b'{"a":1.0}',
    b'{"a":1e2}',
    b'{"a":"1"}',
    b'{"a":-0}',
    b'{"a":01}',
    b'{"a":9223372036854775807}',
    b'{"a":9223372036854775808}',
    b'{"a":-9223372036854775808}',
    b'{"a":true}',
    b'{"i":2147483647}',
    b'{"i":2147483648}',
    b'{"d":1}',
    b'{"d":"1"}',
    b'{"d":NaN}',
    b'{"d":-Infinity}',
    b'{"d":1e400}',
    b'{"d":12345678901234567890123}',
    b'{"d":1e-400}',
    b'{"d":18446744073709551615}',
    b'{"d":0.1}',
    b'{"f":0.1}',
    b'{"f":1e39}',
    b'{"f":3.4028236e38}',
    b'{"f":16777217}',
    b'{"s":"\xff"}',
    b'{"q":"\xff"}',
    b'{"s":"\\ud800"}',
    b'{"q":"\\ud800"}',
    b'{"s":"\\ud83d\\ude00"}',
    b'{"s":"\\u0000"}',
    b'{"s":"a\nb"}',
    b'{\n"s":\n"ab"\n}',
    b'{"s":5}',
    b'{"s":{}}',
    b'{"b":1}',
    b'{"b":"true"}',
    b'{"b":false}',
    b'{"o":[]}',
    b'{"o":{}}',
    b'{"o":null}',
    b'{"o":{"x":"1"}}',
    b'{"o":{"l":[1,null,2]}}',
    b'{"o":{"l":[1,"2"]}}',
    b'{"o":{"l":null,"x":3,"y":4}}',
    b'{"many":[null,{},{"x":1}]}',
    b'{"many":[{"at":"2024-02-30"}]}',
    b'{"many":[{"at":"2024-02-29"},{"at":"2024-02-29T12:00Z"}]}',
    b'{"many":[[]]}',
    b'{"at":"2024-02-28T10:11:12Z"}',
    b'{"at":"2024-02-28 10:11:12.123456789"}',
    b'{"at":"2024-02-28T10:11:12+02:00"}',
    b'{"at":"2024-02-28T10:11:12.5-0330"}',
    b'{"at":"2024-02-28T10:11+02"}',
    b'{"at":"2024-02-28T25:00:00"}',
    b'{"at":""}',
    b'{"at":"2024-02-28T10"}',
    b'{"at":"0001-01-01"}',
    b'{"at":"0000-01-01"}',
    b'{"at":"9999-12-31T23:59:59.999999"}',
    b'{"at":"9999-12-31T23:59:59-01:00"}',
    b'{"at":1700000000000}',
    b'{"at":"yesterday"}',
    b'{"at":" 2024-02-28"}',
    b'{"at":"2024-02-28T10:11:60Z"}',
    b'{"at":"2024-02-28T24:00:00Z"}',
    b'{"at":"2024-02-28T10:11:12+24:00"}',
    b'{"at":"2024-02-28T10:11:12+02:60"}',
    b'{"at":"2024-02-28T10:11:12Z\\n"}',
    b'{"day":"2024-02-28\\n"}',
    b'{"ms":1700000000123}',
    b'{"ms":253402300800000}',
    b'{"ms":-62135596800001}',
    b'{"ms":-1}',
    b'{"ms":"1"}',
    b'{"day":"2024-02-29"}',
    b'{"day":"2023-02-29"}',
    b'{"day":"2024-2-9"}',
    b'{"day":"0000-01-01"}',
    b'{"day":"12024-01-01"}',
    b'{"raw":"aGk="}',
    b'{"raw":"aGk"}',
    b'{"raw":""}',
    b'{"raw":"a\xc3\xa9=="}',
    b'{"raw":"aGk=\\n"}',
    b'{"":1}',
    b'{"q":' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"a":7,"q":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"a":7,"q":' + b"[" * 199 + b"]" * 199 + b"}",
    b'{"mqlake":0}',
    b'{"a":1,"at":"x","s":5}',
    b"[1,2",
    b'"text"',
    b"\xff\xfe{\x00}\x00",
    b'{"d":1.}',
    b'{"d":.5}',
    b'{"any":{"x":[1,"\xc3\xa9"]}}',
    b'{"any":"t"}',
    b'{"any":3}',
    b'{"m":{"k":[1,null]}}',
    b'{"m":{"k":["1"]}}',
    b'{"m":[]}',
    b'{"m":{"k":null},"any":null}',
]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4),
    st.datetimes().map(str), st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat), st.dates().map(str),
    st.binary(max_size=4).map(lambda data: base64.b64encode(data).decode()), st.integers(0, 2**42),
)  # fmt: skip
objects = st.dictionaries(
    st.sampled_from(["a", "i", "d", "f", "s", "b", "at", "ms", "day", "raw", "q", "m", "any"]),
    scalars,
    max_size=3,
)
nested = st.fixed_dictionaries(
    {},
    optional={
        "o": st.fixed_dictionaries({}, optional={"x": scalars, "l": st.lists(scalars, max_size=2)}),
        "many": st.lists(st.fixed_dictionaries({}, optional={"x": scalars, "at": scalars}), max_size=2),
    },
)
fitting = st.fixed_dictionaries({"a": st.integers(-9, 9)}, optional={"s": st.text(max_size=3)})


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


bodies = st.one_of(
    st.sampled_from(NASTY),
    objects.map(dumped),
    nested.map(dumped),
    fitting.map(dumped),
    st.binary(max_size=6),
)


def check(decoder: JsonDecoder, given: list[bytes | None]) -> None:
    value, reason = decoder.decode(pa.array(given, pa.binary()))
    value.validate(full=True)
    assert value.type == decoder.type.arrow and len(value) == len(reason) == len(given)
    for body, found, why in zip(given, value.to_pylist(), reason.to_pylist(), strict=True):
        wanted, fits = oracle(decoder.type, body)
        assert (found, why is None) == (wanted, fits), (body, why)


@pytest.mark.parametrize("ddl", [DDL, MAPS])
def test_each_nasty_body_alone_and_all_together(ddl: str) -> None:
    decoder = JsonDecoder(parse_ddl(ddl))
    for body in NASTY:
        check(decoder, [body])
    check(decoder, [None, *NASTY, None])


@given(st.lists(st.one_of(st.none(), bodies), max_size=8))
@settings(max_examples=50)
def test_any_bodies(given: list[bytes | None]) -> None:
    check(ANY, given)


@given(
    st.lists(fitting.map(dumped), min_size=1, max_size=30), st.lists(st.tuples(st.integers(0, 30), bodies))
)
@settings(max_examples=25)
def test_rows_stay_with_their_bodies(good: list[bytes], strange: list[tuple[int, bytes]]) -> None:
    for place, body in strange:
        good.insert(place, body)
    check(ANY, good)


ANY = JsonDecoder(parse_ddl(DDL))

# values as texts: what parsers of JSON disagree about most, and what most bodies have
ODD = [
    "-0", "-0.0", "-0e0", "NaN", "-NaN", "Infinity", "-Infinity", "Inf", "nan", "1e999", "-1E+400", "1e0000001",
    "1e-999", "0.1e310", "1e308", "1.", ".5", "01", "-01", "+1", "0x1", "-", "1_0", "0e", "1e+", "9" * 20, "9" * 400,
    "1" + "0" * 250 + "e99", "-" + "1" * 308 + ".5", '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\x"',
    '"\\u0000"', '"\x7f"', '"\x01"', "'a'", '", NaN"', '"[-0]"', "nul", "[1,]", "[,1]", '{"a":1,}', '{"a":1}{',
    "//1", "1 2", "\x0c1",
]  # fmt: skip
USUAL = [
    "0",
    "1",
    "-7",
    "1.5",
    "2e3",
    "null",
    "true",
    '"t"',
    '"2024-02-29"',
    "[]",
    "{}",
    '[1,2.5,"x"]',
    '{"x":1}',
]
spaces = st.sampled_from(["", "", "", " ", "\t", "\r\n"])
names = st.sampled_from(["a", "i", "d", "f", "s", "b", "q", "zz", "q\\u0000", "\\u0061"])
tokens = st.one_of(st.sampled_from(USUAL), st.sampled_from(ODD))
values = st.one_of(
    tokens,
    st.lists(tokens, max_size=3).map(lambda found: f"[{','.join(found)}]"),
    st.tuples(tokens, tokens).map(lambda found: f'{{"x":{found[0]},"y":{found[1]}}}'),
)
members = st.tuples(spaces, names, spaces, spaces, values, spaces).map(lambda m: '{}"{}"{}:{}{}{}'.format(*m))
texts = st.lists(members, min_size=1, max_size=3).map(lambda found: "{" + ",".join(found) + "}")


@given(st.lists(texts, min_size=20, max_size=20))
@settings(max_examples=60)
def test_what_a_body_becomes_depends_on_that_body_alone(given: list[str]) -> None:
    """What one parser takes of a chunk, the other takes of a body: else a row's value would depend on its neighbours,
    and `verify`, which reads it among others, would call a sound table damaged."""
    for text in given:
        body = text.encode("utf-8", "surrogatepass")
        together = ANY._together(pa.array([body], pa.binary()))
        if together is not None:
            alone = pa.array([ANY._alone(body)], together.type)
            assert repr(alone.to_pylist()) == repr(together.to_pylist()), body  # -0.0 is not 0.0


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("where", ['{"a":7,"q":%s}', '{"a":7,"q":[{"x": %s}]}'])
def test_no_number_of_json_where_no_column_is(odd: str, where: str) -> None:
    """Beside bodies that fit as beside one that does not."""
    body, reasons = (where % odd).encode(), []
    for beside in (b'{"a":1}', b"[]"):
        value, reason = ANY.decode(pa.array([body, beside]))
        reasons.append(reason[0].as_py())
        assert value[0].as_py() is None
    assert reasons[0] == reasons[1] and reasons[0].startswith("no JSON: ")


def test_minus_zero_is_0_as_an_integer_and_keeps_its_sign_as_a_fraction() -> None:
    for beside in (b'{"a":1}', b"[]"):
        value, _ = ANY.decode(pa.array([b'{"a":-0,"d":-0,"f":-0.0}', beside]))
        found = value[0].as_py()
        assert (found["a"], math.copysign(1, found["d"]), math.copysign(1, found["f"])) == (0, 1, -1)


def test_bodies_that_would_cancel_out() -> None:
    """Joined by line ends alone they give as many rows as there are bodies, each the next one's."""
    many = [b'{"a":%d}' % n for n in range(5000)]
    many[1] = b'{"a":1}{"a":1}'
    many[2500], many[2501] = b'{"o":', b"}"
    many[3000] = b'{"a":1}\n{"a":2}'
    check(ANY, many)


def test_what_fits_takes_no_step_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "decode_each", None)
    monkeypatch.setattr(JsonDecoder, "_alone", None)
    check(ANY, [b'{"a":%d,"at":"2024-02-28T10:00:00Z","o":{"l":[1,2]}}' % n for n in range(5000)])


def test_reasons_name_the_field() -> None:
    given = [
        b'{"a":"x"}',
        b'{"o":{"l":[true]}}',
        b'{"many":[{"at":"noon"}]}',
        b"[]",
        b"{",
        b'{"raw":"?"}',
        b'{"i":4294967296}',
    ]
    _, reason = ANY.decode(pa.array(given, pa.binary()))
    said = reason.to_pylist()
    assert said[:4] == [
        "a is a text, not long",
        "o.l[] is a boolean, not long",
        "many[].at is no time in ISO 8601",
        "an array, not an object",
    ]
    assert said[4].startswith("no JSON: ") and said[5:] == [
        "raw is no base64",
        "i is the number 4294967296, not int",
    ]


def test_sliced_text_and_large_bodies() -> None:
    given = pa.array([b"x", b'{"a":1}', b"", b'{"a":"2"}', None], pa.binary()).slice(1)
    for each in (given, given.cast(pa.large_binary()), given.cast(pa.string()), given.cast(pa.binary_view())):
        value, reason = ANY.decode(each)
        assert [row and row["a"] for row in value.to_pylist()] == [1, None, None, None]
        assert [why is not None for why in reason.to_pylist()] == [False, False, True, False]
    value, reason = ANY.decode(pa.array([], pa.binary()))
    assert len(value) == len(reason) == 0 and value.type == ANY.type.arrow


def test_large_bodies_are_cut_into_chunks() -> None:
    check(ANY, [dumped({"a": n, "q": "x" * (3 << 20)}) for n in range(4)])


def test_it_can_be_pickled() -> None:
    used = JsonDecoder(parse_ddl(MAPS))
    check(used, [b'{"a":1}'])
    check(pickle.loads(pickle.dumps(used)), [b'{"a":1,"any":[2]}'])


def test_types_that_json_has_no_values_of() -> None:
    with pytest.raises(ConfigError, match=r"no decimal\(9,2\)"):
        JsonDecoder(parse_ddl("a struct<b: decimal(9,2)>"))
    with pytest.raises(ConfigError, match="names their fields"):
        JsonDecoder(ColumnType("string"))
