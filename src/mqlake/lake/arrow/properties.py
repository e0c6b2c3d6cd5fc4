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

from mqlake import native
from mqlake.formats.arrow import Bytes, Ints, gather_text, text_array
from mqlake.formats.columns import as_input, gather
from mqlake.lake.arrow.arrays import codes_of, number_array, string_array

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2


def kernels() -> ModuleType | None:
    """mqlake.native.rows, None where it is not compiled."""
    return native.module("rows")


_MAP = pa.map_(pa.string(), pa.string())
_ENTRY = [_MAP.key_field, _MAP.item_field]

NAMES_EXPECTED = 256
"""Distinct names that a first try has room for."""


class Properties:
    """The pairs of n records: positions in `data`; `first_pair[i]:first_pair[i + 1]` are those of record i."""

    first_pair: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    """For each pair, its name as a number into `names`."""
    names: list[str]
    value_start: Ints
    value_length: npt.NDArray[np.integer]

    def __init__(
        self, buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer], kernels: ModuleType | None
    ) -> None:
        self.n = len(starts)
        self._bytes = int(lengths.sum())
        self._kernels = kernels
        if self._kernels is not None and self._split_compiled(buf, starts, lengths):
            return
        self._kernels = None
        offsets, self.data = gather(buf, starts, lengths)
        self._split(offsets.astype(np.int64))

    def _split_compiled(self, buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer]) -> bool:
        """False if names become equal only after invalid UTF-8 is replaced, which only the other method handles."""
        assert self._kernels is not None
        self.data = as_input(buf, np.uint8)
        room = (self._bytes + self.n) // 4  # a name, a value and two separators, of a byte each at least
        self.first_pair, name = np.empty(self.n + 1, np.int32), np.empty(room, np.int32)
        value_start, value_length = np.empty(room, np.int64), np.empty(room, np.int32)
        starts, lengths = as_input(starts, np.int64), as_input(lengths, np.int32)
        for names_max in (NAMES_EXPECTED, room):
            name_start, name_length = np.empty(names_max, np.int64), np.empty(names_max, np.int32)
            pairs, names = self._kernels.split_properties(
                self.data,
                starts,
                lengths,
                self.first_pair,
                name,
                value_start,
                value_length,
                np.zeros(1 << (2 * names_max).bit_length(), np.int32),
                name_start,
                name_length,
                np.empty(names_max, np.int64),
                np.zeros(names_max + 1, np.int32),
            )
            if pairs >= 0:
                break
        self.name, self._name_start, self._name_length = name[:pairs], name_start[:names], name_length[:names]
        self.value_start, self.value_length = value_start[:pairs], value_length[:pairs]
        self.names = [
            self.data[start : start + length].tobytes().decode("utf-8", "replace")
            for start, length in zip(self._name_start.tolist(), self._name_length.tolist(), strict=True)
        ]
        return len(set(self.names)) == len(self.names)

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
        kept = np.flatnonzero((parting > starts) & (parting + 1 < ends))
        names = gather_text(data, starts[kept], parting[kept] - starts[kept]).dictionary_encode()
        self.names, self.name = names.dictionary.to_pylist(), codes_of(names)
        # Of a record's equal names only the last stays.
        key = record[kept] * max(1, len(self.names)) + self.name
        _, last = np.unique(key[::-1], return_index=True)
        last = np.sort(len(key) - 1 - last)
        kept, self.name = kept[last], self.name[last]
        self.first_pair = np.searchsorted(record[kept], np.arange(self.n + 1)).astype(np.int32)
        self.value_start = parting[kept] + 1
        self.value_length = ends[kept] - self.value_start

    def _room(self, texts: int) -> tuple[npt.NDArray[np.int32], Bytes]:
        """For the ends and the bytes of so many texts, which all lie in the properties."""
        assert self._kernels is not None
        return np.empty(texts + 1, np.int32), np.empty(self._bytes + self._kernels.TEXT_OVERLAP, np.uint8)

    def as_map(self) -> pa.Array:
        """An Arrow map<string, string> per record."""
        if self._kernels is not None:
            name_ends, names = self._room(len(self.name))
            value_ends, values = self._room(len(self.name))
            names_size, values_size = self._kernels.pair_texts(
                self.data,
                self.name,
                self._name_start,
                self._name_length,
                self.value_start,
                self.value_length,
                name_ends,
                names,
                value_ends,
                values,
            )
            texts = [text_array(names[:names_size], name_ends), text_array(values[:values_size], value_ends)]
        else:
            texts = [
                string_array(self.names).take(number_array(self.name)),
                gather_text(self.data, self.value_start, self.value_length),
            ]
        entries = pa.StructArray.from_arrays(texts, fields=_ENTRY)
        return pa.MapArray.from_buffers(
            _MAP, self.n, [None, pa.py_buffer(self.first_pair)], children=[entries]
        )

    def value_of(self, name: str) -> pa.Array:
        """The value of one property per record, null where it is absent."""
        if name not in self.names:
            return pa.nulls(self.n, pa.string())
        number = self.names.index(name)
        if self._kernels is not None:
            (ends, values), valid = self._room(self.n), np.empty(self.n, np.bool_)
            found, size = self._kernels.values_of(
                self.data,
                number,
                self.first_pair,
                self.name,
                self.value_start,
                self.value_length,
                ends,
                values,
                valid,
            )
            return text_array(values[:size], ends, valid if found < self.n else None)
        starts, lengths = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        valid = np.zeros(self.n, np.bool_)
        hits = np.flatnonzero(self.name == number)
        records = np.searchsorted(self.first_pair, hits, "right") - 1
        starts[records], lengths[records], valid[records] = (
            self.value_start[hits],
            self.value_length[hits],
            True,
        )
        return gather_text(self.data, starts, lengths, valid)
