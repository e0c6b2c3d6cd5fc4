"""The system flag of a message."""

from __future__ import annotations


class MessageSysFlag:
    """The bits of a record's SYSFLAG.

    10 9 8 compression type | 7 inner batch | 6 need unwrap | 5 store host v6 | 4 born host v6
    | 3 2 transaction type | 1 multi tags | 0 compressed
    """

    COMPRESSED_FLAG = 0x1
    MULTI_TAGS_FLAG = 0x2
    TRANSACTION_NOT_TYPE = 0x0
    TRANSACTION_PREPARED_TYPE = 0x4
    TRANSACTION_COMMIT_TYPE = 0x8
    TRANSACTION_ROLLBACK_TYPE = 0xC
    BORNHOST_V6_FLAG = 0x10
    STOREHOSTADDRESS_V6_FLAG = 0x20
    NEED_UNWRAP_FLAG = 0x40
    INNER_BATCH_FLAG = 0x80
    COMPRESSION_LZ4_TYPE = 0x100
    COMPRESSION_ZSTD_TYPE = 0x200
    COMPRESSION_ZLIB_TYPE = 0x300

    @staticmethod
    def transaction_value(flag: int) -> int:
        """One of the four TRANSACTION_* values."""
        return flag & 0xC

    @staticmethod
    def compression_type(flag: int) -> int:
        """One of the COMPRESSION_*_TYPE values; 0, from before there was a choice, counts as zlib."""
        return flag & 0x700 or 0x300


UNSEEN_FLAG = MessageSysFlag.TRANSACTION_PREPARED_TYPE
"""The bit that no message has that consumers see: prepared and rolled back ones have it, and no consume queue leads to
them."""
