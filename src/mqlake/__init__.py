"""A message store and broker compatible with Apache RocketMQ on disk and on the wire, read in place by Spark."""

import os

__version__ = "0.1.0"

NO_NATIVE = os.environ.get("MQLAKE_NO_NATIVE", "0") not in ("", "0")
"""MQLAKE_NO_NATIVE=1: plain Python does all work, native code is not imported."""
