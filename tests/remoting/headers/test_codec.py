from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import HeaderError
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import admin, consume, namesrv, produce
from mqlake.remoting.headers.codec import CommandHeader, _fields_of

KINDS = [
    kind
    for module in (produce, consume, admin, namesrv)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, CommandHeader) and kind is not CommandHeader
]
VALUES = {
    "a text": st.text(),
    "a 32-bit number": st.integers(-(2**31), 2**31 - 1),
    "a 64-bit number": st.integers(-(2**63), 2**63 - 1),
    "true or false": st.booleans(),
}


@given(st.sampled_from(KINDS), st.data())
def test_round_trip(kind: type[CommandHeader], data: st.DataObject):
    values = {field.attribute: data.draw(VALUES[field.type_name]) for field in _fields_of(kind)}
    header = kind(**values)
    assert kind.decode(header.encode()) == header


def test_names_on_the_wire():
    for kind in KINDS:
        names = [field.name for field in _fields_of(kind)]
        assert len(names) == len(set(names))


def test_v2_has_one_letter_names():
    header = produce.SendMessageRequestHeaderV2(
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=-1,
        sys_flag=0,
        born_timestamp=2**40,
        flag=0,
        properties="K\x01v\x02",
        batch=False,
    )
    assert header.encode() == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "-1",
        "f": "0",
        "g": str(2**40),
        "h": "0",
        "i": "K\x01v\x02",
        "m": "false",
    }


def test_a_mandatory_field_is_missing():
    with pytest.raises(HeaderError, match="the custom field <topic> is null"):
        RemotingCommand(105).decode_header(namesrv.GetRouteInfoRequestHeader)


def test_a_mandatory_field_with_a_default_must_be_there_too():
    fields = {"topic": "T", "defaultTopic": "D", "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    with pytest.raises(HeaderError, match="<order>"):
        admin.CreateTopicRequestHeader.decode(fields)
    assert admin.CreateTopicRequestHeader.decode({**fields, "order": "TRUE"}).order is True


@pytest.mark.parametrize("text", ["x", "", "1.5", "2147483648", "-2147483649", "1_0", "9" * 5000])
def test_a_number_that_is_none(text: str):
    with pytest.raises(HeaderError, match="<queueId> is"):
        consume.GetMinOffsetRequestHeader.decode({"topic": "T", "queueId": text})


def test_of_a_long_text_the_error_shows_its_beginning():
    for text, shown in (("x" * 80, "x" * 80), ("x" * 81, "x" * 77 + "...")):
        with pytest.raises(HeaderError, match=f"is '{re.escape(shown)}', not a 32-bit number"):
            consume.GetMinOffsetRequestHeader.decode({"topic": "T", "queueId": text})


def test_64_bit_numbers():
    assert consume.GetMinOffsetResponseHeader.decode({"offset": str(2**63 - 1)}).offset == 2**63 - 1
    with pytest.raises(HeaderError, match="64-bit"):
        consume.GetMinOffsetResponseHeader.decode({"offset": str(2**63)})


def test_unknown_fields_are_ignored_and_defaults_hold():
    header = consume.GetMaxOffsetRequestHeader.decode({"topic": "T", "queueId": "1", "new": "x"})
    assert header == consume.GetMaxOffsetRequestHeader(topic="T", queue_id=1, committed=True)


def test_headers_have_no_dict():
    for kind in KINDS:
        assert dataclasses.is_dataclass(kind) and not hasattr(kind.__new__(kind), "__dict__")


def test_a_header_without_fields() -> None:
    assert (
        admin.GetAllProducerInfoRequestHeader.decode({"other": "1"})
        == admin.GetAllProducerInfoRequestHeader()
    )
