"""The fast path: usual sends and pulls, many at a time, in compiled code."""
