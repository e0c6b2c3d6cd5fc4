"""Records to Arrow rows: scanned columns as they are, text and bodies gathered, no Python object per record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqlake.base.clock import YEAR_1_MS, YEAR_10000_MS
from mqlake.formats.arrow import Bytes, Ints, text_array
from mqlake.formats.columns import Scan, as_input, gather
from mqlake.lake.arrow.arrays import batch_of, codes_of, number_array, string_array
from mqlake.lake.arrow.properties import Properties, kernels
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN, ON_REQUEST, Column, arrow_schema
from mqlake.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageSysFlag,
    host_from_bytes,
)

Selection = slice | npt.NDArray[np.int64]

BATCH_RECORDS_MAX = 16384
BATCH_BYTES_MAX = 8 << 20

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class Records:
    """Some of a scan's records, each field a numpy array by its name in Scan."""

    def __init__(self, buf: Bytes, scan: Scan, selection: Selection) -> None:
        self.buf = buf
        self.scan = scan
        self.selection = selection
        self.n = len(self.column("position"))

    def column(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = getattr(self.scan, name)[self.selection]
        return array

    @functools.cached_property
    def properties(self) -> Properties:
        starts, lengths = self.column("properties_start"), self.column("properties_length")
        return Properties(self.buf, starts, lengths, kernels())

    def host_lengths(self, flag: int) -> Ints:
        return np.where(self.column("sys_flag") & flag, 20, 8).astype(np.int64)


# ---------------------------------------------------------------------- columns


def timestamp_array(ms: Ints) -> pa.Array:
    """Timestamps of ms since 1970, null beyond the years 1 to 9999."""
    beyond = None
    if len(ms) and (ms.max() >= YEAR_10000_MS or ms.min() < YEAR_1_MS):
        beyond = (ms >= YEAR_10000_MS) | (ms < YEAR_1_MS)
        ms = np.where(beyond, 0, ms)
    return number_array(ms * 1000, None if beyond is None else ~beyond).view(_TIMESTAMP)


def _property(name: str) -> Callable[[Records], pa.Array]:
    return lambda records: records.properties.value_of(name)


def _topic(records: Records) -> pa.Array:
    topics = [topic.decode("utf-8", "replace") for topic in records.scan.topics]
    return _spread(topics, records.column("topic_id"))


def _spread(texts: list[str], number: npt.NDArray[np.int32]) -> pa.Array:
    """The text of each number."""
    if len(texts) == 1:
        return _repeated(texts[0], len(number))
    return string_array(texts).take(number_array(number))


def _repeated(text: str | None, n: int) -> pa.Array:
    """The same text n times: mostly the beginning of what the batch before had."""
    return _many(text, 1 << n.bit_length()).slice(0, n)


@functools.lru_cache(maxsize=8)
def _many(text: str | None, n: int) -> pa.Array:
    return pa.repeat(string_array([text])[0], n)


def _body(records: Records) -> pa.Array:
    return _binary(*gather(records.buf, records.column("body_start"), records.column("body_length")))


def _binary(offsets: npt.NDArray[np.integer[Any]], data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _message_id(records: Records) -> pa.Array:
    """Store host and physical offset, in hexadecimal."""
    starts, flag = records.column("store_host_start"), MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    native = kernels()
    if native is not None:
        ends = np.empty(records.n + 1, np.int32)
        text = np.empty(records.n * 2 * (native.HOST_V6 + 8), np.uint8)
        size = native.message_ids(
            as_input(records.buf, np.uint8),
            as_input(starts, np.int64),
            as_input(records.column("sys_flag"), np.int32),
            int(flag),
            as_input(records.column("physical_offset"), np.int64),
            ends,
            text,
        )
        return text_array(text[:size], ends)
    lengths = records.host_lengths(flag)
    host_offsets, hosts = gather(records.buf, starts, lengths)
    number = records.column("physical_offset").astype(">i8").view(np.uint8).reshape(-1, 8)
    eights = np.arange(records.n + 1, dtype=np.int64) * 8
    if len(hosts) == number.size:
        data = np.hstack([hosts.reshape(-1, 8), number]).reshape(-1)
    else:  # an IPv6 host among them
        data = np.empty(len(hosts) + number.size, np.uint8)
        is_number = np.zeros(len(data), np.bool_)
        is_number[(host_offsets[1:] + eights[:-1])[:, None] + np.arange(8)] = True
        data[is_number] = number.reshape(-1)
        data[~is_number] = hosts
    digits = np.empty((len(data), 2), np.uint8)
    digits[:, 0] = _HEX[data >> 4]
    digits[:, 1] = _HEX[data & 15]
    return text_array(digits.reshape(-1), (2 * (host_offsets + eights)).astype(np.int32))


def _host(start_name: str, flag: int) -> Callable[[Records], pa.Array]:
    """Each distinct host is put into words once."""

    def build(records: Records) -> pa.Array:
        starts = records.column(start_name)
        number, first = _number_hosts(records, starts, flag)
        sys_flag = records.column("sys_flag")
        texts = []
        for record in first.tolist():
            start = int(starts[record])
            texts.append(
                host_text(records.buf[start : start + (20 if sys_flag[record] & flag else 8)].tobytes())
            )
        return _spread(texts, number)

    return build


def _number_hosts(records: Records, starts: Ints, flag: int) -> tuple[npt.NDArray[np.int32], Ints]:
    """A number for each record's host, and which record has the first host of each number."""
    native = kernels()
    if native is None:
        offsets, data = gather(records.buf, starts, records.host_lengths(flag))
        hosts = _binary(offsets, data)
        numbers = codes_of(hosts.dictionary_encode())
        return numbers, np.unique(numbers, return_index=True)[1]
    number, first = np.empty(records.n, np.int32), np.empty(records.n, np.int64)
    hosts = native.number_hosts(
        as_input(records.buf, np.uint8),
        as_input(starts, np.int64),
        as_input(records.column("sys_flag"), np.int32),
        int(flag),
        number,
        first,
        np.zeros(1 << (2 * records.n).bit_length(), np.int32),
    )
    return number, first[:hosts]


def host_text(host: bytes) -> str:
    """`ip:port` of a host as records hold it, `[ip]:port` for IPv6."""
    ip, port = host_from_bytes(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _field(column: Column) -> Callable[[Records], pa.Array]:
    field = column.field
    assert field is not None
    array = timestamp_array if column.kind == "timestamp" else number_array
    return lambda records: array(records.column(field))


BUILDERS: dict[str, Callable[[Records], pa.Array]] = {
    **{name: _field(column) for name, column in {**COLUMNS, **ON_REQUEST}.items() if column.field},
    "topic": _topic,
    "msgId": _message_id,
    "uniqKey": _property(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
    "tags": _property(PROPERTY_TAGS),
    "keys": _property(PROPERTY_KEYS),
    "body": _body,
    "properties": lambda records: records.properties.as_map(),
    "bornHost": _host("born_host_start", MessageSysFlag.BORNHOST_V6_FLAG),
    "storeHost": _host("store_host_start", MessageSysFlag.STOREHOSTADDRESS_V6_FLAG),
}
"""Columns made from records; `brokerName` and `path` are the same for all rows of a batch."""


# ---------------------------------------------------------------------- batches


class RowBuilder:
    """Makes record batches with the columns `names`, in that order, for the store at `path`, or for a broker."""

    def __init__(self, names: Sequence[str], path: str | None, broker_name: str | None = None) -> None:
        self._names = tuple(names)
        self._schema = arrow_schema(self._names)
        self._source = {"path": path, "brokerName": broker_name}

    def batches(
        self, buf: Bytes, scan: Scan, rows: npt.NDArray[np.int64] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The scan's records (only those numbered in `rows`), at most 16384 and about 8 MiB of bodies a batch."""
        n = len(scan) if rows is None else len(rows)
        cuts: Sequence[int] = range(0, n, BATCH_RECORDS_MAX)
        if "body" in self._names and n:
            lengths = scan.body_length if rows is None else scan.body_length[rows]
            if lengths.sum(dtype=np.int64) > BATCH_BYTES_MAX:
                filled = np.cumsum(lengths, dtype=np.int64) // BATCH_BYTES_MAX
                cuts = np.union1d(cuts, np.flatnonzero(np.diff(filled)) + 1).tolist()
        for first, last in zip(cuts, [*cuts[1:], n], strict=True):
            selection: Selection = slice(first, last) if rows is None else rows[first:last]
            yield self._batch(Records(buf, scan, selection))

    def _batch(self, records: Records) -> pa.RecordBatch:
        arrays = [self._array(name, records) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, records: Records) -> pa.Array:
        if name in BUILDERS:
            return BUILDERS[name](records)
        return _repeated(self._source.get(name), records.n)

    def damage(self, physical_offset: int, text: str) -> pa.RecordBatch:
        """The row of mode permissive that stands for damage."""
        values = {**self._source, "physicalOffset": physical_offset, CORRUPT_COLUMN: text}
        return batch_of([values], self._schema)
