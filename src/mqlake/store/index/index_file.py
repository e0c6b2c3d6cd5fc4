"""IndexFile: one file of the index, mapped, from hashes of keys to physical offsets.

The bytes are drawn in formats.index. Entries are only ever added; the file is full when its entry number
`index_num - 1` is used. Its name is the local time it was made at, and means nothing but an order.
"""

from __future__ import annotations

import os
from struct import Struct

from mqlake.errors import WrongFileSizeError
from mqlake.formats.columns import Int32s, Int64s, index_put_many, index_query
from mqlake.formats.index import (
    ENTRY,
    INDEX_HEADER_SIZE,
    IndexHeader,
    entry_position,
    index_file_size,
)
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.index.index_sizes import index_sizes

SIZE_KEY = "maxHashSlotNum and maxIndexNum"
_COUNT = Struct(">i")
_END_PHY_OFFSET = Struct(">q")


class IndexFile:
    """The file at `path`, made when it is not there. Raises WrongFileSizeError, OSError.

    `dirty`: something may not be on the disk yet.
    """

    __slots__ = ("dirty", "hash_slot_num", "index_num", "mapped_file", "path")

    def __init__(self, path: str, hash_slot_num: int, index_num: int, *, read_only: bool = False) -> None:
        self.path = path
        self.hash_slot_num = hash_slot_num
        self.index_num = index_num
        self.dirty = False
        size = index_file_size(hash_slot_num, index_num)
        try:
            self.mapped_file = MappedFile(path, size, read_only=read_only, size_key=SIZE_KEY)
        except WrongFileSizeError as error:
            found = index_sizes(path)
            if found is None:
                raise
            fitting = f"maxHashSlotNum={found[0]} and maxIndexNum={found[1]}"
            raise WrongFileSizeError(path, error.size, size, key=SIZE_KEY, fitting=fitting) from None

    def __repr__(self) -> str:
        return f"IndexFile({self.path!r})"

    @property
    def header(self) -> IndexHeader:
        """As it is at this moment; of zeros when the file is closed."""
        view = self.mapped_file.view
        return IndexHeader.decode(view) if len(view) else IndexHeader()

    @property
    def index_count(self) -> int:
        """Number of the next entry, as `header` says it."""
        return min(max(1, self._field(_COUNT, 36)), self.index_num)

    @property
    def end_phy_offset(self) -> int:
        return self._field(_END_PHY_OFFSET, 24)

    def _field(self, kind: Struct, position: int) -> int:
        """One field of the header, 0 when the file is closed."""
        view = self.mapped_file.view
        value: int = kind.unpack_from(view, position)[0] if len(view) else 0
        return value

    @property
    def is_full(self) -> bool:
        return self.index_count >= self.index_num

    @property
    def is_sound(self) -> bool:
        """True if the header can be believed: a lost page of it would leave zeros or nonsense."""
        header = self.header
        return header.index_count <= self.index_num and header.begin_phy_offset <= header.end_phy_offset

    def begin(self, end_phy_offset: int = 0, end_timestamp: int = 0) -> None:
        """Writes the header of a new file, which begins where the one before it ended."""
        header = IndexHeader(end_timestamp, end_timestamp, end_phy_offset, end_phy_offset)
        self.mapped_file.view[:INDEX_HEADER_SIZE] = header.encode()
        self.dirty = True

    def put_keys(self, key_hash: Int32s, physical_offset: Int64s, store_timestamp: Int64s) -> int:
        """Adds an entry for each key, in order; how many there was room for."""
        self.dirty = True
        return index_put_many(
            self.mapped_file.array,
            self.hash_slot_num,
            self.index_num,
            key_hash,
            physical_offset,
            store_timestamp,
        )

    def select_phy_offset(self, key_hash: int, max_num: int, begin: int, end: int) -> list[int]:
        """Physical offsets of entries with this hash stored in [begin, end] (ms), newest first."""
        array = self.mapped_file.array
        if not len(array):  # closed meanwhile
            return []
        found = index_query(array, self.hash_slot_num, self.index_num, key_hash, begin, end, max_num)
        offsets: list[int] = found.tolist()
        return offsets

    def entries_of(self, physical_offset: int) -> int:
        """How many of the newest entries belong to this record, counted up to the first that does not."""
        view, last = self.mapped_file.view, self.index_count - 1
        number = last
        while number > 0:
            entry = ENTRY.unpack_from(view, entry_position(number, self.hash_slot_num))
            if entry[1] != physical_offset:
                break
            number -= 1
        return last - number

    def flush(self) -> None:
        """Brings everything to the disk. OSError: it stays `dirty`."""
        if self.dirty:
            self.dirty = False
            try:
                self.mapped_file.sync()
            except BaseException:
                self.dirty = True
                raise

    def close(self) -> None:
        self.mapped_file.close()

    def destroy(self) -> None:
        """Closes and deletes the file; it may be gone already. OSError."""
        self.mapped_file.close()
        self.unlink()

    def unlink(self) -> None:
        """Deletes the file's name, if it is there. OSError."""
        if os.path.exists(self.path):
            os.unlink(self.path)
