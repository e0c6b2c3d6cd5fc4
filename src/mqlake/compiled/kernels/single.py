# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""One message or batch of a Python program, from the object that it is to records, and to the object that answers it.

    MessageExtBrokerInner ─ slots, by their offsets ─▶ fields ─ write_record, append_items ─▶ mapped file
    PutMessageResult      ◀─ new objects, in slots ─────────────────────────────────────────┘

Called by Python as a builtin function (`store.log.single_put`), so the interpreter lock is held from the first line to
the last, and no other thread of Python sees anything half done. It calls Python's C API as an extension module would;
an address is an int64.

It does usual messages, and answers None, having changed nothing, for all that is not one, has the wrong type or does
not fit: CommitLog does those, and raises or refuses where that is due.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled, compiled_for_c
from mqlake.compiled.kernels.primitives import (
    CLOCK_REALTIME,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    clock,
    keep_order,
    put,
    store32,
    store64,
)
from mqlake.compiled.kernels.records import append_items, read_item, terminate, write_record
from mqlake.compiled.kernels.single_layout import (
    APPEND_FIELDS,
    APPEND_OK,
    ASLEEP,
    BATCH_MAX,
    BATCH_TYPE,
    BODY,
    BORN_HOST,
    BORN_TIMESTAMP,
    BYTES,
    CLOCK,
    COMMITTED,
    DICT,
    FALSE,
    FILE,
    FILE_ADDRESS,
    FILE_BASE,
    FILE_SIZE,
    FILE_TIMESTAMP,
    FLAG,
    FLAG_BITS,
    FLAGS,
    HISTOGRAM,
    HISTOGRAM_SIZE,
    HOSTS,
    INT,
    LOCKED,
    MESSAGE_TYPE,
    NEXT_AT,
    NEXT_NAME,
    NEXT_VALUE,
    NO_REASON,
    NONE,
    NOTIFY,
    NUMBERS,
    OFFSETS,
    PHYSICAL_OFFSET,
    PIECES,
    PREPARED_OFFSET,
    PROPERTIES,
    PROPERTIES_MAX,
    PUT_BYTES,
    PUT_OK,
    PUTS,
    QUEUE_ID,
    QUEUE_OFFSET,
    REASON,
    RECONSUME_TIMES,
    RECORD_MAX,
    RESULT_TYPE,
    SLOW,
    SLOW_BODY,
    SLOW_TOPIC,
    SLOWEST,
    SPECIAL,
    STATE,
    STATUS,
    STORE_HOST,
    STORE_TIMESTAMP,
    STR,
    SYS_FLAG,
    TEMPLATE,
    TOPIC,
    TOPIC_BYTES,
    TOPIC_FIELD,
    TOPIC_LENGTH,
    TOPIC_PUTS,
    TOPICS,
    TUPLE,
    TYPE_OF,
    WAKE,
    WROTE,
    ZERO,
)
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.record import (
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    END_FILE_MIN_BLANK_LENGTH,
    HOST_FLAGS,
    PREPARED_OFFSET_POSITION_V4,
    QUEUE_ID_POSITION,
    RECONSUME_TIMES_POSITION_V4,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_POSITION_V4,
    SYS_FLAG_POSITION,
)
from mqlake.message import MessageSysFlag

HEAD_SIZE = RECORD_SIZE_MIN - 3
STORE_HOST_POSITION_V4 = STORE_TIMESTAMP_POSITION_V4 + 8
SPECIAL_FLAGS = MessageSysFlag.TRANSACTION_PREPARED_TYPE | MessageSysFlag.INNER_BATCH_FLAG | HOST_FLAGS

_i64, _i32 = types.int64, types.int32
_call = types.ExternalFunction("PyObject_CallNoArgs", _i64(_i64))
_decref = types.ExternalFunction("Py_DecRef", types.void(_i64))
_incref = types.ExternalFunction("Py_IncRef", types.void(_i64))
_clear_error = types.ExternalFunction("PyErr_Clear", types.void())
_dict_get = types.ExternalFunction("PyDict_GetItemWithError", _i64(_i64, _i64))
_dict_next = types.ExternalFunction("PyDict_Next", _i32(_i64, _i64, _i64, _i64))
_dict_set = types.ExternalFunction("PyDict_SetItem", _i32(_i64, _i64, _i64))
_set_has = types.ExternalFunction("PySet_Contains", _i32(_i64, _i64))
_utf8 = types.ExternalFunction("PyUnicode_AsUTF8AndSize", _i64(_i64, _i64))
_new_bytes = types.ExternalFunction("PyBytes_FromStringAndSize", _i64(_i64, _i64))
_bytes_at = types.ExternalFunction("PyBytes_AsString", _i64(_i64))
_bytes_size = types.ExternalFunction("PyBytes_Size", _i64(_i64))
_to_number = types.ExternalFunction("PyLong_AsLongLong", _i64(_i64))
_of_number = types.ExternalFunction("PyLong_FromLongLong", _i64(_i64))
_error = types.ExternalFunction("PyErr_Occurred", _i64())
_new_tuple = types.ExternalFunction("PyTuple_New", _i64(_i64))
_tuple_get = types.ExternalFunction("PyTuple_GetItem", _i64(_i64, _i64))
_tuple_size = types.ExternalFunction("PyTuple_Size", _i64(_i64))
_tuple_set = types.ExternalFunction("PyTuple_SetItem", _i32(_i64, _i64, _i64))
_new_object = types.ExternalFunction("PyType_GenericAlloc", _i64(_i64, _i64))


def _at(kind):
    @intrinsic
    def at(_context, _address):
        """What lies at an address, to be used like an array."""

        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return at


words = _at(types.int64)
half_words = _at(types.int32)
octets = _at(types.uint8)


@compiled
def slot(owner, s, which):
    return words(owner + s[which])[0]


@compiled
def fill(owner, s, which, value):
    """Sets a slot."""
    _incref(value)
    place = words(owner + s[which])
    before = place[0]
    place[0] = value
    _decref(before)


@compiled
def is_a(value, s, kind):
    return value != 0 and words(value + s[TYPE_OF])[0] == s[kind]


@compiled
def number(value, s):
    """(number, whether it is one of 64 bits)."""
    if not is_a(value, s, INT):
        return np.int64(0), False
    found = _to_number(value)
    if found == -1 and _error() != 0:
        _clear_error()
        return np.int64(0), False
    return found, True


@compiled
def found_in(items, key):
    """What a dictionary has, else 0."""
    found = _dict_get(items, key)
    if found == 0:
        _clear_error()
    return found


@compiled
def read_number(s, message, which, bits):
    """Notes the number in a slot; whether it is one that the record has room for."""
    found, good = number(slot(message, s, which), s)
    s[NUMBERS + which] = found
    return good and (bits == 64 or -0x80000000 <= found <= 0x7FFFFFFF)


@compiled
def read_host(s, message, which):
    """Notes a host's 8 bytes as a record has them; whether it is one that is known, with an IPv4 address."""
    value = slot(message, s, which)
    if not is_a(value, s, TUPLE) or _tuple_size(value) != 2:
        return False
    # of these classes alone: comparing others may run code of anybody
    if not is_a(_tuple_get(value, 0), s, STR) or not is_a(_tuple_get(value, 1), s, INT):
        return False
    known = found_in(s[HOSTS], value)
    if known == 0 or _bytes_size(known) != 8:
        return False
    s[NUMBERS + which] = words(_bytes_at(known))[0]
    return True


@compiled
def read_numbers(s, message):
    return (
        read_number(s, message, FLAG, 32)
        and read_number(s, message, QUEUE_ID, 32)
        and read_number(s, message, SYS_FLAG, 32)
        and read_number(s, message, RECONSUME_TIMES, 32)
        and read_number(s, message, BORN_TIMESTAMP, 64)
        and read_number(s, message, PREPARED_OFFSET, 64)
        and read_host(s, message, BORN_HOST)
        and read_host(s, message, STORE_HOST)
        and s[NUMBERS + SYS_FLAG] & SPECIAL_FLAGS == 0
    )


@compiled
def read_properties(properties, s):
    """Where their names and values are: PIECES; (how many, bytes as a record has them), -1 if not usual."""
    none = np.int64(-1), np.int64(0)
    at = s[STATE]
    count, size = np.int64(0), np.int64(0)
    s[NEXT_AT] = 0
    while _dict_next(properties, at + 8 * NEXT_AT, at + 8 * NEXT_NAME, at + 8 * NEXT_VALUE) != 0:
        name, value = s[NEXT_NAME], s[NEXT_VALUE]
        if value == s[NONE]:
            continue
        if count == PROPERTIES_MAX or not is_a(name, s, STR) or not is_a(value, s, STR):
            return none
        if _set_has(s[SPECIAL], name) != 0:
            _clear_error()
            return none
        piece = PIECES + 4 * count
        s[piece] = _utf8(name, at + 8 * (piece + 1))
        s[piece + 2] = _utf8(value, at + 8 * (piece + 3))
        if s[piece] == 0 or s[piece + 2] == 0:
            _clear_error()
            return none
        size += s[piece + 1] + s[piece + 3] + 2
        count += 1
    return count, size


@compiled
def put_properties(out, at, count, s):
    for n in range(count):
        piece = PIECES + 4 * n
        at = put(out, at, octets(s[piece]), np.int64(0), s[piece + 1])
        out[np.uint64(at)] = NAME_VALUE_SEPARATOR
        at = put(out, at + 1, octets(s[piece + 2]), np.int64(0), s[piece + 3])
        out[np.uint64(at)] = PROPERTY_SEPARATOR
        at += 1
    return at


@compiled
def is_locked(s):
    answer = _call(s[LOCKED])
    if answer == 0:
        _clear_error()
        return True
    _decref(answer)
    return answer != s[FALSE]


@compiled
def write_message(s, body, topic_at, start, size, queue_offset, store_timestamp, properties):
    """The record, all but its size."""
    log = octets(s[FILE_ADDRESS])
    after = write_record(
        log,
        start,
        size,
        octets(s[STATE] + 8 * TEMPLATE),
        HEAD_SIZE,
        s[NUMBERS + FLAG],
        queue_offset,
        s[FILE_BASE] + start,
        octets(_bytes_at(body)),
        np.int64(0),
        _bytes_size(body),
        octets(topic_at + 8 * TOPIC_FIELD),
        np.int64(0),
        words(topic_at)[TOPIC_LENGTH],
    )
    write_fields(s, log, s[FILE_ADDRESS] + start, start, store_timestamp)
    put_properties(log, after, properties, s)
    terminate(log, start + size)


@compiled
def count_items(body):
    """The messages of a batch; 0 when there are none, or it is damaged."""
    data, size = octets(_bytes_at(body)), _bytes_size(body)
    count, item = np.int64(0), np.int64(0)
    while item < size:
        item_size, _, _ = read_item(data, item, size)
        if item_size == 0:
            return np.int64(0)
        item += item_size
        count += 1
    return count


@compiled
def write_batch(s, body, topic_at, start, size, queue_offset, store_timestamp, places, sizes):
    """A record of each message, `size` bytes together, all but the first one's size; whether they could be. Where they
    are goes into the bytes `places`."""
    head = octets(s[STATE] + 8 * TEMPLATE)
    write_fields(s, head, s[STATE] + 8 * TEMPLATE, np.int64(0), store_timestamp)
    _, wrote = append_items(
        octets(s[FILE_ADDRESS]),
        start,
        s[FILE_SIZE] - start,
        octets(_bytes_at(body)),
        _bytes_size(body),
        head,
        HEAD_SIZE,
        octets(topic_at + 8 * TOPIC_FIELD),
        np.int64(0),
        words(topic_at)[TOPIC_LENGTH],
        head,
        np.int64(0),
        np.int64(0),
        queue_offset,
        s[FILE_BASE],
        size,
        words(_bytes_at(places)),
        half_words(_bytes_at(sizes)),
    )
    return wrote == size


@compiled
def write_fields(s, log, at, start, store_timestamp):
    """The fields of a record that write_record does not know; `at` is where log[start] lies."""
    store32(log, start + QUEUE_ID_POSITION, s[NUMBERS + QUEUE_ID])
    store32(log, start + SYS_FLAG_POSITION, s[NUMBERS + SYS_FLAG])
    store64(log, start + BORN_TIMESTAMP_POSITION, s[NUMBERS + BORN_TIMESTAMP])
    words(at + BORN_HOST_POSITION)[0] = s[NUMBERS + BORN_HOST]
    store64(log, start + STORE_TIMESTAMP_POSITION_V4, store_timestamp)
    words(at + STORE_HOST_POSITION_V4)[0] = s[NUMBERS + STORE_HOST]
    store32(log, start + RECONSUME_TIMES_POSITION_V4, s[NUMBERS + RECONSUME_TIMES])
    store64(log, start + PREPARED_OFFSET_POSITION_V4, s[NUMBERS + PREPARED_OFFSET])


@compiled
def set_item(items, at, value):
    """Of a new tuple."""
    _incref(value)
    _tuple_set(items, at, value)


@compiled
def fill_result(s, result, fields, place, size, host, timestamp, offset, places, count):
    """From new objects and the host, none of which it takes."""
    set_item(fields, 0, s[APPEND_OK])
    set_item(fields, 1, place)
    set_item(fields, 2, size)
    set_item(fields, 3, host)
    set_item(fields, 4, timestamp)
    set_item(fields, 5, offset)
    set_item(fields, 6, places)
    set_item(fields, 7, count)
    fill(result, s, STATUS, s[PUT_OK])
    fill(result, s, APPEND_FIELDS, fields)
    fill(result, s, REASON, s[NO_REASON])


@compiled
def count_put(s, topic_at, body_size, count, size, began):
    topic = words(topic_at)
    s[PUTS] += count
    s[PUT_BYTES] += size
    topic[TOPIC_PUTS] += count
    topic[TOPIC_BYTES] += size
    took = max((clock(CLOCK_REALTIME, s, CLOCK) - began) // 1_000_000, 0)
    s[SLOWEST] = max(s[SLOWEST], took)
    if took >= s[SLOW]:
        s[SLOW], s[SLOW_TOPIC], s[SLOW_BODY] = took, topic_at, body_size
    s[HISTOGRAM + min(took, HISTOGRAM_SIZE - 1)] += 1


@compiled_for_c
def put_one(self, message):
    """A new PutMessageResult, or None. `self` is an int: the address of the words."""
    s = words(_to_number(self))
    is_batch = is_a(message, s, BATCH_TYPE)
    if is_batch or is_a(message, s, MESSAGE_TYPE):
        # first of all: making them may run the garbage collector, which may run anything
        key, fields, result = _new_tuple(2), _new_tuple(8), _new_object(s[RESULT_TYPE], 0)
        is_put = key != 0 and fields != 0 and result != 0
        is_put = is_put and put_with(s, message, is_batch, key, fields, result)
        _decref(key)
        _decref(fields)
        if is_put:
            return result
        _decref(result)
        _clear_error()
    _incref(s[NONE])
    return s[NONE]


@compiled
def put_with(s, message, is_batch, key, fields, result):
    """Whether it was put. Nothing in it runs code of anybody else before the end, so what it reads stays as it is."""
    mapped_file, topic_name, queue_id = s[FILE], slot(message, s, TOPIC), slot(message, s, QUEUE_ID)
    body, properties = slot(message, s, BODY), slot(message, s, PROPERTIES)
    if mapped_file == 0 or slot(s[FLAGS], s, FLAG_BITS) != s[ZERO] or is_locked(s):
        return False
    if not (is_a(topic_name, s, STR) and is_a(body, s, BYTES) and is_a(properties, s, DICT)):
        return False
    known = found_in(s[TOPICS], topic_name)
    pieces, properties_size = read_properties(properties, s)
    if known == 0 or pieces < 0 or not read_numbers(s, message):
        return False
    topic_at = _to_number(known)
    topic = words(topic_at)
    if is_batch:
        count = count_items(body) if pieces == 0 and _bytes_size(body) <= s[BATCH_MAX] else np.int64(0)
        if count == 0:
            return False
        size = _bytes_size(body) + count * (HEAD_SIZE + topic[TOPIC_LENGTH] + 2 - ITEM_SIZE_MIN)
    else:
        count = np.int64(1)
        size = HEAD_SIZE + _bytes_size(body) + topic[TOPIC_LENGTH] + 2 + properties_size
        if size > s[RECORD_MAX]:
            return False
    start, good = number(slot(mapped_file, s, WROTE), s)
    wake, good_too = number(slot(mapped_file, s, WAKE), s)
    end = start + size
    if not good or not good_too or end > min(wake, s[FILE_SIZE] - END_FILE_MIN_BLANK_LENGTH):
        return False
    set_item(key, 0, topic_name)
    set_item(key, 1, queue_id)
    before = found_in(s[OFFSETS], key)
    queue_offset = np.int64(0)
    if before != 0:
        queue_offset, good = number(before, s)
    now = clock(CLOCK_REALTIME, s, CLOCK)
    store_timestamp = now // 1_000_000
    offset, following = _of_number(queue_offset), _of_number(queue_offset + count)
    place, end_object = _of_number(s[FILE_BASE] + start), _of_number(end)
    timestamp, size_object, count_object = _of_number(store_timestamp), _of_number(size), _of_number(count)
    places, sizes = s[NONE], s[NONE]
    if is_batch:
        places, sizes = _new_bytes(0, 8 * count), _new_bytes(0, 4 * count)
    else:
        _incref(places)
        _incref(sizes)
    good = good and offset != 0 and following != 0 and place != 0 and end_object != 0 and timestamp != 0
    good = good and size_object != 0 and count_object != 0 and places != 0 and sizes != 0
    first_size = size
    if good and is_batch:
        good = write_batch(s, body, topic_at, start, size, queue_offset, store_timestamp, places, sizes)
        first_size = np.int64(half_words(_bytes_at(sizes))[0])
    good = good and _dict_set(s[OFFSETS], key, following) == 0
    if good:  # and from here on nothing can fail
        if not is_batch:
            write_message(s, body, topic_at, start, size, queue_offset, store_timestamp, pieces)
        keep_order()
        store32(octets(s[FILE_ADDRESS]), start, first_size)
        fill(mapped_file, s, WROTE, end_object)
        fill(mapped_file, s, COMMITTED, end_object)
        fill(mapped_file, s, FILE_TIMESTAMP, timestamp)
        host = slot(message, s, STORE_HOST)
        fill_result(s, result, fields, place, size_object, host, timestamp, offset, places, count_object)
        count_put(s, topic_at, _bytes_size(body), count, size, now)
        # last: what a message had in its slots before may run code when it goes
        fill(message, s, STORE_TIMESTAMP, timestamp)
        fill(message, s, QUEUE_OFFSET, offset)
        fill(message, s, PHYSICAL_OFFSET, place)
        if words(s[ASLEEP])[0] != 0:
            _decref(_call(s[NOTIFY]))
            _clear_error()
    for one in (offset, following, place, end_object, timestamp, size_object, count_object, places, sizes):
        _decref(one)
    return good
