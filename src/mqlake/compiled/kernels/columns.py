"""The compiled twin of `formats.columns.plain`: the same functions, gathered from the kernels."""

from mqlake.compiled.kernels.dispatch import dispatch
from mqlake.compiled.kernels.index import index_put_many, index_query
from mqlake.compiled.kernels.queues import number_queues, units_by_queue
from mqlake.compiled.kernels.records import append_batch, find_record, scan, walk
from mqlake.compiled.kernels.units import follow_units, gather, gather_runs, whole_records

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
