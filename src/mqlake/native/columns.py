# cython: language_level=3
"""The compiled twin of `formats.columns.plain`: the same functions, gathered from the kernels."""

from mqlake.native.append import append_batch
from mqlake.native.dispatch import dispatch
from mqlake.native.index import index_put_many, index_query
from mqlake.native.queues import number_queues, units_by_queue
from mqlake.native.records import find_record, scan, walk
from mqlake.native.units import follow_units, gather, gather_runs, whole_records

__all__ = [
    "append_batch",
    "dispatch",
    "find_record",
    "follow_units",
    "gather",
    "gather_runs",
    "index_put_many",
    "index_query",
    "number_queues",
    "scan",
    "units_by_queue",
    "walk",
    "whole_records",
]
