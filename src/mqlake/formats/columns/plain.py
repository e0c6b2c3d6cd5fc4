"""The column codecs without a compiler: the same functions as in `native.columns`, with the same results, readable.

Used where native code is not there or switched off, and by the tests as the measure for the compiled ones. A record
costs some ten microseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqlake.errors import FormatError
from mqlake.formats.batch import decode_messages
from mqlake.formats.columns import layout
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE, UNIT
from mqlake.formats.index import (
    ENTRY,
    HEADER,
    INDEX_HEADER_SIZE,
    SLOT,
    IndexHeader,
    entry_position,
    slot_position,
    time_diff_seconds,
)
from mqlake.formats.record import (
    BORN_HOST_POSITION,
    END_FILE_MIN_BLANK_LENGTH,
    HEADS,
    HOST_FLAGS,
    MESSAGE_MAGIC_CODE,
    PHYSICAL_OFFSET_POSITION,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
    RecordKind,
    RecordPlace,
    check_record,
    encode_record,
    record_layout,
    why_not_at,
)
from mqlake.message import (
    KEY_SEPARATOR,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageSysFlag,
    bytes_to_properties,
    crc32,
    java_hash,
)

Bytes = NDArray[np.uint8]
Ints = NDArray[Any]

_MAGIC_START = b"\xda\xa3\x20"
_BLOCK = 1 << 20
_PHYSICAL_OFFSET = Struct(">q")
_NUMBER = re.compile("[+-]?[0-9]+")
_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1


def _check(
    view: memoryview, position: int, limit: int, base_offset: int, check_crc: bool, force_prop_crc: bool
) -> tuple[RecordKind, int]:
    kind, size, _ = check_record(
        view,
        position,
        limit,
        base_offset + position,
        check_crc=check_crc,
        force_prop_crc=force_prop_crc,
    )
    return kind, size


def scan(
    buf: Bytes,
    start: int,
    limit: int,
    base_offset: int,
    check_crc: bool,
    force_prop_crc: bool,
    wide: Ints,
    narrow: Ints,
    _slots: Ints,
    topic_record: Ints,
) -> tuple[int, int, int, int]:
    view = buf.data
    topics: dict[bytes, int] = {}
    position = start
    for n in range(len(topic_record)):
        if position == limit:
            return n, len(topics), position, layout.LIMIT
        kind, size = _check(view, position, limit, base_offset, check_crc, force_prop_crc)
        if kind != RecordKind.MESSAGE:
            return n, len(topics), position + (size if kind == RecordKind.BLANK else 0), int(kind)
        head, body_start, topic_start, topic_end, properties_start, _ = record_layout(view, position, size)
        (
            _,
            _,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            _,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        ) = head
        topic = bytes(view[topic_start:topic_end])
        if topic not in topics:
            topic_record[len(topics)] = n
            topics[topic] = len(topics)
        wide[:, n] = (
            position,
            physical_offset,
            queue_offset,
            born_timestamp,
            store_timestamp,
            prepared_transaction_offset,
            body_start,
            topic_start,
            properties_start,
            position + BORN_HOST_POSITION,
            position + BORN_HOST_POSITION + len(born_host) + 8,
        )
        narrow[:, n] = (
            size,
            queue_id,
            sys_flag,
            flag,
            body_crc,
            reconsume_times,
            body_length,
            len(topic),
            topics[topic],
            position + size - properties_start,
        )
        position += size
    return len(topic_record), len(topics), position, layout.LIMIT if position == limit else layout.MAX_RECORDS


def walk(buf: Bytes, start: int, limit: int, base_offset: int, check_crc: bool) -> tuple[int, int, int, int]:
    view = buf.data
    records = timestamp = 0
    position = start
    while position < limit:
        kind, size = _check(view, position, limit, base_offset, check_crc, False)
        if kind != RecordKind.MESSAGE:
            return records, timestamp, position + (size if kind == RecordKind.BLANK else 0), int(kind)
        timestamp = record_layout(view, position, size)[0][10]
        records += 1
        position += size
    return records, timestamp, position, layout.LIMIT


def find_record(buf: Bytes, start: int, limit: int, base_offset: int) -> int:
    view = buf.data
    last = limit - RECORD_SIZE_MIN
    for block in range(start, last + 1, _BLOCK):
        data = bytes(view[block + 4 : min(block + _BLOCK, last + 1) + 4 + len(_MAGIC_START) - 1])
        found = data.find(_MAGIC_START)
        while found >= 0:
            position = block + found
            if _check(view, position, limit, base_offset, True, False)[0] == RecordKind.MESSAGE:
                return position
            found = data.find(_MAGIC_START, found + 1)
    return -1


def _wrapped(number: int) -> int:
    """A sum, wrapped to 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _parse_number(text: str | None, low: int, high: int) -> int | None:
    if text is None or not _NUMBER.fullmatch(text):
        return None
    # Beyond 4300 digits int() refuses; leading zeros are all that such a number may have.
    sign, digits = (-1 if text[0] == "-" else 1), text.lstrip("+-").lstrip("0") or "0"
    value = sign * int(digits) if len(digits) < 20 else high + 1
    return value if low <= value <= high else None


def _index_key_hash(text: str) -> int:
    return abs(java_hash(text)) & 0x7FFFFFFF


def dispatch(
    buf: Bytes,
    first: int,
    wide: Ints,
    narrow: Ints,
    topic_record: Ints,
    _topic_code: Ints,
    schedule_topic: int,
    delays: Ints,
    tags_code: Ints,
    has_keys: Ints,
    inner_num: Ints,
    inner_base: Ints,
    key_hash: Ints,
    key_record: Ints,
    _shapes: Ints,
) -> tuple[int, int]:
    view = buf.data

    def text(start: int, length: int) -> str:
        return str(view[start : start + length], "utf-8", "replace")

    topics = [
        text(int(wide[layout.TOPIC_START, n]), int(narrow[layout.TOPIC_LENGTH, n])) for n in topic_record
    ]
    keys = 0
    for n in range(first, len(tags_code)):
        start = int(wide[layout.PROPERTIES_START, n])
        properties = bytes_to_properties(view[start : start + int(narrow[layout.PROPERTIES_LENGTH, n])])
        topic = int(narrow[layout.TOPIC_ID, n])
        code = java_hash(properties.get(PROPERTY_TAGS, ""))
        if topic == schedule_topic:
            level = _parse_number(properties.get(PROPERTY_DELAY_TIME_LEVEL), -_I32_MAX - 1, _I32_MAX)
            level = min(level or 0, len(delays) - 1)
            if level > 0:
                code = _wrapped(int(wide[layout.STORE_TIMESTAMP, n]) + int(delays[level]))
        tags_code[n] = code

        num = _parse_number(properties.get(PROPERTY_INNER_NUM), -(2**15), 2**15 - 1)
        base = _parse_number(properties.get(PROPERTY_INNER_BASE), -_I64_MAX, _I64_MAX)
        inner = num is not None and base is not None
        inner_num[n] = num if inner else 1
        inner_base[n] = base if inner else wide[layout.QUEUE_OFFSET, n]

        has_keys[n] = False
        transaction = MessageSysFlag.transaction_value(int(narrow[layout.SYS_FLAG, n]))
        if transaction == MessageSysFlag.TRANSACTION_ROLLBACK_TYPE:
            continue
        found = [properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)]
        found += properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR)
        hashes = [_index_key_hash(f"{topics[topic]}#{key}") for key in found if key]
        if keys + len(hashes) > len(key_hash):
            return n, keys
        key_hash[keys : keys + len(hashes)] = hashes
        key_record[keys : keys + len(hashes)] = n
        keys += len(hashes)
        has_keys[n] = bool(hashes)
    return len(tags_code), keys


def number_queues(wide: Ints, narrow: Ints, slots: Ints, firsts: Ints, numbers: Ints, arrivals: Ints) -> int:
    queues = _by_queue(narrow, range(narrow.shape[1]))
    if len(queues) > len(slots) // 2:
        return -1
    for number, ((topic_id, queue_id), records) in enumerate(queues.items()):
        following = int(wide[layout.QUEUE_OFFSET, records].max()) + 1
        size = int(narrow[layout.SIZE, records].sum(dtype=np.int64))
        firsts[number] = records[0]
        numbers[records] = number
        arrivals[number] = topic_id, queue_id, max(0, following), len(records), size
    return len(queues)


def units_by_queue(
    wide: Ints,
    narrow: Ints,
    tags_code: Ints,
    inner_num: Ints,
    hidden: int,
    _numbers: Ints,
    _arrivals: Ints,
    _ends: Ints,
    order: Ints,
    units: Bytes,
    runs: Ints,
) -> tuple[int, int]:
    visible = (narrow[layout.SYS_FLAG] & hidden == 0).tolist()
    count = found = 0
    for (topic_id, queue_id), records in _by_queue(narrow, range(narrow.shape[1])).items():
        following = None
        for record in records:
            if not visible[record]:
                continue
            offset, size = int(wide[layout.PHYSICAL_OFFSET, record]), int(narrow[layout.SIZE, record])
            queue_offset, number = int(wide[layout.QUEUE_OFFSET, record]), int(inner_num[record])
            order[count] = record
            UNIT.pack_into(units.data, count * CQ_STORE_UNIT_SIZE, offset, size, int(tags_code[record]))
            if queue_offset != following:
                runs[found] = topic_id, queue_id, count, count, queue_offset, 1, 0
                found += 1
            following = _wrapped(queue_offset + number)
            count += 1
            runs[found - 1, 3] = count
            runs[found - 1, 5] &= number == 1
            runs[found - 1, 6] = offset + size
    return count, found


def _by_queue(narrow: Ints, records: Iterable[int]) -> dict[tuple[int, int], list[int]]:
    """The records of each queue, by topic id and queue id."""
    queues: dict[tuple[int, int], list[int]] = {}
    for record in records:
        queue = int(narrow[layout.TOPIC_ID, record]), int(narrow[layout.QUEUE_ID, record])
        queues.setdefault(queue, []).append(record)
    return queues


def index_put_many(
    index: Bytes, slot_num: int, index_num: int, key_hash: Ints, physical_offset: Ints, store_timestamp: Ints
) -> int:
    view = index.data
    header = IndexHeader.decode(view)
    put = 0
    for code, offset, timestamp in zip(
        key_hash.tolist(), physical_offset.tolist(), store_timestamp.tolist(), strict=True
    ):
        if header.index_count >= index_num:
            break
        slot = slot_position(code % slot_num)
        (previous,) = SLOT.unpack_from(view, slot)
        if not 0 < previous <= header.index_count:
            previous = 0
        ENTRY.pack_into(
            view,
            entry_position(header.index_count, slot_num),
            code,
            offset,
            time_diff_seconds(header.begin_timestamp, timestamp),
            previous,
        )
        SLOT.pack_into(view, slot, header.index_count)
        if header.index_count == 1:
            header.begin_timestamp, header.begin_phy_offset = timestamp, offset
        if previous == 0:
            header.hash_slot_count = min(header.hash_slot_count + 1, _I32_MAX)
        header.index_count += 1
        header.end_timestamp, header.end_phy_offset = timestamp, offset
        view[:INDEX_HEADER_SIZE] = header.encode()
        put += 1
    return put


def index_query(
    index: Bytes, slot_num: int, index_num: int, key_hash: int, begin: int, end: int, found: Ints
) -> int:
    view = index.data
    begin_timestamp, _, _, _, _, count = HEADER.unpack_from(view)
    if count <= 1:
        return 0
    (current,) = SLOT.unpack_from(view, slot_position(key_hash % slot_num))
    hits = 0
    for _ in range(index_num):  # a chain of more entries than there are runs in a circle
        if not 0 < current <= min(count, index_num - 1) or hits == len(found):
            break
        code, offset, seconds, previous = ENTRY.unpack_from(view, entry_position(current, slot_num))
        if seconds < 0:
            break
        timestamp = _wrapped(begin_timestamp + seconds * 1000)
        if code == key_hash and begin <= timestamp <= end:
            found[hits] = offset
            hits += 1
        if previous == current or timestamp < begin:
            break
        current = previous
    return hits


def gather(buf: Bytes, starts: Ints, offsets: Ints, data: Bytes) -> bool:
    if len(starts) == 0:
        return True
    ends = starts + np.diff(offsets)
    if starts.min() < 0 or ends.max() > len(buf):
        return False
    view = buf.data
    pieces = [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    data[:] = np.frombuffer(b"".join(pieces), np.uint8)
    return True


def whole_records(buf: Bytes, places: Ints) -> int:
    position = count = 0
    while count < len(places) and len(buf) - position >= RECORD_SIZE_MIN:
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(buf.data, position + PHYSICAL_OFFSET_POSITION)
        kind, size = _check(buf.data, position, len(buf), physical_offset - position, True, False)
        if kind is not RecordKind.MESSAGE:
            break
        head, body_start, _, _, _, _ = record_layout(buf.data, position, size)
        position += size
        places[count] = body_start, body_start + head[-1], position
        count += 1
    return count


def gather_runs(buf: Bytes, runs: Ints, data: Bytes) -> bool:
    places = runs.tolist()
    if any(not 0 <= start <= end <= len(buf) for start, end in places):
        return False
    joined = b"".join([buf.data[start:end] for start, end in places])
    if len(joined) != len(data):
        return False
    data[:] = np.frombuffer(joined, np.uint8)
    return True


def follow_units(
    buf: Bytes,
    end: int,
    base_offset: int,
    units: Bytes,
    topic: Bytes,
    queue_id: int,
    queue_offset: int,
    queue_offsets: Ints,
    bytes_max: int,
    check_crc: bool,
    runs: Ints,
) -> tuple[int, int, int]:
    name = topic.tobytes()
    if end > len(buf):
        return -1, 0, 0
    total = count = run_count = 0
    run_end = -1
    for n, (offset, size, _) in enumerate(UNIT.iter_unpack(units.data)):
        position = offset - base_offset
        if n and total + size > bytes_max:
            break
        if size < RECORD_SIZE_MIN or not 0 <= position <= end - size:
            return -1, 0, 0
        own_offset = int(queue_offsets[n]) if len(queue_offsets) else queue_offset + n
        place = RecordPlace(size, offset, queue_id, own_offset, name)
        if why_not_at(buf.data, position, end - position, place, check_crc=check_crc):
            return -1, 0, 0
        if position != run_end:
            runs[run_count, 0] = position
            run_count += 1
        run_end = position + size
        runs[run_count - 1, 1] = run_end
        total += size
        count += 1
    return count, total, run_count


def append_batch(
    out: Bytes,
    position: int,
    max_blank: int,
    blob: Bytes,
    template: Bytes,
    head_length: int,
    extra_start: int,
    queue_offset: int,
    base_offset: int,
    max_record_size: int,
    offsets: Ints,
    sizes: Ints,
) -> tuple[int, int]:
    shared = template.tobytes()
    topic, extra = shared[head_length:extra_start], shared[extra_start:]
    head = HEADS[shared[SYS_FLAG_POSITION + 3] & HOST_FLAGS].unpack_from(shared)
    _, magic, _, queue_id, _, _, _, sys_flag, born_timestamp, born_host, *after_born_host = head
    store_timestamp, store_host, reconsume_times, prepared_transaction_offset, _ = after_born_host
    version = 1 if magic == MESSAGE_MAGIC_CODE else 2
    try:
        items = decode_messages(blob.data)
    except FormatError:
        return layout.BAD_BLOB, 0
    total = 0
    records: list[bytes] = []
    for n, (flag, body, own) in enumerate(items):
        properties = own + b"\x02" * bool(own and extra and own[-1] != 2) + extra
        if len(properties) > PROPERTIES_LENGTH_MAX:
            return layout.PROPERTIES_TOO_LARGE, 0
        size = head_length + len(body) + len(topic) + 2 + len(properties)
        if size > max_record_size:
            return layout.RECORD_TOO_LARGE, 0
        offsets[n] = base_offset + position + total
        sizes[n] = size
        records.append(
            encode_record(
                body,
                crc32(body),
                queue_id,
                flag,
                queue_offset + n,
                int(offsets[n]),
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                topic[version:],
                properties,
                version,
            )
        )
        total += size
    if total + END_FILE_MIN_BLANK_LENGTH > max_blank:
        return layout.NO_ROOM, 0
    if items:
        data = b"".join(records) + bytes(4)
        out.data[position + 4 : position + len(data)] = data[4:]
    return len(items), total
