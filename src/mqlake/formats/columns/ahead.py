"""Has all kernels of `formats.columns` compiled, or loaded from disk, each with nothing to do."""

from __future__ import annotations

import numpy as np

from mqlake.formats import columns
from mqlake.formats.columns import PLAIN_RECORDS_MAX


def compile_all() -> None:
    columns.load_for(PLAIN_RECORDS_MAX)
    nothing, places = np.empty(0, np.uint8), np.empty(0, np.int64)
    columns._try_log(columns._try_append())
    columns.find_record(nothing, 0, 0, 0)
    columns.gather(nothing, places, places)
    columns.follow_units(nothing, 0, 0, b"", "", 0, range(0), 0)
    columns.whole_records(nothing, 0)
    columns.gather_runs(nothing, np.empty((0, 2), np.int64), 0)
