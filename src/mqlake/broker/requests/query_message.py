"""QueryMessageProcessor: messages by key and by offset, sent as they are in the log."""

from __future__ import annotations

from struct import Struct

from mqlake.broker.services.after_dispatch import after_dispatch
from mqlake.broker.services.archived import with_archive
from mqlake.errors import ResponseError
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, RECORD_SIZE_MIN
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from mqlake.remoting.processors import answers
from mqlake.store.message_store import DefaultMessageStore

UNIQUE_MSG_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
UNIQUE_MSG_QUERY_MAX_NUM = 32
"""The maximum for a query by unique key, whatever the client asks: RocketMQ's defaultQueryMaxNum."""

_MAGIC_AND_PLACE = Struct(">4x i 20x q")


class QueryMessageProcessor:
    def __init__(self, store: DefaultMessageStore) -> None:
        self._store = store

    @answers(RequestCode.QUERY_MESSAGE, with_archive, after_dispatch)
    def query_message(self, request: RemotingCommand, header: QueryMessageRequestHeader) -> RemotingCommand:
        max_num = header.max_num
        if request.ext_fields.get(UNIQUE_MSG_QUERY_FLAG) == "true":
            max_num = UNIQUE_MSG_QUERY_MAX_NUM
        result = self._store.query_message(
            header.topic, header.key, max_num, header.begin_timestamp, header.end_timestamp
        )
        found = QueryMessageResponseHeader(
            index_last_update_timestamp=result.index_last_update_timestamp,
            index_last_update_phyoffset=result.index_last_update_phyoffset,
        )
        if not result.buffers:
            return RemotingCommand.create_response(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message, maybe time range not correct: no message of {header.topic} with the key "
                f"{header.key!r} was stored between {header.begin_timestamp} and {header.end_timestamp}",
                header=found,
            )
        return RemotingCommand.create_response(header=found, body=result.buffers)

    @answers(RequestCode.VIEW_MESSAGE_BY_ID, with_archive)
    def view_message_by_id(self, header: ViewMessageRequestHeader) -> RemotingCommand:
        """33 VIEW_MESSAGE_BY_ID. The id's second half is the offset."""
        record = self._store.select_one_message_by_offset(header.offset)
        if record is None or not _begins_at(record, header.offset):
            store = self._store
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {header.offset}: no message begins there; "
                f"this broker's log holds {store.min_phy_offset} to {store.max_phy_offset}",
            )
        return RemotingCommand.create_response(body=record)


def _begins_at(record: memoryview, offset: int) -> bool:
    """True if these bytes are a record, and not the inside of another one."""
    if len(record) < RECORD_SIZE_MIN:
        return False
    magic, place = _MAGIC_AND_PLACE.unpack_from(record)
    return magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2) and place == offset
