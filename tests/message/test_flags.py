"""The bits of the system flag."""

from __future__ import annotations

from mqlake.message import (
    MessageSysFlag,
)


class TestSysFlag:
    def test_transaction_value(self):
        assert MessageSysFlag.transaction_value(0xFF) == MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
        assert MessageSysFlag.transaction_value(0x13) == MessageSysFlag.TRANSACTION_NOT_TYPE

    def test_compression_type(self):
        assert MessageSysFlag.compression_type(0x101) == MessageSysFlag.COMPRESSION_LZ4_TYPE
        assert MessageSysFlag.compression_type(0x1) == MessageSysFlag.COMPRESSION_ZLIB_TYPE
