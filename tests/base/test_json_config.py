import enum
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.json_config import dumps, loads
from mqlake.errors import FormatError


def queue(queue_id):
    return (("brokerName", "b"), ("queueId", queue_id), ("topic", "t"))


# Each as fastjson 1.2.83 prints it, pretty and compact.
PRINTED = [
    ({}, "{}", "{}"),
    ([], "[]", "[]"),
    ({"b": 1, "a": None, "c": True}, '{\n\t"b":1,\n\t"c":true\n}', '{"b":1,"c":true}'),
    ({"list": [1, "x", None, 1.5]}, '{\n\t"list":[\n\t\t1,\n\t\t"x",\n\t\tnull,\n\t\t1.5\n\t]\n}', None),
    ({"e": [], "m": {}}, '{\n\t"e":[],\n\t"m":{}\n}', '{"e":[],"m":{}}'),
    ([[1, 2], []], "[\n\t[\n\t\t1,\n\t\t2\n\t],\n\t[]\n]", "[[1,2],[]]"),
    ([None, {"x": None}], "[\n\tnull,\n\t{\n\t}\n]", "[null,{}]"),
    ({5: "v", 3_000_000_000: "w"}, '{5:"v",3000000000:"w"\n}', '{5:"v",3000000000:"w"}'),
    ({1: None, 2: 3}, "{2:3\n}", "{2:3}"),
    (
        {"t": {0: {"a": 1, "b": [1, 2]}, 1: {5: 6}, 2: [1]}},
        '{\n\t"t":{0:{\n\t\t\t"a":1,\n\t\t\t"b":[\n\t\t\t\t1,\n\t\t\t\t2\n\t\t\t]\n\t\t},1:{5:6\n\t\t},2:[\n\t\t\t1\n\t\t]\n\t}\n}',
        '{"t":{0:{"a":1,"b":[1,2]},1:{5:6},2:[1]}}',
    ),
    (
        {"offsetTable": {queue(0): 5, queue(2): 6}},
        (
            '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":0,\n\t\t\t"topic":"t"\n\t\t}:5,{\n'
            '\t\t\t"brokerName":"b",\n\t\t\t"queueId":2,\n\t\t\t"topic":"t"\n\t\t}:6\n\t}\n}'
        ),
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5,{"brokerName":"b","queueId":2,"topic":"t"}:6}}',
    ),
    (
        {'key"\n中': "quote\" back\\ slash/ nl\n tab\t \b\f\r \x00\x01\x1f\x7f\x80 é 中 \u2028 😀 <>&'"},
        None,
        (
            '{"key\\"\\n中":"quote\\" back\\\\ slash/ nl\\n tab\\t \\b\\f\\r \\u0000\\u0001\\u001F\\u007F\\u0080'
            " é 中 \\u2028 😀 <>&'\"}"
        ),
    ),
]


class TestDumps:
    @pytest.mark.parametrize(("value", "pretty", "compact"), PRINTED)
    def test_printed_as_fastjson_prints(self, value, pretty, compact):
        if pretty is not None:
            assert dumps(value) == pretty
        if compact is not None:
            assert dumps(value, pretty=False) == compact

    def test_browser_compatible(self):
        assert dumps({0: "é/😀\x7f"}, pretty=False, browser_compatible=True) == (
            '{"0":"\\u00E9\\/\\uD83D\\uDE00\\u007F"}'
        )
        assert dumps({queue(0): 5}, pretty=False, browser_compatible=True) == (
            '{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"t\\"}":5}'
        )

    def test_other_values(self):
        color = enum.Enum("Color", ["RED"])
        value = {"e": color.RED, "s": {"b", "a"}, "t": (1, 2), "n": float("nan"), "i": float("inf")}
        assert dumps(value, pretty=False) == '{"e":"RED","i":null,"n":null,"s":["a","b"],"t":[1,2]}'

    def test_what_has_no_place(self):
        with pytest.raises(TypeError):
            dumps({"a": object()})


class TestLoads:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{0:1}", {0: 1}),
            ("{-1:2}", {-1: 2}),
            ("{ 1 : 2 , 3:4 }", {1: 2, 3: 4}),
            ("{1.5:2}", {"1.5": 2}),
            ("{'a':'it\\'s'}", {"a": "it's"}),
            ("{a:1,$ref:2}", {"a": 1, "$ref": 2}),
            ("{true:2}", {"true": 2}),
            ('{{"topic":"t"}:5}', {(("topic", "t"),): 5}),
            ('{"a":1,}', {"a": 1}),
            ('{,"a":1}', {"a": 1}),
            ("[1,,2,]", [1, 2]),
            (
                "{'a':5L,'b':-1S,'c':2B,'d':1F,'e':1.5D,7L:1}",
                {"a": 5, "b": -1, "c": 2, "d": 1.0, "e": 1.5, 7: 1},
            ),
            ("{'a':Set[1,2],'b':TreeSet ['x']}", {"a": [1, 2], "b": ["x"]}),
            ('{/*c*/"a":1}', {"a": 1}),
            ('{//c\n"a":1}', {"a": 1}),
            ('{"a":NaN,"b":undefined}', {"a": None, "b": None}),
            ('{"a":NaN}', {"a": None}),
            ("{'a':\"\\x41\\v\\0\\7\\F\\/\"}", {"a": "A\v\0\7\f/"}),
            ("{'a':\"\\uD83D\\uDE00 \\uD800\"}", {"a": "😀 \ud800"}),
            ('{"a":"x\ny"}', {"a": "x\ny"}),
            ('{"a":1,"a":2}', {"a": 2}),
            ("{'a':-1.5e3}", {"a": -1500.0}),
            ("{'a':123456789012345678901234567890}", {"a": 123456789012345678901234567890}),
            ('\ufeff{"a":1}', {"a": 1}),
            (" \t\r\n\f\b[ ] ", []),
        ],
    )
    def test_accepted(self, text, value):
        assert loads(text) == value
        if "\ud800" not in text:
            assert loads(text.encode()) == value

    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("", 0),
            ("  ", 2),
            ('{"a":1}x', 7),
            ('{"a":1 "b":2}', 7),
            ("[1 2]", 3),
            ('{"a" 1}', 5),
            ('{"a":{}', 7),
            ("{a-b:1}", 2),
            ('{"a', 1),
            ("{'a\\'", 1),
            ('["\\q"]', 1),
            ("[nul]", 1),
            ("[Set]", 1),
            ("[Set{}]", 1),
            ("[.5]", 1),
            ("{[1]:2}", 1),
            ("{{'a':[]}:2}", 1),
            ("/* no end", 0),
            ("[" * 300, 201),
            ("{" * 300, 201),
            ("['a', " + "9" * 5000 + "]", 6),
        ],
    )
    def test_refused_with_the_position(self, text, position):
        with pytest.raises(FormatError) as refused:
            loads(text)
        assert refused.value.offset == position

    def test_bytes_that_are_no_text(self):
        with pytest.raises(FormatError) as refused:
            loads(b'{"a":"\xff"}')
        assert refused.value.offset == 6

    def test_object_keys_by_a_hook(self):
        assert loads('{{"topic":"t","queueId":3}:5}', object_key=lambda fields: fields["queueId"]) == {3: 5}


TEXT = st.text(st.characters())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
KEYS = (
    TEXT
    | st.integers()
    | st.dictionaries(TEXT, st.integers(), min_size=1, max_size=2).map(
        lambda fields: tuple(sorted(fields.items()))
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(KEYS, values.filter(lambda v: v is not None), max_size=4)
    ),
    max_leaves=20,
)


class TestProperties:
    @given(VALUES, st.booleans())
    def test_round_trip(self, value, pretty):
        assert loads(dumps(value, pretty=pretty)) == value

    @given(
        st.recursive(SCALARS, lambda values: st.lists(values) | st.dictionaries(TEXT, values), max_leaves=10)
    )
    def test_browser_compatible_is_json(self, value):
        text = dumps(value, browser_compatible=True)
        assert text.isascii()
        assert json.loads(text) == loads(text)

    @given(st.text() | st.text("{}[]:,'\"\\/*0a-e. tnu\n", max_size=40) | st.binary())
    def test_any_text(self, text):
        try:
            loads(text)
        except FormatError as e:
            assert 0 <= e.offset <= len(text)

    @given(VALUES, st.data())
    def test_truncated_or_changed(self, value, data):
        text = dumps(value)
        cut = data.draw(st.integers(0, len(text)))
        changed = (
            text[:cut]
            + data.draw(st.sampled_from(["", "'", '"', "{", "]", ",", "\\", "1"]))
            + text[cut + 1 :]
        )
        for broken in text[:cut], changed:
            try:
                loads(broken)
            except FormatError as e:
                assert 0 <= e.offset <= len(broken)


def test_javas_lists_have_lines_and_its_sets_and_arrays_have_none():
    assert dumps({"list": [1, 2]}) == '{\n\t"list":[\n\t\t1,\n\t\t2\n\t]\n}'
    assert dumps({"set": {2, 1}, "array": (3, "x"), "none": ()}) == (
        '{\n\t"array":[3,"x"],\n\t"none":[],\n\t"set":[1,2]\n}'
    )
    assert dumps({"set": ({"a": 1},)}) == '{\n\t"set":[{\n\t\t"a":1\n\t}]\n}'
