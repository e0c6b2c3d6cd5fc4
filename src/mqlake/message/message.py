"""Messages, apart from any bytes or files.

Message               topic, body, flag, properties: made by a producer
└── MessageExt        a message with its place in the store: returned by a decode
    └── MessageExtBrokerInner      a message to put into a store
        ├── MessageTimeUp        a delayed message that is due
        └── MessageExtBatch        many messages: the body is an `encode_messages` blob
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mqlake.base.text import unencodable
from mqlake.errors import MessageError
from mqlake.message.ids import NO_HOST, Host, create_message_id
from mqlake.message.properties import (
    KEY_SEPARATOR,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
)

_NUMBER = re.compile("[+-]?[0-9]{1,100}")
_ATTRIBUTES = {
    PROPERTY_TAGS: "tags",
    PROPERTY_KEYS: "keys",
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: "uniq_key",
}
"""The properties that have an attribute of their own."""


class Message:
    """A message as a producer makes it.

    `keys` is one key, or several (any iterable of str); they are stored joined by spaces, and `message.keys` is that
    one string. `properties` is a dict of str to str, not copied unless tags or keys must be added to it.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    topic: str
    body: bytes
    flag: int
    properties: dict[str, str]

    def __init__(
        self,
        topic: str,
        body: bytes = b"",
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        *,
        flag: int = 0,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        if tags is not None and type(tags) is not str:
            raise _wrong_type("tags", "str", tags)
        if properties is None:
            properties = {}
        elif tags or keys:
            properties = properties.copy()
        if tags:
            properties[PROPERTY_TAGS] = tags
        if keys:
            properties[PROPERTY_KEYS] = _joined(keys)
        self.properties = properties
        check_types(self)

    @property
    def tags(self) -> str | None:
        """The one tag, that subscriptions choose by; None without one."""
        return self.properties.get(PROPERTY_TAGS)

    @tags.setter
    def tags(self, tags: str | None) -> None:
        self._set(PROPERTY_TAGS, tags)

    @property
    def keys(self) -> str | None:
        """All keys in one string, separated by single spaces; None without any. Takes several keys as well."""
        return self.properties.get(PROPERTY_KEYS)

    @keys.setter
    def keys(self, keys: str | Iterable[str] | None) -> None:
        self._set(PROPERTY_KEYS, None if keys is None else _joined(keys))

    @property
    def uniq_key(self) -> str | None:
        """The message's client id, made by its producer."""
        return self.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

    @uniq_key.setter
    def uniq_key(self, uniq_key: str | None) -> None:
        self._set(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniq_key)

    @property
    def delay_time_level(self) -> int:
        """1 to 18 with the default table, 0 for no delay. Raises MessageError if it is not a number."""
        return self._number(PROPERTY_DELAY_TIME_LEVEL, 32) or 0

    @delay_time_level.setter
    def delay_time_level(self, level: int) -> None:
        self.properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)

    @property
    def deliver_time_ms(self) -> int | None:
        """When consumers get it, ms since 1970; None for at once, or for a delay. MessageError if it is no number."""
        return self._number(PROPERTY_TIMER_DELIVER_MS)

    @deliver_time_ms.setter
    def deliver_time_ms(self, time_ms: int) -> None:
        self.properties[PROPERTY_TIMER_DELIVER_MS] = str(time_ms)

    @property
    def delay_time_ms(self) -> int | None:
        """How long after the broker has it consumers get it, ms. MessageError if it is no number."""
        return self._number(PROPERTY_TIMER_DELAY_MS)

    @delay_time_ms.setter
    def delay_time_ms(self, delay_ms: int) -> None:
        self.properties[PROPERTY_TIMER_DELAY_MS] = str(delay_ms)

    def _number(self, name: str, bits: int = 64) -> int | None:
        text = self.properties.get(name)
        if text is None:
            return None
        # what int() reads besides, " 5" or "1_0", is no number where the log is read: to dispatch, and to Java's store
        if _NUMBER.fullmatch(text) and -(1 << bits - 1) <= (number := int(text)) < 1 << bits - 1:
            return number
        raise MessageError(f"the property {name} is not a number: {text!r}")

    @property
    def wait_store_msg_ok(self) -> bool:
        """True if the sender waits until the message is on disk, as far as the store's configuration demands."""
        text = self.properties.get(PROPERTY_WAIT_STORE_MSG_OK)
        return text is None or text.lower() == "true"

    @wait_store_msg_ok.setter
    def wait_store_msg_ok(self, wait: bool) -> None:
        self.properties[PROPERTY_WAIT_STORE_MSG_OK] = "true" if wait else "false"

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            if type(value) is str:
                _check_text(_ATTRIBUTES[name], value)
            self.properties[name] = value

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, body=<{len(self.body)} bytes>, {self.properties!r})"
        )


def check_types(message: Message) -> None:
    """Raises TypeError if a value of the message has the wrong type, MessageError for a text that UTF-8 cannot hold.

    Both name the attribute or the property.
    """
    if not isinstance(message.topic, str):
        raise _wrong_type("topic", "str", message.topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise _wrong_type("body", "bytes", message.body)
    if not isinstance(message.flag, int):
        raise _wrong_type("flag", "int", message.flag)
    if not isinstance(message.properties, dict):
        raise _wrong_type("properties", "dict", message.properties)
    _check_text("topic", message.topic)
    for name, value in message.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"Message: property {name!r} has to be str with a str, not {value!r}")
        if not (name.isascii() and value.isascii()):
            _check_text("the name of a property", name)
            _check_text(_ATTRIBUTES.get(name) or f"property {name!r}", value)


def _check_text(what: str, text: str) -> None:
    if wrong := unencodable(text):
        raise MessageError(f"Message: {what} {wrong}")


def _joined(keys: str | Iterable[str]) -> str:
    try:
        return keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)
    except TypeError:
        raise _wrong_type("keys", "str, or several of them", keys) from None


def _wrong_type(name: str, needed: str, value: object) -> TypeError:
    text = f"Message: {name} has to be {needed}, not {type(value).__name__}"
    return TypeError(
        f"{text}: encode() makes bytes of it" if needed == "bytes" and isinstance(value, str) else text
    )


class MessageExt(Message):
    """A message with its place in the store. `magic` and `store_size` are 0 until it has been stored.

    One that was decoded reads its fields from the record when they are asked for (mqlake.message.unread).
    """

    __slots__ = (
        "_record",
        "body_crc",
        "born_host",
        "born_timestamp",
        "magic",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_size",
        "store_timestamp",
        "sys_flag",
    )

    _record: tuple[bytes, int]
    """Records, and the position of its own among them, if the message was decoded."""

    def __init__(
        self,
        topic: str,
        body: bytes = b"",
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
        queue_id: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: Host = NO_HOST,
        store_timestamp: int = 0,
        store_host: Host = NO_HOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        queue_offset: int = 0,
        physical_offset: int = 0,
        body_crc: int = 0,
        store_size: int = 0,
        magic: int = 0,
    ) -> None:
        # Message.__init__ inlined: the call would add a fifth to the cost of every put.
        # Keyword-only arguments would take a quarter more time.
        self.topic = topic
        self.body = body
        self.flag = flag
        if properties is None:
            properties = {}
        elif tags or keys:
            properties = properties.copy()
        if tags:
            properties[PROPERTY_TAGS] = tags
        if keys:
            properties[PROPERTY_KEYS] = keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)
        self.properties = properties
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.body_crc = body_crc
        self.store_size = store_size
        self.magic = magic

    @property
    def msg_id(self) -> str:
        """The offset message id: where the record is, as 32 (IPv4 store host) or 56 hexadecimal digits."""
        return create_message_id(self.store_host, self.physical_offset)


class MessageExtBrokerInner(MessageExt):
    """A message to put; the store fills in offsets, store time, store host and size."""

    __slots__ = ()


class MessageTimeUp(MessageExtBrokerInner):
    """A delayed message that is due: stored in `topic` and `queue_id` as they are. Its properties are kept, the delay
    level too, as in RocketMQ."""

    __slots__ = ()


class MessageExtBatch(MessageExtBrokerInner):
    """Many messages of one topic and queue: `body` is the result of `formats.batch.encode_messages`."""

    __slots__ = ()
