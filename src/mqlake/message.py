"""What a message is, apart from any bytes or files.

    Message               what a producer makes: topic, body, flag, properties
    └── MessageExt        a message with its place in the store: what a decode returns
        └── MessageExtBrokerInner      what a store is asked to put
            ├── MessageTimeUp        a delayed message that is due
            └── MessageExtBatch        the same for many: the body is an `encode_messages` blob

Tags, keys, the delay level and everything else that is optional live in the properties, a str → str mapping
that is stored as text: `key \\x01 value \\x02 key \\x01 value \\x02 …`. Names and numbers are RocketMQ's.

Timestamps are ms since 1970, offsets are bytes (physical) or messages (queue), hosts are (ip, port).
"""

from __future__ import annotations

import itertools
import random
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from mqlake.base.clock import now_ms
from mqlake.errors import ConfigError, IllegalTopicError, MessageError

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # isal has no wheel for every machine; zlib gives the same numbers, slower
    _crc32 = zlib.crc32

# --- property names ---------------------------------------------------------------------------------------

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK = "WAIT"
PROPERTY_DELAY_TIME_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_DUP_INFO = "DUP_INFO"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_POP_CK_OFFSET = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_REDIRECT = "REDIRECT"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_CRC32 = "__CRC32#"
PROPERTY_TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
"""Properties that begin so travel inside a broker only and are never stored."""

STRING_PROPERTY = frozenset(
    {
        PROPERTY_TRACE_SWITCH,
        PROPERTY_MSG_REGION,
        PROPERTY_KEYS,
        PROPERTY_TAGS,
        PROPERTY_WAIT_STORE_MSG_OK,
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MAX_OFFSET,
        PROPERTY_BUYER_ID,
        PROPERTY_ORIGIN_MESSAGE_ID,
        PROPERTY_TRANSFER_FLAG,
        PROPERTY_CORRECTION_FLAG,
        PROPERTY_MQ2_FLAG,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_CONSUME_START_TIMESTAMP,
        PROPERTY_POP_CK,
        PROPERTY_POP_CK_OFFSET,
        PROPERTY_FIRST_POP_TIME,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_DUP_INFO,
        PROPERTY_EXTEND_UNIQ_INFO,
        PROPERTY_INSTANCE_ID,
        PROPERTY_CORRELATION_ID,
        PROPERTY_MESSAGE_REPLY_TO_CLIENT,
        PROPERTY_MESSAGE_TTL,
        PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
        PROPERTY_PUSH_REPLY_TIME,
        PROPERTY_CLUSTER,
        PROPERTY_MESSAGE_TYPE,
        PROPERTY_INNER_MULTI_QUEUE_OFFSET,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TIMER_ENQUEUE_MS,
        PROPERTY_TIMER_DEQUEUE_MS,
        PROPERTY_TIMER_ROLL_TIMES,
        PROPERTY_TIMER_OUT_MS,
        PROPERTY_TIMER_DEL_UNIQKEY,
        PROPERTY_TIMER_DELAY_LEVEL,
        PROPERTY_BORN_HOST,
        PROPERTY_BORN_TIMESTAMP,
        PROPERTY_DLQ_ORIGIN_TOPIC,
        PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
        PROPERTY_CRC32,
    }
)
"""The names a user property may not take."""

KEY_SEPARATOR = " "
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

# --- topics -----------------------------------------------------------------------------------------------

AUTO_CREATE_TOPIC_KEY_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)
NOT_ALLOWED_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Topics that only the broker itself puts messages into."""

TOPIC_LENGTH_MAX = 127
_TOPIC_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def validate_topic(topic: str) -> None:
    """Raise IllegalTopicError unless `topic` is 1 to 127 characters of [%|a-zA-Z0-9_-]."""
    if not topic or topic.isspace():
        raise IllegalTopicError("the topic is blank")
    if not _TOPIC_CHARACTERS.issuperset(topic):
        bad = next(character for character in topic if character not in _TOPIC_CHARACTERS)
        raise IllegalTopicError(f"topic {topic!r} contains {bad!r}; allowed are letters, digits and % | _ -")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise IllegalTopicError(
            f"topic {topic!r} has {len(topic)} characters; {TOPIC_LENGTH_MAX} are allowed"
        )


def is_system_topic(topic: str) -> bool:
    """True for the topics that RocketMQ keeps for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


# --- system flag ------------------------------------------------------------------------------------------


class MessageSysFlag:
    """The bits of a record's SYSFLAG.

    10 9 8 compression type | 7 inner batch | 6 need unwrap | 5 store host v6 | 4 born host v6
    | 3 2 transaction type | 1 multi tags | 0 compressed
    """

    COMPRESSED_FLAG = 0x1
    MULTI_TAGS_FLAG = 0x2
    TRANSACTION_NOT_TYPE = 0x0
    TRANSACTION_PREPARED_TYPE = 0x4
    TRANSACTION_COMMIT_TYPE = 0x8
    TRANSACTION_ROLLBACK_TYPE = 0xC
    BORNHOST_V6_FLAG = 0x10
    STOREHOSTADDRESS_V6_FLAG = 0x20
    NEED_UNWRAP_FLAG = 0x40
    INNER_BATCH_FLAG = 0x80
    COMPRESSION_LZ4_TYPE = 0x100
    COMPRESSION_ZSTD_TYPE = 0x200
    COMPRESSION_ZLIB_TYPE = 0x300
    COMPRESSION_TYPE_COMPARATOR = 0x700

    @staticmethod
    def transaction_value(flag: int) -> int:
        """One of the four TRANSACTION_* values."""
        return flag & 0xC

    @staticmethod
    def compression_type(flag: int) -> int:
        """One of the COMPRESSION_*_TYPE values; 0, from before there was a choice, counts as zlib."""
        return flag & 0x700 or 0x300


# --- hosts ------------------------------------------------------------------------------------------------

Host = tuple[str, int]
"""IP address as text (v4 or v6, never a name) and port."""

NO_HOST: Host = ("0.0.0.0", 0)

_PORT = struct.Struct(">i")


@lru_cache(maxsize=4096)
def host_bytes(host: Host) -> bytes:
    """The host as records hold it: address, then the port as i32: 8 bytes for IPv4, 20 for IPv6.

    Raises MessageError when `host` is not an IP address and a port.
    """
    ip, port = host
    try:
        address = IPv6Address(ip) if ":" in ip else IPv4Address(ip)
        return address.packed + _PORT.pack(port)
    except (ValueError, struct.error) as e:
        raise MessageError(f"not an IP address and port: {host!r}") from e


@lru_cache(maxsize=4096)
def host_from_bytes(data: bytes) -> Host:
    """Inverse of `host_bytes`; 8 or 20 bytes. Raises MessageError for any other length."""
    if len(data) == 8:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}", _PORT.unpack_from(data, 4)[0]
    if len(data) == 20:
        return str(IPv6Address(data[:16])), _PORT.unpack_from(data, 16)[0]
    raise MessageError(f"a host has 8 or 20 bytes, not {len(data)}")


# --- messages ---------------------------------------------------------------------------------------------


class Message:
    """What a producer makes.

    `keys` is one key, or several (any iterable): stored joined by one space. `properties` becomes the message's
    own, without a copy, unless tags or keys must be added to it.
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
            properties[PROPERTY_KEYS] = keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)
        self.properties = properties
        check_types(self)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @tags.setter
    def tags(self, tags: str | None) -> None:
        self._set(PROPERTY_TAGS, tags)

    @property
    def keys(self) -> str | None:
        """All keys in one string, separated by single spaces."""
        return self.properties.get(PROPERTY_KEYS)

    @keys.setter
    def keys(self, keys: str | Iterable[str] | None) -> None:
        self._set(PROPERTY_KEYS, keys if keys is None or isinstance(keys, str) else KEY_SEPARATOR.join(keys))

    @property
    def uniq_key(self) -> str | None:
        """The id its producer gave the message."""
        return self.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

    @uniq_key.setter
    def uniq_key(self, uniq_key: str | None) -> None:
        self._set(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniq_key)

    @property
    def delay_time_level(self) -> int:
        """1 to 18 with the default table, 0 for no delay. Raises MessageError when it is no number."""
        text = self.properties.get(PROPERTY_DELAY_TIME_LEVEL)
        if text is None:
            return 0
        try:
            return int(text)
        except ValueError as e:
            raise MessageError(f"the property {PROPERTY_DELAY_TIME_LEVEL} is not a number: {text!r}") from e

    @delay_time_level.setter
    def delay_time_level(self, level: int) -> None:
        self.properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits until the message is as safe as the store can make it."""
        text = self.properties.get(PROPERTY_WAIT_STORE_MSG_OK)
        return text is None or text.lower() == "true"

    @wait_store_msg_ok.setter
    def wait_store_msg_ok(self, wait: bool) -> None:
        self.properties[PROPERTY_WAIT_STORE_MSG_OK] = "true" if wait else "false"

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, body=<{len(self.body)} bytes>, {self.properties!r})"
        )


def check_types(message: Message) -> None:
    """TypeError, which names the part, for a message that was made or changed with a value of the wrong type."""
    if not isinstance(message.topic, str):
        raise _wrong_type("topic", "str", message.topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise _wrong_type("body", "bytes", message.body)
    if not isinstance(message.flag, int):
        raise _wrong_type("flag", "int", message.flag)
    if not isinstance(message.properties, dict):
        raise _wrong_type("properties", "dict", message.properties)
    for name, value in message.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"Message: property {name!r} has to be str with a str, not {value!r}")


def _wrong_type(name: str, needed: str, value: object) -> TypeError:
    text = f"Message: {name} has to be {needed}, not {type(value).__name__}"
    return TypeError(
        f"{text}: encode() makes bytes of it" if needed == "bytes" and isinstance(value, str) else text
    )


class MessageExt(Message):
    """A message with its place in the store. `magic` and `store_size` are 0 until it has been stored."""

    __slots__ = (
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

    def __init__(
        self,
        topic: str,
        body: bytes = b"",
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        *,
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
        # Message.__init__ written out: a call more would be a fifth of the cost, at every put.
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
    """What a store is asked to put; the store fills in offsets, store time, store host and size."""

    __slots__ = ()


class MessageTimeUp(MessageExtBrokerInner):
    """A delayed message that is due: stored where `topic` and `queue_id` say. Its properties stay as they are, the
    delay level too, as RocketMQ leaves them."""

    __slots__ = ()


class MessageExtBatch(MessageExtBrokerInner):
    """Many messages of one topic and queue: `body` is what `formats.batch.encode_messages` gives."""

    __slots__ = ()


# --- hashes and checksums ---------------------------------------------------------------------------------


def java_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 code units: a signed 32 bit number."""
    h = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            h = (31 * h + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            h = (31 * h + (high << 8 | low)) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h


@lru_cache(maxsize=65536)
def tags_code(tags: str | None) -> int:
    """What a consume queue keeps of the tags: their hash, 0 when there are none."""
    return java_hash(tags) if tags else 0


def crc32(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 (the one of zlib) without its top bit, as RocketMQ stores it everywhere."""
    return _crc32(data) & 0x7FFFFFFF


# --- properties -------------------------------------------------------------------------------------------


def properties_to_string(properties: Mapping[str, str]) -> str:
    """The stored text; always ends with a separator unless empty. Values that are None are left out."""
    text = ""
    for name, value in properties.items():
        if value is not None:
            text = f"{text}{name}\x01{value}\x02"
    return text


def string_to_properties(text: str) -> dict[str, str]:
    """Parse the stored text; pieces without a key or a value are skipped, the last \\x02 may be absent."""
    properties = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if value and name:
            properties[name] = value
    return properties


def properties_to_bytes(properties: Mapping[str, str]) -> bytes:
    """`properties_to_string` in UTF-8; what cannot be encoded (lone surrogates) becomes `?`, as in Java."""
    text = ""
    for name, value in properties.items():  # not by a call: this runs at every put
        if value is not None:
            text = f"{text}{name}\x01{value}\x02"
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def bytes_to_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Parse stored bytes; invalid UTF-8 becomes U+FFFD, as in Java. Never raises."""
    return string_to_properties(str(data, "utf-8", "replace"))


# --- message ids ------------------------------------------------------------------------------------------

_OFFSET = struct.Struct(">q")


def create_message_id(host: Host, physical_offset: int) -> str:
    """The offset message id: host and physical offset in upper case hexadecimal, 32 or 56 digits."""
    return (host_bytes(host) + _OFFSET.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[Host, int]:
    """Inverse of `create_message_id`. Raises MessageError."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError as e:
        raise MessageError(f"not a message id: {message_id!r} is not hexadecimal") from e
    if len(message_id) not in (32, 56) or 2 * len(data) != len(message_id):
        raise MessageError(
            f"not a message id: {message_id!r} has {len(message_id)} digits instead of 32 or 56"
        )
    return host_from_bytes(data[:-8]), _OFFSET.unpack_from(data, len(data) - 8)[0]


class _UniqIds:
    """Client ids: address (4) | pid (2) | class loader hash (4) | ms since the month began (4) | counter (2).

    Nothing here asks the operating system for an address: like Java on a machine without one, the four bytes
    are made up. They and the hash are random, so two processes do not share a prefix.
    """

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._address = random.SystemRandom().getrandbits(32)
        self._hash = random.SystemRandom().getrandbits(32)
        self._prefix = (0, "")  # of a native thread id
        self._month_start = self._month_end = 0

    def create(self) -> str:
        # The native id of the main thread is the process id. Taking the caller's makes sure that a forked child,
        # which has its parent's counter, does not give its parent's ids out again.
        native_id = threading.get_native_id()
        known, prefix = self._prefix
        if native_id != known:
            prefix = f"{self._address:08X}{native_id & 0xFFFF:04X}{(self._hash + (native_id >> 16)) & 0xFFFFFFFF:08X}"
            self._prefix = (native_id, prefix)
        now = now_ms()
        if now >= self._month_end:
            self._set_month(now)
        elapsed = max(0, now - self._month_start) & 0xFFFFFFFF
        return f"{prefix}{elapsed:08X}{next(self._counter) & 0xFFFF:04X}"

    def _set_month(self, now: int) -> None:
        year, month = time.localtime(now // 1000)[:2]
        self._month_start = int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000
        self._month_end = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))) * 1000


create_uniq_id = _UniqIds().create
"""() -> str: a new client message id (the property UNIQ_KEY), 32 hexadecimal digits."""


# --- delay levels -----------------------------------------------------------------------------------------

DEFAULT_MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> dict[int, int]:
    """`"1s 5s 1m"` → {1: 1000, 2: 5000, 3: 60000}: delay in ms by level. Raises ConfigError."""
    table = {}
    for level, item in enumerate(text.split(), start=1):
        number, unit = item[:-1], item[-1]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"delay level {item!r} is not a number followed by s, m, h or d")
        table[level] = int(number) * _UNIT_MS[unit]
    if not table:
        raise ConfigError("there are no delay levels")
    return table


def deliver_timestamp(level: int, store_timestamp: int, table: Mapping[int, int]) -> int:
    """When a message of this delay level is due, in ms. Levels above the last count as the last."""
    delay = table.get(level)
    if delay is None:
        delay = table[max(table)] if table and level > max(table) else 1000
    return store_timestamp + delay


def delay_level_to_queue_id(level: int) -> int:
    """The queue of SCHEDULE_TOPIC that holds the messages of this level."""
    return level - 1


def queue_id_to_delay_level(queue_id: int) -> int:
    """Inverse of `delay_level_to_queue_id`."""
    return queue_id + 1
