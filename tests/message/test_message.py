"""Messages: tags, keys and other properties, and the shapes of the classes."""

from __future__ import annotations

import pytest

from mqlake.errors import MessageError
from mqlake.message import (
    Message,
    MessageExt,
    MessageExtBrokerInner,
)


class TestMessage:
    def test_tags_and_keys_live_in_the_properties(self):
        message = Message("T", b"x", "TagA", "k1 k2")
        assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2"}
        assert (message.tags, message.keys) == ("TagA", "k1 k2")

    def test_keys_may_be_many(self):
        assert Message("T", keys=["a", "b"]).keys == "a b"
        message = Message("T")
        message.keys = iter(["c", "d"])
        assert message.properties == {"KEYS": "c d"}

    @pytest.mark.parametrize("name", ["tags", "keys", "uniq_key"])
    def test_set_and_cleared(self, name):
        message = Message("T")
        assert getattr(message, name) is None
        setattr(message, name, "x")
        assert getattr(message, name) == "x"
        setattr(message, name, None)
        assert message.properties == {}

    def test_delay_time_level(self):
        message = Message("T")
        assert message.delay_time_level == 0
        message.delay_time_level = 3
        assert message.properties == {"DELAY": "3"}
        assert message.delay_time_level == 3
        message.properties["DELAY"] = "+07"
        assert message.delay_time_level == 7

    @pytest.mark.parametrize(
        "text", ["soon", "", " 5", "5 ", "1_0", "\u0665", "2147483648", "1e1", "9" * 5000]
    )
    def test_a_delay_that_javas_store_cannot_read(self, text):
        message = Message("T", properties={"DELAY": text})
        with pytest.raises(MessageError, match="DELAY is not a number"):
            _ = message.delay_time_level

    def test_wait_store_msg_ok(self):
        message = Message("T")
        assert message.wait_store_msg_ok
        message.wait_store_msg_ok = False
        assert message.properties == {"WAIT": "false"}
        assert not message.wait_store_msg_ok
        message.properties["WAIT"] = "TRUE"
        assert message.wait_store_msg_ok

    def test_messages_do_not_share_properties(self):
        Message("T").properties["a"] = "b"
        assert Message("T").properties == {}

    def test_the_callers_properties_stay_as_they_are(self):
        properties = {"a": "b"}
        for kind in Message, MessageExt:
            message = kind("T", b"", "TagA", "k", properties=properties)
            assert message.properties == {"a": "b", "TAGS": "TagA", "KEYS": "k"}
        assert properties == {"a": "b"}

    def test_no_attribute_is_invented(self):
        for message in Message("T"), MessageExt("T"), MessageExtBrokerInner("T"):
            with pytest.raises(AttributeError):
                message.topik = "T"  # type: ignore[attr-defined]

    def test_every_slot_has_a_value(self):
        message = MessageExtBrokerInner("T", b"x", "tag", ["k"], queue_id=3, flag=7)
        for slot in {*Message.__slots__, *MessageExt.__slots__} - {"_record"}:
            assert getattr(message, slot) is not None
        assert (message.tags, message.keys, message.queue_id, message.flag) == ("tag", "k", 3, 7)

    def test_msg_id(self):
        message = MessageExt("T", store_host=("127.0.0.1", 10911), physical_offset=0)
        assert message.msg_id == "7F00000100002A9F0000000000000000"


@pytest.mark.parametrize("keys", [5, [1], [None]])
def test_keys_of_another_type_are_named(keys: object) -> None:
    for make in (
        lambda: Message("T", keys=keys),  # type: ignore[arg-type]
        lambda: setattr(Message("T"), "keys", keys),
    ):
        with pytest.raises(TypeError, match="keys has to be str, or several of them, not"):
            make()


@pytest.mark.parametrize("bad", ["a\ud800", b"\xc4\xe3".decode(errors="surrogateescape")])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: Message(bad), "topic"),
        (lambda bad: Message("T", tags=bad), "tags"),
        (lambda bad: Message("T", keys=bad), "keys"),
        (lambda bad: Message("T", keys=["a", bad]), "keys"),
        (lambda bad: Message("T", properties={"colour": bad}), "property 'colour'"),
        (lambda bad: Message("T", properties={bad: "x"}), "the name of a property"),
        (lambda bad: setattr(Message("T"), "keys", [bad]), "keys"),
        (lambda bad: setattr(Message("T"), "tags", bad), "tags"),
        (lambda bad: setattr(Message("T"), "uniq_key", bad), "uniq_key"),
    ],
)
def test_text_that_utf_8_cannot_hold_is_refused_where_it_is_given(make, name, bad):
    """Without it a broker would get another text than the producer has, or a frame that it cannot read."""
    with pytest.raises(MessageError, match=f"^Message: {name} holds "):
        make(bad)
