"""The constants of mqlake.native.requests: made by tools/native_constants.py."""

cdef enum:
    _ONEWAY_FLAG = 2
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    END_TRANSACTION = 37
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    ONEWAY_FLAG = 2
    TRANSACTION_BITS = 12
    TRANSACTION_PREPARED = 4
    TRANSACTION_COMMIT = 8
    FAST_SEND_FLAGS = 775
    A = 0
    B = 1
    C = 2
    D = 3
    E = 4
    F = 5
    G = 6
    H = 7
    I = 8
    J = 9
    K = 10
    L = 11
    M = 12
    TABLE_OFFSET = 13
    LOG_OFFSET = 14
    COMMIT_OR_ROLLBACK = 15
    MSG_ID = 17
