"""The constants of mqlake.native.serving: made by tools/native_constants.py."""

cdef enum:
    PREPARED_OFFSET_POSITION_V4 = 76
    RECONSUME_TIMES_POSITION_V4 = 72
    STORE_TIMESTAMP_POSITION_V4 = 56
    FAST_PUT_FLAGS = 843
    STORE_HOST_POSITION_V4 = 64
    HISTOGRAM_SIZE = 10001
