"""Properties of many records at once: where each name and value lies, found without a loop over records.

    KEYS \\1 a b \\2 TAGS \\1 t \\2 │ TAGS \\1 u \\2 │ user \\1 v          records back to back (gather)
    └──── pair ───┘└─── pair ──┘   └── pair ──┘   └─ pair ─┘          the last \\2 may be absent

The rules are message.bytes_to_properties': a pair needs a name and a value, the first \\1 parts them, of
equal names the last value counts.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqlake.formats.columns import as_input, gather, plain, twin

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2


COMPILED_FROM = 2000
"""Records; to load what is compiled for fewer would take longer than it saves."""


def compiled_for(records: int) -> ModuleType | None:
    """mqlake.spark.kernels when so many records are worth it and numba may compile, else None."""
    if records < COMPILED_FROM or twin() is plain:
        return None
    from mqlake.spark import kernels

    return kernels


def text_array(
    data: Bytes, offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Arrow strings over UTF-8 `data`; what is not UTF-8 becomes U+FFFD, as everywhere in mqlake."""
    n = len(offsets) - 1
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(data), mask)
    if len(data) and data.max() >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raw = array.view(pa.binary()).to_pylist()  # damaged text only: rare, so one by one
            return pa.array([None if b is None else b.decode("utf-8", "replace") for b in raw], pa.string())
    return array


def gather_text(
    buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Slices of `buf` as Arrow strings, null where not `valid`."""
    offsets, data = gather(buf, starts, lengths)
    return text_array(data, offsets.astype(np.int32, copy=False), valid)


class Properties:
    """The pairs of n records: positions in `data`; `first_pair[i]:first_pair[i + 1]` are those of record i."""

    record: Ints
    """Of each pair: the record that it belongs to, and its name as a number into `names`."""
    name: npt.NDArray[np.int32]
    names: list[str]
    first_pair: npt.NDArray[np.int32]
    name_start: Ints
    name_length: Ints
    value_start: Ints
    value_length: Ints

    def __init__(self, buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer]) -> None:
        self.n = len(starts)
        kernels = compiled_for(self.n)
        if kernels is not None and self._split_compiled(kernels, buf, starts, lengths):
            return
        offsets, self.data = gather(buf, starts, lengths)
        self._split(offsets.astype(np.int64))
        self._drop_overwritten()
        self._count()

    def _count(self) -> None:
        self.first_pair = np.searchsorted(self.record, np.arange(self.n + 1)).astype(np.int32)

    def _split_compiled(
        self, kernels: ModuleType, buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer]
    ) -> bool:
        """False when names become equal only by being mended, which is for the other way to sort out."""
        self.data = as_input(buf, np.uint8)
        starts, lengths = as_input(starts, np.int64), as_input(lengths, np.int32)
        room = int(kernels.count_partings(self.data, starts, lengths)) + 1
        self.first_pair = np.empty(self.n + 1, np.int32)
        record, name = np.empty(room, np.int64), np.empty(room, np.int32)
        places = np.empty((4, room), np.int64)
        table = np.zeros(1 << (2 * room).bit_length(), np.int32)
        name_start, name_length, last_pair = (np.empty(room, np.int64) for _ in range(3))
        pairs, names, overwritten = kernels.split_properties(
            self.data,
            starts,
            lengths,
            self.first_pair,
            record,
            name,
            places,
            table,
            name_start,
            name_length,
            last_pair,
            np.zeros(room + 1, np.int32),
        )
        self.names = [
            self.data[start : start + length].tobytes().decode("utf-8", "replace")
            for start, length in zip(name_start[:names].tolist(), name_length[:names].tolist(), strict=True)
        ]
        if len(set(self.names)) < names:
            return False
        self.record, self.name = record[:pairs], name[:pairs]
        self.name_start, self.name_length, self.value_start, self.value_length = places[:, :pairs]
        if overwritten:
            self._keep(np.flatnonzero(self.record >= 0))
            self._count()
        return True

    def _keep(self, kept: Ints) -> None:
        for column in ("record", "name", "name_start", "name_length", "value_start", "value_length"):
            setattr(self, column, getattr(self, column)[kept])

    def _split(self, offsets: Ints) -> None:
        data = self.data
        # A boundary is a \2 at p (2p + 1: the next piece starts at p + 1) or a record's end at e (2e: it starts
        # at e), so that sorting puts a record's end before the \2 that begins the next record and after its own.
        separators = 2 * np.flatnonzero(data == PROPERTY_SEPARATOR) + 1
        boundaries = np.concatenate([separators, 2 * offsets[1:]])
        is_record_end = np.zeros(len(boundaries), np.bool_)
        is_record_end[len(separators) :] = True
        order = np.argsort(boundaries, kind="stable")
        boundaries, is_record_end = boundaries[order], is_record_end[order]
        ends = boundaries >> 1
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = (boundaries[:-1] + 1) >> 1
        record: Ints = np.cumsum(is_record_end) - is_record_end
        partings = np.append(np.flatnonzero(data == NAME_VALUE_SEPARATOR), len(data))
        parting = partings[np.searchsorted(partings[:-1], starts)]
        kept = (parting > starts) & (parting + 1 < ends)
        self.record = record[kept]
        self.name_start = starts[kept]
        self.name_length = parting[kept] - self.name_start
        self.value_start = parting[kept] + 1
        self.value_length = ends[kept] - self.value_start

    def _drop_overwritten(self) -> None:
        """Of a record's equal names only the last stays."""
        names = self._names().dictionary_encode()
        self.names = names.dictionary.to_pylist()
        self.name = names.indices.to_numpy()
        key = self.record * max(1, len(self.names)) + self.name
        ordered = np.sort(key)
        if not (ordered[1:] == ordered[:-1]).any():
            return
        _, last = np.unique(key[::-1], return_index=True)
        self._keep(np.sort(len(key) - 1 - last))

    def _names(self) -> pa.Array:
        return gather_text(self.data, self.name_start, self.name_length)

    def as_map(self) -> pa.Array:
        """An Arrow map<string, string> per record."""
        values = gather_text(self.data, self.value_start, self.value_length)
        entries = pa.StructArray.from_arrays(
            [self._names(), values],
            fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
        )
        return pa.MapArray.from_buffers(
            pa.map_(pa.string(), pa.string()),
            self.n,
            [None, pa.py_buffer(self.first_pair)],
            children=[entries],
        )

    def value_of(self, name: str) -> pa.Array:
        """The value of one property per record, null where it is absent."""
        number = self.names.index(name) if name in self.names else -1
        starts, lengths = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        valid = np.zeros(self.n, np.bool_)
        kernels = compiled_for(self.n)
        if kernels is not None:
            pairs = (self.record, self.name, self.value_start, self.value_length)
            kernels.places_of(number, *pairs, starts, lengths, valid)
        else:
            hits = np.flatnonzero(self.name == number)
            records = self.record[hits]
            starts[records], lengths[records], valid[records] = (
                self.value_start[hits],
                self.value_length[hits],
                True,
            )
        return gather_text(self.data, starts, lengths, valid)
