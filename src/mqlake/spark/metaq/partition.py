# mypy: disable-error-code="misc"
"""The work of one task of the source `metaq`: reading its pieces and making rows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from mqlake.errors import ConfigError, MqlakeError
from mqlake.lake.arrow.memory import keep_freed_memory
from mqlake.lake.arrow.rows import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.lake.log.grouped import grouped
from mqlake.lake.options import Mode
from mqlake.metaq.store.columns import Damage, Records
from mqlake.spark.metaq.locations import Piece, read_piece
from mqlake.spark.metaq.options import MetaqOptions, schemas
from mqlake.spark.metaq.segments import Split
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.positions import ENDING, STARTING

Pieces = tuple[Piece, ...]
"""The work of one task."""


def partitions_of(pieces: Iterable[Piece], split_size: int) -> list[TaskPartition[Pieces]]:
    """Small pieces that follow each other become one task's work; each partition of a broker is a task of its own."""

    def size_of(piece: Piece) -> int:
        return piece.end - piece.start if isinstance(piece, Split) else split_size

    return as_partitions(grouped(pieces, size_of, split_size))


def read_pieces(pieces: Pieces, options: MetaqOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one task.

    StoreCorruptError and ConfigError (mode failFast), OffsetOutOfRangeError, RemotingError, OSError.
    """
    keep_freed_memory()
    schema = schemas(columns)[1]
    for piece in pieces:
        try:
            for found in read_piece(piece, verify=options.verify):
                if isinstance(found, Records):
                    for part in found.batches(BATCH_RECORDS_MAX, BATCH_BYTES_MAX):
                        arrays = [column(name, part, piece) for name in columns]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                elif options.mode is Mode.FAIL_FAST:
                    raise _error(found, options)
                elif options.mode is Mode.PERMISSIVE:
                    yield damage_row(found, piece, schema)
        except FileNotFoundError as error:
            options.data_loss(f"{error.filename or error}: deleted while it was read")


def _error(damage: Damage, options: MetaqOptions) -> MqlakeError:
    """Returns the error for damage: a wrong offset in an option if it names this place, as offsets at which no
    record begins look like damage."""
    for position, option, offset, what in (
        (options.start, STARTING[0], damage.offset, "begins"),
        (options.end, ENDING[0], damage.end, "ends"),
    ):
        if offset in position.queues.values():
            return ConfigError(f"{damage.file}: no record {what} at offset {offset}, which {option!r} names")
    return damage.error()


def column(name: str, records: Records, split: Piece) -> pa.Array:
    """One of COLUMNS, or `_corrupt`."""
    match name:
        case "topic":
            return pa.repeat(pa.scalar(split.topic, pa.string()), len(records))
        case "partition":
            return pa.repeat(pa.scalar(split.partition, pa.int32()), len(records))
        case "path":
            return pa.repeat(pa.scalar(split.place, pa.string()), len(records))
        case "offset":
            return pa.array(records.offset)
        case "size":
            return pa.array(records.size)
        case "id":
            return pa.array(np.ascontiguousarray(records.scan.message_id))
        case "flag":
            return pa.array(np.ascontiguousarray(records.scan.flag))
        case "attribute":
            return records.attributes()
        case "body":
            return records.bodies()
        case "checksum":
            return pa.array(records.checksum)
        case _:
            return pa.nulls(len(records), pa.string())


def damage_row(damage: Damage, split: Piece, schema: pa.Schema) -> pa.RecordBatch:
    """The row for damage in mode permissive."""
    values = {
        "topic": split.topic,
        "partition": split.partition,
        "offset": damage.offset,
        "path": split.place,
        CORRUPT_COLUMN: str(damage.error()),
    }
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in schema.names}], schema=schema)
