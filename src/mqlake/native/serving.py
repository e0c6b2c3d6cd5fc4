"""The constants of serving.pxd: those of RocketMQ's records and requests that the kernels of the serving side use."""

from mqlake.formats.record import (
    PREPARED_OFFSET_POSITION_V4,
    RECONSUME_TIMES_POSITION_V4,
    STORE_TIMESTAMP_POSITION_V4,
)
from mqlake.message.policy import Policy, bits_without

FAST_PUT_FLAGS = bits_without(Policy.PUT)
"""Bits of SYSFLAG of a message whose record is made of its fields alone."""

STORE_HOST_POSITION_V4 = STORE_TIMESTAMP_POSITION_V4 + 8

HISTOGRAM_SIZE = 10_001
"""Puts by how long they took, ms; the last one of all that took longer."""
