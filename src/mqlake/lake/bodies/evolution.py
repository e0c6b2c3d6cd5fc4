"""Schema evolution: what a table's schema becomes when bodies have another one, and values moved to that schema.

new field                   added, null in the rows before
int → long, float → double  widened; a narrower type that comes later is read as the wider one
a field that is gone        stays, null from then on
anything else               refused: SchemaChangeError says which field, both types, and what to do
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ConfigError
from mqlake.lake.arrow.arrays import number_array
from mqlake.lake.bodies.types import ARRAY, MAP, STRUCT, ColumnType, array_of, map_of, struct_of

WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
"""The number type that holds all values of another, and that tables of both formats can change it to."""


class SchemaChangeError(ConfigError):
    """A schema that a table's columns cannot follow."""

    def __init__(self, field: str, old: ColumnType, new: ColumnType) -> None:
        self.field, self.old, self.new = field, old, new
        super().__init__(
            f"field {field!r} is {old} in the table and {new} in the new schema. Only new fields, int to long and "
            f"float to double can be taken up. Go on with the old schema (bodies that do not fit are kept undecoded), "
            f"give the field a new name, or write to a new table"
        )


def merged(old: ColumnType, new: ColumnType, *, field: str = "") -> ColumnType:
    """The schema that holds values of both: `old` with what is new. SchemaChangeError."""
    if old.name == new.name == STRUCT:
        return _merged_fields(old, new, field)
    if old.name == new.name and old.name in (ARRAY, MAP):
        element = merged(old.element, new.element, field=f"{field}[]")
        return array_of(element) if old.name == ARRAY else map_of(element)
    if fits(new.arrow, old.arrow):
        return old
    if fits(old.arrow, new.arrow):
        return new
    raise SchemaChangeError(field, old, new)


def _merged_fields(old: ColumnType, new: ColumnType, field: str) -> ColumnType:
    later = dict(new.fields)
    found = []
    for name, kind in old.fields:
        path = f"{field}.{name}" if field else name
        found.append((name, merged(kind, later[name], field=path) if name in later else kind))
    known = {name for name, _ in old.fields}
    return struct_of([*found, *((name, kind) for name, kind in new.fields if name not in known)])


def fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns True if all values of a type are values of a table's column: the same, a narrower number, fewer
    fields."""
    if kind == wanted:
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        names = {each.name: each.type for each in wanted.fields}
        return all(each.name in names and fits(each.type, names[each.name]) for each in kind.fields)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return fits(kind.value_type, wanted.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return fits(kind.key_type, wanted.key_type) and fits(kind.item_type, wanted.item_type)
    return bool(WIDER.get(kind) == wanted)


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as another type that `merged` made of theirs: fields added, numbers widened, by Arrow's kernels."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = {array.type.field(i).name: i for i in range(array.type.num_fields)}
        children = [
            conform(array.field(names[each.name]), each.type)
            if each.name in names
            else pa.nulls(len(array), each.type)
            for each in (kind.field(i) for i in range(kind.num_fields))
        ]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        offsets, values = _parts(array)
        mask = pc.is_null(array) if array.null_count else None
        return pa.ListArray.from_arrays(offsets, conform(values, kind.value_type), type=kind, mask=mask)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys, items = pc.cast(array.keys, kind.key_type), conform(array.items, kind.item_type)
        offsets = number_array(np.asarray(array.offsets))
        mask = pc.is_null(array) if array.null_count else None
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    return pc.cast(array, kind)


def _parts(array: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Offsets into the values, and the values."""
    return number_array(np.asarray(array.offsets)), array.values
