"""One file of heads as it is written: Parquet that every engine reads, sealed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq

from mqlake.lake.heads.rows import HeadsOfFile
from mqlake.lake.heads.schema import ORIGIN_KEY, SCHEMA, Origin
from mqlake.lake.heads.seal import seal

DICTIONARIES = ["topic", "queueId", "sysFlag", "reconsumeTimes", "tags"]
ENCODINGS = {
    "queueOffset": "DELTA_BINARY_PACKED",
    "physicalOffset": "DELTA_BINARY_PACKED",
    "size": "DELTA_BINARY_PACKED",
    "storeTimestamp": "DELTA_BINARY_PACKED",
    "bornTimestamp": "DELTA_BINARY_PACKED",
    "bodySize": "DELTA_BINARY_PACKED",
    "keys": "DELTA_BYTE_ARRAY",
    "uniqKey": "DELTA_BYTE_ARRAY",
}
BLOOM_COLUMNS = ("keys", "uniqKey")
FALSE_POSITIVES = 0.01

_LOCAL = pyarrow.fs.LocalFileSystem()
FORMAT = pyarrow.dataset.ParquetFileFormat(
    default_fragment_scan_options=pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
)


def rows_of(
    files: Sequence[str | bytes],
    columns: Sequence[str],
    filter: pc.Expression | None,
    groups: Sequence[Sequence[int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of files of heads, given as local paths or as their bytes, in this order. `groups`: the row groups of
    each file that are read; all of them by default.

    OSError or ArrowException where a page is read that is not as it was written.
    """
    chosen = [None] * len(files) if groups is None else groups
    local = [
        FORMAT.make_fragment(file, _LOCAL, row_groups=some)
        for file, some in zip(files, chosen, strict=True)
        if isinstance(file, str) and some != []
    ]
    if local:
        dataset = pyarrow.dataset.FileSystemDataset(local, SCHEMA, FORMAT, _LOCAL)
        yield from dataset.to_batches(columns=list(columns), filter=filter)
    for file, some in zip(files, chosen, strict=True):
        if not isinstance(file, str) and some != []:
            fragment = FORMAT.make_fragment(pa.py_buffer(file), row_groups=some)
            yield from fragment.to_batches(schema=SCHEMA, columns=list(columns), filter=filter)


def write_parquet(file: BinaryIO, heads: HeadsOfFile) -> Origin:
    """Writes all heads of a log file to an empty file that is open for reading and writing, a row group at a time.

    Raises what HeadsOfFile.groups() raises, and OSError.
    """
    groups = heads.groups()
    first = next(groups, SCHEMA.empty_table())
    # all row groups have filters of one size: for what the first one has, and half as much more
    blooms = {
        name: {"ndv": max(64, (len(first) - first.column(name).null_count) * 3 // 2), "fpp": FALSE_POSITIVES}
        for name in BLOOM_COLUMNS
    }
    with pq.ParquetWriter(
        pa.PythonFile(file, "w"),
        SCHEMA,
        compression="zstd",
        use_dictionary=DICTIONARIES,
        column_encoding=ENCODINGS,
        write_statistics=True,
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=blooms,
    ) as writer:
        for table in itertools.chain([first], groups):
            if len(table):
                writer.write_table(table, row_group_size=len(table))
        origin = heads.origin()
        writer.add_key_value_metadata({ORIGIN_KEY: origin.to_json()})
    seal(file)
    return origin
