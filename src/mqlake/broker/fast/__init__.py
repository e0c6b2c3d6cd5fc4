"""The fast path: the common sends and pulls, many at a time, in compiled code."""
