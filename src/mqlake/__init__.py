"""A message store and broker compatible with Apache RocketMQ on disk and on the wire, read in place by Spark."""

import os

__version__ = "0.1.0"

NO_JIT = os.environ.get("MQLAKE_NO_JIT", "0") not in ("", "0")
"""MQLAKE_NO_JIT=1: plain Python does all work, native code is not imported."""
